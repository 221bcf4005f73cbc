"""The journal as a file on this machine, for answers that are wanted soon.

Reading it through `format("rtmb")` starts Python in Spark twice, to plan and to read, which takes
seconds. In a local session the driver can fetch it as well, and that while Java still starts.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from rtmb.spark.jobs.broker import Broker
from rtmb.spark.options import SOURCE, read
from rtmb.spark.reading import ARROW_SCHEMA, SCHEMA
from rtmb.spark.source import BatchReader
from rtmb.spark.transport import client


class _Copy:
    """A copy under way."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options
        folder = tempfile.mkdtemp(prefix="rtmb-journal-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._file = Path(folder) / "journal.parquet"
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._fetch, daemon=True)
        self._thread.start()

    def _fetch(self) -> None:
        try:
            reader = BatchReader(read(self.options, SOURCE))
            with pq.ParquetWriter(self._file, ARROW_SCHEMA, compression="none") as writer:
                for part in reader.partitions():
                    for batch in reader.read(part):
                        writer.write_batch(batch)
        except Exception as error:  # told to whoever waits for it
            self._problem = error

    def frame(self, spark: SparkSession) -> DataFrame:
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        return spark.read.schema(SCHEMA).parquet(self._file.as_uri())


#: A journal that holds more bytes than this is left where it is.
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class CopyingBroker(Broker):
    """A broker whose journal is copied to be read. A copy is as the journal was when it began."""

    _begun: list[_Copy] = field(default_factory=list)

    def begin(self, **options: object) -> None:
        """Fetch what will be asked for with the same options."""
        self._begun.append(_Copy(self.given(SOURCE, options)))

    @property
    def suits(self) -> bool:
        """Whether the journal is small enough."""
        journal = client(self.sink_options().access).json("GET", "/journalz")["journal"]
        return bool(journal["bytes"] <= MOST_BYTES)

    def read(self, spark: SparkSession, **options: object) -> DataFrame:
        given = self.given(SOURCE, options)
        for copy in self._begun:
            if copy.options == given:
                return copy.frame(spark)
        return _Copy(given).frame(spark)
