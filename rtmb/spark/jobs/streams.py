"""Streams: how often they look, and how far they are in the few numbers that people look for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter


def triggered(writer: DataStreamWriter, every: str, once: bool) -> DataStreamWriter:
    """A stream that looks every so often, or one that ends when it has read what is there."""
    if once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=every)


class Progress:
    """Adds up what a query says of its batches."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self.batch = -1
        #: Messages taken since this run began.
        self.messages = 0
        #: Messages a second in the last batch, and how long it took.
        self.rate = 0.0
        self.seconds = 0.0
        #: Messages in the journal that are still to come; None when the source does not say.
        self.behind: int | None = None
        #: Small files that were rewritten.
        self.compacted = 0

    def look(self) -> bool:
        """Take in what is new; whether there was anything."""
        last = self.batch
        for batch in self._query.recentProgress:
            number = int(batch["batchId"])
            if number <= last:
                continue
            self.batch = number
            self.messages += int(batch["numInputRows"])
            self.seconds = batch["durationMs"].get("triggerExecution", 0) / 1000
            self.rate = float(batch["processedRowsPerSecond"] or 0.0)
            self.behind = _behind(batch["sources"])
        return self.batch > last

    def __str__(self) -> str:
        told = f"batch {self.batch}: {self.messages:,} messages, {self.rate:,.0f}/s"
        if self.behind is not None:
            told += f", {self.behind:,} to come"
        if self.compacted:
            told += f", {self.compacted:,} small files compacted"
        return told


def _behind(sources: list[Any]) -> int | None:
    """How far the end of a batch is from the newest message, in sequence numbers."""
    total = 0
    for source in sources:
        end, newest = _offset(source["endOffset"]), _offset(source["latestOffset"])
        if end is None or newest is None:
            return None
        total += max(0, newest - end)
    return total


def _offset(offset: Any) -> int | None:
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    seq = offset.get("seq") if isinstance(offset, dict) else None
    return seq if isinstance(seq, int) else None


def watch(
    queries: Sequence[StreamingQuery], told: Callable[[str], Callable[[Progress], None]]
) -> None:
    """Stay with some streams until all have ended, or one has failed, which is raised."""
    progress = {query: Progress(query) for query in queries}
    tells = {query: told(query.name) for query in queries}
    running = list(queries)
    while running:
        ended = [query for query in running if query.awaitTermination(1)]
        for query in running:
            if progress[query].look():
                tells[query](progress[query])
        running = [query for query in running if query not in ended]
