"""The journal as a table function of SQL: ``SELECT * FROM rtmb('weather.>')``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf

from rtmb.spark import options
from rtmb.spark.reading import SCHEMA
from rtmb.spark.source import BatchReader


class Journal:
    """Messages of the journal as it is now, on subjects that a pattern matches; `more` are options
    of the source."""

    def eval(self, subject: str = ">", more: dict[str, str] | None = None) -> Iterator[Any]:
        given = options.read({"subject": subject, **(more or {})}, options.SOURCE)
        reader = BatchReader(given)
        for part in reader.partitions():
            for batch in reader.read(part):
                columns = [c.to_pylist(maps_as_pydicts="strict") for c in batch.columns]
                yield from zip(*columns, strict=True)


def register(spark: SparkSession, name: str = "rtmb") -> None:
    """Make it known to a session."""
    spark.udtf.register(name, udtf(Journal, returnType=SCHEMA))  # type: ignore[arg-type]
