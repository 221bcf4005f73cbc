"""The archive job: subjects to Parquet, each message once; closed hours become few files."""

from __future__ import annotations

import time
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from rtmb.spark.jobs.broker import ANY, Broker, Payloads
from rtmb.spark.jobs.messages import EVERYTHING, placed
from rtmb.spark.jobs.store import CHECKPOINT, Archive
from rtmb.spark.jobs.streams import Job, triggered


def start(
    archive: Archive,
    broker: Broker,
    subject: str = EVERYTHING,
    *,
    starting: str = "earliest",
    ending: str | None = None,
    every: str = "10 seconds",
    once: bool = False,
    on_data_loss: str = "record",
    on_epoch_change: str = "earliest",
    payloads: Payloads = ANY,
) -> StreamingQuery:
    """Begin, or go on where the last run stopped; `once` ends when all that is there is archived.

    A restarted broker is begun again at its earliest message, and what was lost is recorded as a
    gap: an archive that stops would lose more.
    """
    archive.begin(subject)
    messages = broker.stream(
        archive.spark,
        payloads,
        subject=subject,
        startingPosition=starting,
        endingPosition=ending,
        onDataLoss=on_data_loss,
        onEpochChange=on_epoch_change,
        consumer=f"archive {archive.name}",
    )
    return write(archive, messages, every=every, once=once)


def write(
    archive: Archive, messages: DataFrame, *, every: str = "10 seconds", once: bool = False
) -> StreamingQuery:
    """Write a stream of messages into an archive."""
    writer = (
        placed(messages)
        .writeStream.queryName(f"archive {archive.name}")
        .option("checkpointLocation", archive.full(CHECKPOINT))
    )
    return archive.start(triggered(writer, every, once))


def job(
    archive: Archive,
    query: StreamingQuery,
    *,
    compact_every: float = 600.0,
    margin: timedelta = timedelta(minutes=5),
    keep: timedelta = timedelta(hours=1),
) -> Job:
    """The stream and what tidies up beside it, every so many seconds and at the end; never with 0.
    To be watched with `rtmb.spark.jobs.streams.watch`."""
    tidied, compacted = time.monotonic(), 0

    def tend(final: bool) -> str:
        nonlocal tidied, compacted
        if compact_every and (final or time.monotonic() - tidied >= compact_every):
            compacted += archive.compact(margin)
            archive.clean(keep)
            tidied = time.monotonic()
        return f"{compacted:,} small files compacted" if compacted else ""

    return Job([query], tend)
