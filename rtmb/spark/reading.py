"""Reading from the journal, as batches and streams have it in common: positions, partitions, rows,
and what is told of messages that are gone."""

from __future__ import annotations

import http.client
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from rtmb.codecs import arrow
from rtmb.spark.deadletters import DeadLetter, bury
from rtmb.spark.options import OptionError, SparkOptions
from rtmb.spark.transport import BrokerError, JournalClient, UnreachableError, client, path, pause
from rtmb.spark.typed import BadMessage, PayloadError, Shape

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

_log = logging.getLogger("rtmb.spark")
Offset = dict[str, Any]


class DataLossError(Exception):
    """Messages are gone that should have been read; the text says which, why, and what helps."""


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

    def __init__(self, given: SparkOptions, shape: Shape | None = None) -> None:
        self.options = given
        self._shape = shape

    @property
    def client(self) -> JournalClient:
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
                    behind = batch.column("seq")[-1].as_py() + 1
                    yield self._rows(plain(batch), part.epoch), behind

    def _rows(self, batch: pa.RecordBatch, epoch: str) -> pa.RecordBatch:
        """Messages as rows of the schema that was asked for."""
        if self._shape is None:
            if self.options["payload"] != "text":
                return batch
            found, bad = as_text(batch)
        else:
            found, bad = self._shape.rows(batch)
        mode = self.options["mode"]
        if bad and mode != "permissive":
            if mode == "fail":
                raise PayloadError(_unfit(batch, bad[0]))
            if mode == "deadLetter":
                self._bury(batch, bad, epoch)
            else:
                _log.warning("%d messages are left out: %s", len(bad), _unfit(batch, bad[0]))
            unfit = {message.row for message in bad}
            found = found.filter(pa.array([i not in unfit for i in range(batch.num_rows)]))
        return found if self._shape is None else found.cast(self._shape.schema)

    def _bury(self, batch: pa.RecordBatch, bad: Sequence[BadMessage], epoch: str) -> None:
        task = TaskContext.get()
        query = task.getLocalProperty("sql.streaming.queryId") if task is not None else None
        letters = []
        for message in bad:
            subject, data, seq = (
                batch.column(name)[message.row].as_py() for name in ("subject", "data", "seq")
            )
            facts = {"Rtmb-Subject": subject, "Rtmb-Seq": str(seq), "Rtmb-Epoch": epoch}
            name = f"{query or self.options['consumer']}/{epoch}/{seq}"
            letters.append(DeadLetter(name, data, message.reason, facts))
        link = JournalClient(self.options.access)  # the other one is in the middle of an answer
        try:
            most = link.json("GET", path("journal", "publish"))["max_payload"]
            bury(link, self.options["deadLetter"], letters, most, self.options["consumer"])
        finally:
            link.close()

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
            row = gap(facts)
            if self._shape is not None:
                row = self._shape.empty(row, f"messages are lost: {facts['cause']}")
            elif self.options["payload"] == "text":
                row, _ = as_text(row)
            yield row


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


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of the journal without dictionaries."""
    columns = [
        column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def as_text(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[BadMessage]]:
    """The same with payloads as text; what is no UTF-8 has a mark in its place, and is told of."""
    data, bad = batch.column("data"), []
    try:
        texts = data.cast(pa.string())
    except pa.ArrowInvalid:
        made = []
        for row, payload in enumerate(data.to_pylist()):
            try:
                made.append(payload.decode())
            except UnicodeDecodeError as error:
                bad.append(BadMessage(row, f"not UTF-8: {error}"))
                made.append(payload.decode("utf-8", "replace"))
        texts = pa.array(made, pa.string())
    return batch.set_column(1, "data", texts), bad


def sample(given: SparkOptions) -> list[bytes]:
    """The first payloads that the journal has."""
    target = path("journal", subject=given["subject"], limit=given["inferMessages"], headers=0)
    link = JournalClient(given.access)
    try:
        with link.stream(target) as answer, pa.ipc.open_stream(answer) as batches:
            return [data for batch in batches for data in batch.column("data").to_pylist()]
    finally:
        link.close()


def _unfit(batch: pa.RecordBatch, message: BadMessage) -> str:
    seq, subject = (batch.column(name)[message.row].as_py() for name in ("seq", "subject"))
    return (
        f"message {seq} on {subject} is {message.reason}. The option mode says what becomes of "
        "such messages: permissive, drop, fail, deadLetter."
    )


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
