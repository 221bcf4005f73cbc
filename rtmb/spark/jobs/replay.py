"""The replay job: a range of the archive back into the broker, in order within a subject, at the
pace it had, or faster, or as fast as it goes."""

from __future__ import annotations

import bisect
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from rtmb.spark.jobs.broker import Broker
from rtmb.spark.jobs.messages import matching
from rtmb.spark.jobs.store import Archive
from rtmb.spark.options import Options
from rtmb.spark.sink import bodies
from rtmb.spark.transport import client, path

#: Messages that are due within so many seconds of each other go together.
_TOGETHER = 0.002
#: What the tasks need to begin: the first message is due so long after they are called.
_LEAD = 0.5

Batches = Iterator[pa.RecordBatch]


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
        return _count(ordered.mapInArrow(publisher(options, run), "published long"))
    # Sorting takes its time, and must not take it from the pace.
    ordered.persist()
    try:
        first = ordered.agg(fn.min("micros")).first()
        if first is None or first[0] is None:
            return 0
        pace = Pace(first[0] / 1e6, time.time() + _LEAD, speed)
        return _count(ordered.mapInArrow(publisher(options, run, pace), "published long"))
    finally:
        ordered.unpersist()


def _count(published: DataFrame) -> int:
    row = published.agg(fn.sum("published")).first()
    return int(row[0] or 0) if row is not None else 0


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

    def __init__(self, first: float, begin: float, speed: float) -> None:
        self._first, self._begin, self._speed = first, begin, speed

    def due(self, moment: float) -> float:
        return self._begin + (moment - self._first) / self._speed

    def moment(self, due: float) -> float:
        """The other way round: the newest moment that is due."""
        return self._first + (due - self._begin) * self._speed

    def parts(self, batch: pa.RecordBatch) -> Batches:
        """Slices of a batch, each when its first message is due."""
        micros: list[int] = batch.column("micros").to_pylist()
        start = 0
        while start < len(micros):
            wait = self.due(micros[start] / 1e6) - time.time()
            if wait > 0:
                time.sleep(wait)
            newest = self.moment(time.time() + _TOGETHER) * 1e6
            end = max(start + 1, bisect.bisect_right(micros, newest, start))
            yield batch.slice(start, end - start)
            start = end


def publisher(options: Options, run: str, pace: Pace | None = None) -> Callable[[Batches], Batches]:
    """A function for the tasks. It waits for each answer: what is published is published. The ids
    are of this run, so that a task that is tried again publishes only what is missing."""

    def publish(batches: Batches) -> Batches:
        task = TaskContext.get()
        assert task is not None
        source, link, row = f"{run}/{task.partitionId()}", client(options.access), 0
        for batch in batches:
            for part in pace.parts(batch) if pace is not None else (batch,):
                for body, count in bodies(part, options, source, row):
                    link.call("POST", path("journal", "publish"), body)
                    row += count
        yield pa.RecordBatch.from_pydict({"published": pa.array([row], pa.int64())})

    return publish
