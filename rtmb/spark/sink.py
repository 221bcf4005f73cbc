"""The sink: rows become messages, each published once.

A task publishes its rows in order, some bodies ahead of the broker's answers. Each message has an
id, from the query, the batch, the partition and the row, or from a column; the broker knows the ids
of the last while, so that a batch done again after a crash publishes only what is missing.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rtmb.spark.deadletters import bury
from rtmb.spark.options import SparkOptions
from rtmb.spark.outgoing import BadRow, Outgoing, RowError, bodies
from rtmb.spark.transport import JournalClient, client, path

_log = logging.getLogger("rtmb.spark")


@dataclass
class Published(WriterCommitMessage):
    """What one task did."""

    published: int = 0
    duplicates: int = 0
    #: Rows that could not be published, and were left out or went to the dead letters.
    refused: int = 0


class Writing:
    """What batch and stream have in common."""

    def __init__(self, given: SparkOptions, schema: StructType) -> None:
        self.options = given
        self._outgoing = Outgoing(given, schema)

    def publish(self, batches: Iterator[pa.RecordBatch], source: str) -> Published:
        """Publish all rows of one partition; `source` and a row's number are its id."""
        done, row, link = Published(), 0, client(self.options.access)
        most = link.json("GET", path("journal", "publish"))["max_payload"]
        try:
            for batch in batches:
                messages, bad = self._outgoing.messages(batch, source, row, most)
                if bad:
                    self._refused(link, bad, done, most)
                for target, body, _ in bodies(messages, source, row):
                    while len(link) >= self.options["maxInFlight"]:
                        _answered(link, done)
                    link.send("POST", target, body)
                row += batch.num_rows
            while len(link):
                _answered(link, done)
        finally:
            if len(link):
                link.close()
        return done

    def _refused(self, link: JournalClient, bad: list[BadRow], done: Published, most: int) -> None:
        if self.options["mode"] == "fail":
            raise RowError(str(bad[0]))
        _log.warning("%d rows are not published: %s", len(bad), bad[0])
        done.refused += len(bad)
        if self.options["mode"] == "deadLetter":
            while len(link):
                _answered(link, done)
            bury(link, self.options["deadLetter"], [row.letter() for row in bad], most)


def _answered(link: JournalClient, done: Published) -> None:
    told = json.loads(link.receive())
    done.published += told["published"]
    done.duplicates += told["duplicates"]


class StreamWriter(Writing, DataSourceStreamArrowWriter):
    """``writeStream``."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise RuntimeError("Spark did not say which query and batch this is")
        return self.publish(iterator, f"{query}/{batch}/{task.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        again = sum(m.duplicates for m in messages if isinstance(m, Published))
        if again:
            _log.warning("batch %d: %d messages had been published before", batchId, again)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was published stays so: done again, the batch leaves it out."""


class BatchWriter(Writing, DataSourceArrowWriter):
    """``write``. The ids are good for this one write, so that a task tried again is known."""

    def __init__(self, given: SparkOptions, schema: StructType) -> None:
        super().__init__(given, schema)
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        task = TaskContext.get()
        assert task is not None
        return self.publish(iterator, f"{self._job}/{task.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass
