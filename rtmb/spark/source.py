"""The source: the journal as a table, in batches and as a stream.

An offset is ``{"epoch", "seq"}``: the number of the next message to read, and the life of the
broker that it belongs to. What is lost is told as it was asked for (`onDataLoss`,
`onEpochChange`), never passed over.
"""

from __future__ import annotations

import http.client
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
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rtmb.codecs import arrow
from rtmb.spark import options
from rtmb.spark.options import OptionError, Options
from rtmb.spark.transport import BrokerError, Client, UnreachableError, client, path, pause

#: The journal's columns as Spark has them: it knows no dictionaries.
ARROW_SCHEMA = pa.schema(
    [
        field.with_type(field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
        for field in pa.ipc.read_schema(pa.py_buffer(arrow.SCHEMA))
    ]
)
SCHEMA = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in from_arrow_schema(ARROW_SCHEMA))
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
        position = begun = partition.start
        tries = 0
        while True:
            try:
                for batch, behind in self._read(partition, position):
                    position = behind
                    yield batch
                return
            except BrokerError as error:
                if error.status != 409:
                    raise
                yield from self.old_epoch(partition.epoch, position, partition.end)
                return
            except (OSError, http.client.HTTPException, pa.ArrowInvalid) as error:
                if position > begun:
                    begun, tries = position, 0
                if tries >= self.options["retries"]:
                    raise UnreachableError(
                        f"the answer from {', '.join(self.options['servers'])} breaks off: {error}"
                    ) from None
                pause(tries)
                tries += 1

    def _read(self, part: Range, start: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Batches from a position on, each with the position behind it."""
        target = path(
            "journal",
            epoch=part.epoch,
            from_=start,
            to=part.end,
            subject=self.options["subject"],
            headers=None if self.options["includeHeaders"] else 0,
            consumer=self.options["consumer"] or None,
        )
        with self.client.stream(target) as answer:
            end = int(answer.headers["rtmb-to"])
            if end < part.end:
                raise DataLossError(
                    f"the journal ends at {end}, before {part.end}: it is not the one that this "
                    "query has read"
                )
            lost = answer.headers["rtmb-lost"]
            if lost is not None:
                first, last = map(int, lost.split("-"))
                for batch in self.lost(part.epoch, first, last + 1):
                    yield batch, last + 1
            with pa.ipc.open_stream(answer) as batches:
                for batch in batches:
                    yield plain(batch), batch.column("seq")[-1].as_py() + 1

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
        #: Where the newest batch ends, and whether that is the ending position.
        self._end: int | None = None
        self._ended = False
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
        told = {
            name: found[name] for name in ("epoch", "seq", "lag", "lag_seconds") if name in found
        }
        return told | ({"ended": True} if self._ended else {})

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
        ending = self._ending()  # asked for later than what is there, it can leave out none of it
        if start["seq"] < found["first"] and self.options["onDataLoss"] == "fail":
            raise DataLossError(overwritten(start["seq"], found["first"]))
        end: int = found["to"]
        if target is not None:
            end = max(start["seq"], min(end, target["seq"]))
        if ending is not None:
            self._ended = end >= ending
            end = max(start["seq"], min(end, ending))
        passed = (end - start["seq"]) * _PASSED > found["next"] - found["first"]
        if found["messages"]:
            give = found["enough"] or self._ended or time.monotonic() >= due
        else:  # or a filter that matches seldom would be left behind by the ring
            give = passed or self._ended or target is not None
            self._clear = {"epoch": start["epoch"], "seq": found["to"]}
        if not give or end == start["seq"]:
            return start
        self._last = time.monotonic()
        return {"epoch": start["epoch"], "seq": end}

    def _ending(self) -> int | None:
        """The number of the first message that is not to be read, once there is one. A time that
        has not come yet ends nothing."""
        wanted = self.options["endingPosition"]
        if not isinstance(wanted, float):
            return wanted if isinstance(wanted, int) else None
        over = time.time() >= wanted
        found = self.client.json("GET", path("journal", "position", time=wanted))
        return int(found["seq"]) if over or found["seq"] < found["next"] else None

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


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of the journal without dictionaries."""
    columns = [
        column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


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
