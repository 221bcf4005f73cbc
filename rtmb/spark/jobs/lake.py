"""An archive that is a table of a lake: Delta, Iceberg, or what else the session has.

The table is written by that format's own sink, which takes in each batch once, and read as the
session reads it. The folder beside it has the checkpoint and says which table it is.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from rtmb.spark.jobs.messages import between
from rtmb.spark.jobs.store import CHECKPOINT, Archive, Snapshot

#: What a session needs for each format, for whoever lacks it.
NEEDS = {
    "delta": "--packages io.delta:delta-spark_2.13:VERSION"
    " --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"
    " --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "iceberg": "--packages org.apache.iceberg:iceberg-spark-runtime-SPARK_2.13:VERSION"
    " and a catalog of Iceberg's",
}
#: Seconds to wait for a moment between two batches.
_PATIENCE = 60.0


class BusyError(RuntimeError):
    """The stream was in the middle of a batch for as long as was waited."""


class LakeArchive(Archive):
    """An archive in a table."""

    def __init__(self, spark: SparkSession, path: str, form: str, table: str) -> None:
        super().__init__(spark, path)
        self.form, self.table = form, table
        check(spark, form)

    @property
    def kind(self) -> dict[str, Any]:
        return {"format": self.form, "table": self.table}

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        return writer.outputMode("append").toTable(self.table, format=self.form, partitionBy="date")

    def snapshot(self, since: datetime | None = None, until: datetime | None = None) -> Snapshot:
        """The place in the journal that the table reaches, between two batches."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            begun, done = (self._newest(name) for name in ("offsets", "commits"))
            if begun == done:
                return Snapshot(position=None if done is None else self._offset(done))
            if time.monotonic() > deadline:
                raise BusyError(
                    f"{self.table} is written to all the time: nobody knows how far it reaches."
                    " Ask it alone, with --no-live, or write less often"
                )
            time.sleep(0.1)

    def _newest(self, name: str) -> int | None:
        names = self.folder.names(f"{CHECKPOINT}/{name}")
        return max((int(name) for name in names if name.isdigit()), default=None)

    def messages(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        snapshot: Snapshot | None = None,
    ) -> DataFrame:
        self.about()
        return between(self.spark.table(self.table), since, until)

    def compact(self, *args: Any, **more: Any) -> int:
        """Formats of lakes have their own ways."""
        return 0

    clean = compact


def check(spark: SparkSession, form: str) -> None:
    """Raise a `ValueError` that says what to do where the session cannot write a format."""
    jvm: Any = spark._jvm
    state: Any = spark._jsparkSession.sessionState()
    try:
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
            form, state.conf()
        )
    except (PySparkException, Py4JJavaError):
        remedy = NEEDS.get(form)
        how = f": run it with spark-submit {remedy}" if remedy else ""
        raise ValueError(f"this Spark session has no {form}{how}") from None


def opened(spark: SparkSession, path: str) -> Archive:
    """The archive at a path, of whatever kind."""
    archive = Archive(spark, path)
    about = archive.about()
    if "table" in about:
        return LakeArchive(spark, path, about["format"], about["table"])
    return archive
