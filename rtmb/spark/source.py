"""The source: the journal as a table, in batches and as a stream.

An offset is ``{"epoch", "seq"}``: the number of the next message to read, and the life of the
broker that it belongs to. What is lost is told as it was asked for (`onDataLoss`,
`onEpochChange`), never passed over.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rtmb.codecs import columns as frames
from rtmb.codecs.nats import decode_headers
from rtmb.spark import options
from rtmb.spark.options import OptionError, Options
from rtmb.spark.transport import BrokerError, Client, client, path

SCHEMA = (
    "subject string, data binary, headers map<string, string>, reply string, seq bigint, "
    "timestamp timestamp, door string"
)
_HEADERS = pa.map_(pa.string(), pa.string())
ARROW_SCHEMA = pa.schema(
    [
        ("subject", pa.string()),
        ("data", pa.binary()),
        ("headers", _HEADERS),
        ("reply", pa.string()),
        ("seq", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("door", pa.string()),
    ]
)
#: The subject of the row that stands for messages lost, with `onDataLoss` as ``record``.
GAP_SUBJECT = "!journal/gap"
#: A partition has about so many messages, as long as there are not too many partitions.
_PARTITION_MESSAGES = 50_000
_MOST_PARTITIONS = 16
#: A position moves on without a message that is wanted once this part of the journal has passed.
_PASSED = 4

_log = logging.getLogger("rtmb.spark")
Offset = dict[str, Any]


class DataLossError(Exception):
    """Messages are gone that should have been read; the text says which, why, and what helps."""


class RtmbDataSource(DataSource):
    """``format("rtmb")``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "rtmb"

    def schema(self) -> str:
        self._source_options()
        return SCHEMA

    def _source_options(self) -> Options:
        return options.read(self._given, options.SOURCE)

    def _checked_schema(self, schema: StructType) -> None:
        if schema.fieldNames() != ARROW_SCHEMA.names:
            raise OptionError(f"rtmb has a schema of its own, so give none: {SCHEMA}")

    def reader(self, schema: StructType) -> DataSourceReader:
        self._checked_schema(schema)
        return BatchReader(self._source_options())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._checked_schema(schema)
        return StreamReader(self._source_options())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rtmb.spark.sink import BatchWriter

        if overwrite:
            raise OptionError('a broker has nothing to overwrite: use mode("append")')
        return BatchWriter(options.read(self._given, options.SINK), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from rtmb.spark.sink import StreamWriter

        return StreamWriter(options.read(self._given, options.SINK), schema)


@dataclass
class Range(InputPartition):
    """Messages to read: those from `start` on and before `end`, of one epoch. A range that has an
    `old` offset stands for what an earlier life of the broker still had from there on."""

    epoch: str
    start: int
    end: int
    old: int | None = None


def split(epoch: str, start: int, end: int, least: int) -> list[Range]:
    """A range as partitions that follow each other. The same each time that a batch is tried:
    the sink's message ids rest on it."""
    length = end - start
    wanted = max(least, min(_MOST_PARTITIONS, -(-length // _PARTITION_MESSAGES)))
    n = max(1, min(wanted, length))
    bounds = [start + length * i // n for i in range(n + 1)]
    return [Range(epoch, a, b) for a, b in pairwise(bounds)]


class Reading:
    """What batch and stream have in common."""

    def __init__(self, given: Options) -> None:
        self.options = given

    @property
    def client(self) -> Client:
        return client(self.options.access)

    def position(self, wanted: str | int | float) -> Offset:
        """An offset for a word, a sequence number or a time."""
        if isinstance(wanted, float):
            found = self.client.json("GET", path("journal", "position", time=wanted))
        else:
            at = wanted if isinstance(wanted, str) else "latest"
            found = self.client.json("GET", path("journal", "position", at=at))
        if isinstance(wanted, int):
            if wanted > found["next"]:
                raise OptionError(
                    f"position {wanted} is beyond the journal, whose next message is "
                    f"{found['next']}: numbers begin again when the broker restarts"
                )
            return {"epoch": found["epoch"], "seq": max(1, wanted)}
        return {"epoch": found["epoch"], "seq": found["seq"]}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        if partition.old is not None:
            yield from self.old_epoch(partition.epoch, partition.old)
            return
        link = self.client
        try:
            yield from self._read(link, partition)
        finally:
            if len(link):
                link.close()  # no one is there for the answers

    def _read(self, link: Client, part: Range) -> Iterator[pa.RecordBatch]:
        link.send("GET", self._target(part, part.start))
        position = part.start
        while True:
            try:
                body = link.receive()
            except BrokerError as error:
                if error.status != 409:
                    raise
                yield from self.old_epoch(part.epoch, position, part.end)
                return
            (told, _), *batches = frames.decode(body)
            then: int = told["then"]
            if then < part.end:
                if then <= position:
                    raise DataLossError(
                        f"the journal ends at {then}, before {part.end}: it is not the one that "
                        "this query has read"
                    )
                link.send("GET", self._target(part, then))
            if told["lost"] is not None:
                yield from self.lost(part.epoch, *told["lost"])
            for described, columns in batches:
                yield to_batch(described, columns)
            if then >= part.end:
                return
            position = then

    def _target(self, part: Range, start: int) -> str:
        return path(
            "journal",
            epoch=part.epoch,
            from_=start,
            to=part.end,
            subject=self.options["subject"],
            headers=None if self.options["includeHeaders"] else 0,
            consumer=self.options["consumer"] or None,
        )

    # What is gone

    def lost(self, epoch: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Messages were overwritten before they were read."""
        facts = {
            "epoch": epoch,
            "from": start,
            "to": end - 1,
            "count": end - start,
            "cause": "overwritten in the journal before they were read",
        }
        yield from self._gone(facts, overwritten(start, end))

    def old_epoch(self, epoch: str, start: int, end: int | None = None) -> Iterator[pa.RecordBatch]:
        """The broker was restarted, and its journal with it."""
        if self.options["onEpochChange"] == "fail":
            raise DataLossError(restarted(epoch, start))
        facts = {
            "epoch": epoch,
            "from": start,
            "to": None if end is None else end - 1,
            "count": None if end is None else end - start,
            "cause": "the broker was restarted",
        }
        yield from self._gone(facts, restarted(epoch, start), fail=False)

    def _gone(
        self, facts: Mapping[str, Any], text: str, *, fail: bool = True
    ) -> Iterator[pa.RecordBatch]:
        policy = self.options["onDataLoss"]
        if policy == "fail" and fail:
            raise DataLossError(text)
        _log.warning("%s", text)
        if policy == "record":
            yield gap(facts)


def overwritten(start: int, end: int) -> str:
    which = f"messages {start} to {end - 1}" if end - start > 1 else f"message {start}"
    return (
        f"{which} of the journal ({end - start}, on all its subjects) were overwritten before they "
        "were read. Give the broker more room (--journal-bytes, --journal-messages), let the query "
        "read more at a time (maxMessagesPerTrigger), or set onDataLoss to skip or record."
    )


def restarted(epoch: str, seq: int) -> str:
    return (
        f"the broker was restarted: its journal is a new one, and what the old one ({epoch}) had "
        f"from message {seq} on and was not read is lost; how many is not known. Set onEpochChange "
        "to earliest to go on with the new journal from its beginning, or begin with a new "
        "checkpoint."
    )


class BatchReader(Reading, DataSourceReader):
    """``spark.read``: from one position to another, as they are when the query is planned."""

    def partitions(self) -> list[InputPartition]:
        start = self.position(self.options["startingPosition"])
        end = self.position(self.options["endingPosition"])
        if start["epoch"] != end["epoch"]:
            raise DataLossError("the broker was restarted while the query was planned: try again")
        if start["seq"] >= end["seq"]:
            return [Range(end["epoch"], end["seq"], end["seq"])]
        least = self.options["minPartitions"]
        return list(split(end["epoch"], start["seq"], end["seq"], least))


class StreamReader(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``. It lives in one process of the driver, for as long as the query."""

    def __init__(self, given: Options) -> None:
        super().__init__(given)
        if not given["consumer"]:
            given["consumer"] = f"spark-{uuid.uuid4().hex[:8]}"
        self._initial: Offset | None = None
        self._began = False
        self._target_offset: Offset | None = None
        #: Up to here, of which epoch, there was nothing wanted: no need to look again.
        self._clear: Offset = {"epoch": "", "seq": 0}
        #: Where the newest batch ends.
        self._end: int | None = None
        #: When the last batch was given out.
        self._last = time.monotonic()

    def initialOffset(self) -> Offset:
        # Spark asks twice and must hear the same.
        if self._initial is None:
            self._initial = self.position(self.options["startingPosition"])
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options["maxMessagesPerTrigger"])

    def prepareForTriggerAvailableNow(self) -> None:
        self._target_offset = self.position("latest")

    def reportLatestOffset(self) -> Offset:
        """Where the journal ends and how far this query is behind: `latestOffset` in progress."""
        found = self.client.json("GET", path("journal", "position", at="latest", behind=self._end))
        told = ("epoch", "seq", "lag", "lag_seconds")
        return {name: found[name] for name in told if name in found}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        found = self._latest_offset(start, limit)
        self._end = found["seq"]
        return found

    def _latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        if not self._began:
            self._began = True
            if start == self._initial:
                # Spark writes down where batches end, not where the first one began. An empty
                # first batch makes that known to a restarted query too.
                return start
        try:
            return self._latest(start, limit)
        except BrokerError as error:
            if error.status != 409:
                raise
            if self.options["onEpochChange"] == "fail":
                raise DataLossError(restarted(start["epoch"], start["seq"])) from None
            new = {"epoch": error.facts["epoch"], "seq": 1}
            end: int = self._measure(new, limit)["to"]
            if self._target_offset is not None:
                if self._target_offset["epoch"] != new["epoch"]:  # all that it has now
                    self._target_offset = self.position("latest")
                end = min(end, self._target_offset["seq"])
            return {"epoch": new["epoch"], "seq": end}

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        self._lease(start)
        target = self._target_offset
        now, least = time.monotonic(), self.options["minMessagesPerTrigger"]
        due = self._last + self.options["maxTriggerDelay"]
        if target is not None or isinstance(limit, ReadAllAvailable) or now >= due:
            least = 1
        wait = 0.0 if target is not None else self.options["longPollMs"] / 1000
        if least > 1:
            wait = min(wait, due - now)
        begin = start
        if self._clear["epoch"] == start["epoch"] and self._clear["seq"] > start["seq"]:
            begin = self._clear
        found = self._measure(begin, limit, least, wait)
        if start["seq"] < found["first"] and self.options["onDataLoss"] == "fail":
            raise DataLossError(overwritten(start["seq"], found["first"]))
        end: int = found["to"]
        if target is not None:
            end = max(start["seq"], min(end, target["seq"]))
        passed = (end - start["seq"]) * _PASSED > found["next"] - found["first"]
        if found["messages"]:
            give = found["enough"] or time.monotonic() >= due
        else:  # or a filter that matches seldom would be left behind by the ring
            give = passed or target is not None
            self._clear = {"epoch": start["epoch"], "seq": found["to"]}
        if not give or end == start["seq"]:
            return start
        self._last = time.monotonic()
        return {"epoch": start["epoch"], "seq": end}

    def _measure(
        self, start: Offset, limit: ReadLimit, least: int = 1, wait: float = 0.0
    ) -> dict[str, Any]:
        """How far the limits let this batch go; waits for something to come."""
        free = isinstance(limit, ReadAllAvailable)
        messages = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found: dict[str, Any] = self.client.json(
            "GET",
            path(
                "journal",
                "wait",
                epoch=start["epoch"],
                from_=start["seq"],
                subject=self.options["subject"],
                messages=messages,
                bytes=None if free else self.options["maxBytesPerTrigger"],
                least=least,
                timeout=wait or None,
            ),
            patience=wait,
        )
        return found

    def _lease(self, offset: Offset) -> None:
        """Say how far this query has come, so that others see if it falls behind."""
        self.client.json(
            "PUT",
            path("journal", "leases", self.options["consumer"], epoch=offset["epoch"]),
            {
                "position": offset["seq"],
                "ttl": self.options["leaseTtl"],
                "subjects": self.options["subject"],
            },
        )

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        ranges: list[InputPartition] = []
        begin = start["seq"]
        if start["epoch"] != end["epoch"]:
            ranges.append(Range(start["epoch"], 0, 0, old=begin))
            begin = 1
        if begin < end["seq"]:
            ranges += split(end["epoch"], begin, end["seq"], self.options["minPartitions"])
        return ranges

    def commit(self, end: Offset) -> None:
        try:
            self._lease(end)
        except BrokerError as error:
            if error.status != 409:  # that of a restarted broker is told by `latestOffset`
                raise


# Arrow


def to_batch(described: Mapping[str, Any], columns: list[memoryview]) -> pa.RecordBatch:
    """A frame as Arrow has it; the numbers and payloads stay where they are."""
    rows: int = described["rows"]
    seqs, times, subjects, doors, starts, data, reply_starts, replies, block_starts, blocks = (
        pa.py_buffer(column) for column in columns
    )

    def texts(kind: pa.DataType, starts: pa.Buffer, data: pa.Buffer) -> pa.Array:
        return pa.Array.from_buffers(kind, rows, [None, starts, data])

    def named(numbers: pa.Buffer, names: list[str]) -> pa.Array:
        which = pa.Array.from_buffers(pa.int32(), rows, [None, numbers])
        return pa.DictionaryArray.from_arrays(which, pa.array(names, pa.string())).cast(pa.string())

    headers, reply = pa.nulls(rows, _HEADERS), pa.nulls(rows, pa.string())
    if block_starts.size:
        blocks_here = texts(pa.binary(), block_starts, blocks).to_pylist()
        headers = pa.array([_header_map(block) for block in blocks_here], _HEADERS)
    if reply_starts.size:
        reply = texts(pa.binary(), reply_starts, replies)
        given = [raw.decode("utf-8", "replace") or None for raw in reply.to_pylist()]
        reply = pa.array(given, pa.string())
    return pa.RecordBatch.from_arrays(
        [
            named(subjects, described["subjects"]),
            texts(pa.binary(), starts, data),
            headers,
            reply,
            pa.Array.from_buffers(pa.int64(), rows, [None, seqs]),
            pa.Array.from_buffers(pa.timestamp("us", "UTC"), rows, [None, times]),
            named(doors, described["doors"]),
        ],
        schema=ARROW_SCHEMA,
    )


def _header_map(block: bytes) -> list[tuple[str, str]] | None:
    """A header block as a map: names as written, repeats joined as HTTP does."""
    if not block:
        return None
    found: dict[str, str] = {}
    for name, value in decode_headers(block):
        found[name] = f"{found[name]}, {value}" if name in found else value
    return [(_readable(name), _readable(value)) for name, value in found.items()]


def _readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def gap(facts: Mapping[str, Any]) -> pa.RecordBatch:
    """The row that stands for messages lost: what is known of them, as JSON."""
    row = {
        "subject": GAP_SUBJECT,
        "data": json.dumps(facts).encode(),
        "headers": None,
        "reply": None,
        "seq": facts["from"],
        "timestamp": int(time.time() * 1_000_000),
        "door": "journal",
    }
    arrays = [pa.array([row[f.name]], f.type) for f in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)
