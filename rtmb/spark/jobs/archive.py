"""The archive job: subjects to Parquet, each message once; closed hours become few files."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from rtmb.spark.jobs.broker import Broker
from rtmb.spark.jobs.messages import EVERYTHING, PARTITIONS, placed
from rtmb.spark.jobs.store import CHECKPOINT, LIVE, Archive
from rtmb.spark.jobs.streams import Progress, triggered


def start(
    archive: Archive,
    broker: Broker,
    subject: str = EVERYTHING,
    *,
    starting: str = "earliest",
    every: str = "10 seconds",
    once: bool = False,
    on_data_loss: str = "record",
    on_epoch_change: str = "earliest",
) -> StreamingQuery:
    """Begin, or go on where the last run stopped; `once` ends when all that is there is archived.

    A restarted broker is begun again at its earliest message, and what was lost is recorded as a
    gap: an archive that stops would lose more.
    """
    archive.begin(subject)
    messages = broker.stream(
        archive.spark,
        subject=subject,
        startingPosition=starting,
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
        .writeStream.queryName("archive")
        .format("parquet")
        .partitionBy(*PARTITIONS)
        .option("path", archive.full(LIVE))
        .option("checkpointLocation", archive.full(CHECKPOINT))
    )
    return triggered(writer, every, once).start()


def watch(
    archive: Archive,
    query: StreamingQuery,
    *,
    told: Callable[[Progress], None] = lambda progress: None,
    compact_every: float = 600.0,
    margin: timedelta = timedelta(minutes=5),
    keep: timedelta = timedelta(hours=1),
) -> None:
    """Stay with the stream until it ends: tell of its progress, and tidy up every so often (never
    with 0). A failure of the stream is raised."""
    progress = Progress(query)
    tidied = time.monotonic()
    while not query.awaitTermination(1):
        if progress.look():
            told(progress)
        if compact_every and time.monotonic() - tidied >= compact_every:
            progress.compacted += archive.compact(margin)
            archive.clean(keep)
            tidied = time.monotonic()
    if progress.look():
        told(progress)
    if compact_every:
        progress.compacted += archive.compact(margin)
        archive.clean(keep)
        told(progress)
