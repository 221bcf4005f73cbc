"""The replay job: a range of the archive back into the broker, in order within a subject, at the
pace it had, or faster, or as fast as it goes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as fn

from rtmb.spark.jobs.broker import Broker
from rtmb.spark.jobs.messages import matching
from rtmb.spark.jobs.store import Archive
from rtmb.spark.options import SparkOptions
from rtmb.spark.outgoing import bodies
from rtmb.spark.transport import client

#: Messages that are due within so many seconds of each other go together.
_TOGETHER = 0.002
#: And no more than so many.
_MOST_TOGETHER = 4096
#: What the tasks need to begin: the first message is due so long after they are called.
_LEAD = 0.5


def replay(
    archive: Archive,
    broker: Broker,
    *,
    subject: str = ">",
    since: datetime | None = None,
    until: datetime | None = None,
    prefix: str = "replay",
    speed: float = 1.0,
) -> int:
    """Publish messages again, on `<prefix>.<subject>`; how many. A speed of 2 is twice the pace
    they had, 0 knows no pace."""
    messages = matching(archive.messages(since, until), subject)
    lanes = archive.spark.sparkContext.defaultParallelism
    ordered = in_lanes(messages, prefix, lanes)
    options = broker.sink_options()
    run = uuid.uuid4().hex
    if not speed:
        return ordered.rdd.mapPartitions(publisher(options, run)).sum()
    # Sorting takes its time, and must not take it from the pace.
    ordered.persist()
    try:
        first = ordered.agg(fn.min("micros")).first()
        if first is None or first[0] is None:
            return 0
        pace = Pace(first[0], time.time() + _LEAD, speed)
        return ordered.rdd.mapPartitions(publisher(options, run, pace)).sum()
    finally:
        ordered.unpersist()


def in_lanes(messages: DataFrame, prefix: str, lanes: int) -> DataFrame:
    """What to publish. Each subject is in one partition, and each partition in order of time; all
    partitions are to run at once."""
    target = fn.concat_ws(".", fn.lit(prefix), "subject") if prefix else fn.col("subject")
    return (
        messages.select(
            target.alias("subject"), "data", "headers", "seq",
            fn.unix_micros("timestamp").alias("micros"),
        )
        .repartition(lanes, "subject")
        .sortWithinPartitions("micros", "seq")
    )  # fmt: skip


class Pace:
    """When a message is due: the one of `first` at `begin`, the others after it as they were."""

    def __init__(self, first: int, begin: float, speed: float) -> None:
        self._first, self._begin, self._speed = first, begin, speed

    def wait(self, micros: int) -> float:
        """Seconds until a message is due."""
        due = self._begin + (micros - self._first) / 1e6 / self._speed
        return due - time.time()


def parts(rows: Iterable[Row], pace: Pace | None) -> Iterator[list[Row]]:
    """Rows that go together, each time when they are due."""
    part: list[Row] = []
    for row in rows:
        early = pace is not None and pace.wait(row.micros) > _TOGETHER
        if part and (early or len(part) >= _MOST_TOGETHER):
            yield part
            part = []
        if pace is not None and early:
            time.sleep(max(0.0, pace.wait(row.micros)))
        part.append(row)
    if part:
        yield part


def publisher(
    options: SparkOptions, run: str, pace: Pace | None = None
) -> Callable[[Iterable[Row]], Iterator[int]]:
    """A function for the tasks; it tells how many it published. It waits for each answer: what is
    published is published. The ids are of this run, so that a task that is tried again publishes
    only what is missing."""

    def publish(rows: Iterable[Row]) -> Iterator[int]:
        task = TaskContext.get()
        assert task is not None
        source, link, count = f"{run}/{task.partitionId()}", client(options.access), 0
        for part in parts(rows, pace):
            for target, body, size in bodies(_batch(part), source, count):
                link.call("POST", target, body)
                count += size
        yield count

    return publish


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns = {
        "subject": pa.array([row.subject for row in rows], pa.string()),
        "data": pa.array([bytes(row.data) for row in rows], pa.binary()),
        "headers": pa.array([row.headers for row in rows], pa.map_(pa.string(), pa.string())),
    }
    return pa.RecordBatch.from_pydict(columns)
