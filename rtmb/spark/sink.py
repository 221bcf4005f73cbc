"""The sink: rows become messages, each published once.

A task publishes its rows in order, some bodies ahead of the broker's answers. Each message has an
id, from the query, the batch, the partition and the row, or from a column; the broker knows the ids
of the last while, so that a batch done again after a crash publishes only what is missing.
"""

from __future__ import annotations

import json
import logging
import uuid
from array import array
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

from rtmb.codecs import columns as frames
from rtmb.codecs.nats import encode_headers
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
                for body, count in bodies(batch, self.options, source, row):
                    while len(link) >= self.options["maxInFlight"]:
                        _answered(link, done)
                    link.send("POST", path("journal", "publish"), body)
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
) -> Iterator[tuple[bytes, int]]:
    """A batch of rows as bodies for the broker, and how many rows each has."""
    rows = batch.num_rows
    if rows > _BODY_MESSAGES or (rows > 1 and batch.nbytes > _BODY_BYTES):
        half = rows // 2
        yield from bodies(batch.slice(0, half), given, source, first)
        yield from bodies(batch.slice(half), given, source, first + half)
    elif rows:
        yield _body(batch, given, source, first), rows


def _body(batch: pa.RecordBatch, given: Options, source: str, first: int) -> bytes:
    rows, named = batch.num_rows, batch.schema.names
    if given["subject"]:
        subjects, which = [given["subject"]], bytes(4 * rows)
    else:
        column = batch.column("subject")
        if column.null_count:
            raise ValueError("a row has no subject")
        coded = column.cast(pa.string()).dictionary_encode()
        subjects = coded.dictionary.to_pylist()
        which = frames.numbers("i", coded.indices.to_pylist())
    blocks: tuple[frames.Buffer, frames.Buffer] = (b"", b"")
    if "headers" in named and batch.column("headers").null_count < rows:
        found = [
            encode_headers([(k, v or "") for k, v in pairs]) if pairs else b""
            for pairs in batch.column("headers").to_pylist(maps_as_pydicts=None)
        ]
        blocks = _texts(pa.array(found, pa.binary()))
    ids: tuple[frames.Buffer, frames.Buffer] = (b"", b"")
    if given["idColumn"]:
        column = batch.column(given["idColumn"])
        if column.null_count:
            raise ValueError(f"a row has no {given['idColumn']}, which is its id")
        ids = _texts(column.cast(pa.string()))
    data = _texts(batch.column("data").fill_null(b"" if _is_binary(batch) else ""))
    described = {"rows": rows, "subjects": subjects, "source": source, "first": first}
    return b"".join(frames.encode(described, [which, *data, *blocks, *ids]))


def _is_binary(batch: pa.RecordBatch) -> bool:
    kind = batch.schema.field("data").type
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _texts(column: pa.Array) -> tuple[frames.Buffer, frames.Buffer]:
    """A column of texts as its offsets, from 0 on, and its bytes."""
    column = column.cast(pa.binary())
    _, starts, data = column.buffers()
    if len(column) == 0 or starts is None:
        return frames.numbers("i", [0]), b""
    here = memoryview(starts).cast("B").cast("i")[column.offset : column.offset + len(column) + 1]
    begin, end = here[0], here[-1]
    moved = array("i", [start - begin for start in here]) if begin else here
    whole = memoryview(data).cast("B")[begin:end] if data is not None else b""
    return frames.numbers("i", moved), whole
