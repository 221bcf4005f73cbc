"""Streams: how often they look, and how far they are in the few numbers that people look for."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from rtmb.spark.spans import span

#: The rate at which messages come is measured over so many seconds.
_MEASURED = 30.0


def triggered(writer: DataStreamWriter, every: str, once: bool) -> DataStreamWriter:
    """A stream that looks every so often, or one that ends when it has read what is there."""
    if once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=every)


@dataclass
class Job:
    """A job at work: its streams, and what it does beside them."""

    queries: Sequence[StreamingQuery]
    #: Called about once a second, and a last time with true at the end; what there is to tell.
    tend: Callable[[bool], str] = lambda final: ""


class Progress:
    """Adds up what a query says of its batches."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self.name = query.name or "stream"
        self.batch = -1
        #: Messages taken since this run began.
        self.messages = 0
        #: Messages a second in the last batch, and how long it took.
        self.rate = 0.0
        self.seconds = 0.0
        #: Messages in the journal that are still to come, and the age of the next one; None when
        #: the source does not say.
        self.lag: int | None = None
        self.lag_seconds: float | None = None
        #: Seconds until they have come, at this rate; None when they never will.
        self.catches_up: float | None = None
        #: Whether it has come to its ending position.
        self.ended = False
        #: What its job does beside it.
        self.also = ""
        self._ends: deque[tuple[float, int]] = deque()

    def look(self) -> bool:
        """Take in what is new; whether there was anything."""
        last = self.batch
        for batch in self._query.recentProgress:
            number = int(batch["batchId"])
            if number > last:
                self.batch = number
                self.messages += int(batch["numInputRows"])
                self._take(batch)
            elif number == last:
                self._measure(batch)  # told again when nothing came
        return self.batch > last

    def _take(self, batch: Any) -> None:
        self.seconds = batch["durationMs"].get("triggerExecution", 0) / 1000
        self.rate = float(batch["processedRowsPerSecond"] or 0.0)
        self._measure(batch)

    def _measure(self, batch: Any) -> None:
        """The lag, and how fast it grows or shrinks."""
        sources = batch["sources"]
        offsets = [_Offsets(source) for source in sources]
        if not offsets or not all(o.known for o in offsets):
            return
        self.lag = sum(o.lag for o in offsets)
        self.lag_seconds = max(o.lag_seconds for o in offsets)
        self.ended = all(o.ended for o in offsets)
        now = datetime.fromisoformat(str(batch["timestamp"])).timestamp()
        self._ends.append((now, sum(o.newest for o in offsets)))
        while now - self._ends[0][0] > _MEASURED:
            self._ends.popleft()
        passed = now - self._ends[0][0]
        incoming = (self._ends[-1][1] - self._ends[0][1]) / passed if passed > 0 else 0.0
        speed = sum(o.passed for o in offsets) / self.seconds if self.seconds else 0.0
        self.catches_up = None
        if self.lag == 0:
            self.catches_up = 0.0
        elif speed > incoming:
            self.catches_up = self.lag / (speed - incoming)

    def facts(self) -> dict[str, Any]:
        """For machines."""
        return {
            "job": self.name,
            "batch": self.batch,
            "messages": self.messages,
            "rate": round(self.rate, 1),
            "seconds": self.seconds,
            "lag": self.lag,
            "lag_seconds": self.lag_seconds,
            "catches_up": None if self.catches_up is None else round(self.catches_up, 1),
            "also": self.also,
        }

    def __str__(self) -> str:
        told = f"batch {self.batch}: {self.messages:,} messages, {self.rate:,.0f}/s"
        if self.lag:
            told += f", {self.lag:,} ({span(self.lag_seconds or 0.0)}) behind, "
            told += (
                "falling further behind"
                if self.catches_up is None
                else f"caught up in {span(self.catches_up)}"
            )
        elif self.lag == 0:
            told += ", caught up"
        return f"{told}, {self.also}" if self.also else told


class _Offsets:
    """What a source says of one batch: where it began and ended, and how far that is behind."""

    def __init__(self, source: Any) -> None:
        start, end, newest = (
            _offset(source[name]) for name in ("startOffset", "endOffset", "latestOffset")
        )
        self.known = "seq" in end and "seq" in newest
        self.newest: int = newest.get("seq", 0)
        self.lag: int = newest.get("lag", max(0, self.newest - end.get("seq", 0)))
        self.lag_seconds: float = newest.get("lag_seconds", 0.0)
        self.ended: bool = newest.get("ended", False)
        #: Messages of the journal that the batch passed.
        self.passed: int = max(0, end.get("seq", 0) - start.get("seq", end.get("seq", 0)))


def _offset(offset: Any) -> dict[str, Any]:
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, dict) else {}


def watch(
    jobs: Sequence[Job],
    told: Callable[[Progress], None] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Stay with jobs until all their streams have ended or one has failed, which is raised, or
    until it is to be stopped."""
    seen = [(job, [Progress(query) for query in job.queries], job.queries) for job in jobs]
    running = {query for job in jobs for query in job.queries}
    while running and not stopped():
        next(iter(running)).awaitTermination(1)  # raises what went wrong
        ended = {query for query in running if not query.isActive}
        for query in ended:
            query.awaitTermination()
        running -= ended
        for job, all_progress, queries in seen:
            also = job.tend(not any(query in running for query in queries))
            for query, progress in zip(queries, all_progress, strict=True):
                if progress.look() or (also and also != progress.also):
                    progress.also = also or progress.also
                    told(progress)
                if progress.ended and query in running:
                    query.stop()
