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
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from rtmb.core.subjects import is_subject
from rtmb.spark.options import OptionError, Options
from rtmb.spark.transport import Client, client, path

#: A body has at most so many messages and, unless it is one large message, bytes.
_BODY_MESSAGES = 4096
_BODY_BYTES = 1 << 20

_log = logging.getLogger("rtmb.spark")


@dataclass
class Published(WriterCommitMessage):
    """What one task did."""

    published: int = 0
    duplicates: int = 0


class Writing:
    """What batch and stream have in common."""

    def __init__(self, given: Options, schema: StructType) -> None:
        self.options = given
        self._check(schema)

    def _check(self, schema: StructType) -> None:
        types = {f.name: f.dataType for f in schema.fields}
        subject, column = self.options["subject"], self.options["idColumn"]
        if subject and not is_subject(subject):
            raise OptionError(f"option subject: not a subject to publish on: {subject!r}")
        if not subject and "subject" not in types:
            raise OptionError("the sink needs a column subject, or the option subject")
        if "data" not in types:
            raise OptionError("the sink needs a column data, such as to_json(struct(*)) AS data")
        if column and column not in types:
            raise OptionError(f"option idColumn: there is no column {column}")
        _expect(types, "subject", "string", StringType)
        _expect(types, "data", "binary or string", BinaryType, StringType)
        if "headers" in types:
            kind = types["headers"]
            if not isinstance(kind, MapType) or not all(
                isinstance(t, StringType) for t in (kind.keyType, kind.valueType)
            ):
                raise OptionError("column headers must be map<string, string>")

    def publish(self, batches: Iterator[pa.RecordBatch], source: str) -> Published:
        """Publish all rows of one partition; `source` and a row's number are its id."""
        done, row, link = Published(), 0, client(self.options.access)
        try:
            for batch in batches:
                for target, body, count in bodies(batch, self.options, source, row):
                    while len(link) >= self.options["maxInFlight"]:
                        _answered(link, done)
                    link.send("POST", target, body)
                    row += count
            while len(link):
                _answered(link, done)
        finally:
            if len(link):
                link.close()
        return done


def _expect(types: dict[str, DataType], name: str, words: str, *kinds: type[DataType]) -> None:
    if name in types and not isinstance(types[name], kinds):
        raise OptionError(f"column {name} must be {words}, not {types[name].simpleString()}")


def _answered(link: Client, done: Published) -> None:
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

    def __init__(self, given: Options, schema: StructType) -> None:
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


def bodies(
    batch: pa.RecordBatch, given: Options, source: str, first: int
) -> Iterator[tuple[str, bytes, int]]:
    """A batch of rows as bodies for the broker: where to post each, what, and how many rows it
    has."""
    rows = batch.num_rows
    if rows > _BODY_MESSAGES or (rows > 1 and batch.nbytes > _BODY_BYTES):
        half = rows // 2
        yield from bodies(batch.slice(0, half), given, source, first)
        yield from bodies(batch.slice(half), given, source, first + half)
    elif rows:
        target = path("journal", "publish", source=source, first=first)
        yield target, _body(batch, given), rows


def _body(batch: pa.RecordBatch, given: Options) -> bytes:
    """Rows as an Arrow stream with the columns that the broker takes."""
    columns = {"subject": _subjects(batch, given), "data": batch.column("data")}
    if "headers" in batch.schema.names:
        columns["headers"] = batch.column("headers")
    if given["idColumn"]:
        ids = batch.column(given["idColumn"])
        if ids.null_count:
            raise ValueError(f"a row has no {given['idColumn']}, which is its id")
        columns["id"] = ids.cast(pa.string())
    found = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.schema) as stream:
        stream.write_batch(found)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _subjects(batch: pa.RecordBatch, given: Options) -> pa.Array:
    if given["subject"]:
        which = pa.array(bytes(batch.num_rows), pa.uint8())
        return pa.DictionaryArray.from_arrays(which, [given["subject"]])
    column = batch.column("subject")
    if column.null_count:
        raise ValueError("a row has no subject")
    return column.cast(pa.string()).dictionary_encode()
