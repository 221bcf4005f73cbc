"""The journal: a bounded ring of what was published, in order, each message with a number.

It is what Spark reads. Numbers begin with 1 and belong to an *epoch*, another at each start of the
broker, so that a position of an earlier life is never taken for one of this. What was overwritten
is told as lost. The ring forgets a segment at a time. Knows no sockets.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, cast

from rtmb.core.journal_writer import Writer
from rtmb.core.leases import Lag, Lease, Leases, lag_of
from rtmb.core.segments import Excerpt, Segment, Selection

#: A segment is full at this many messages or bytes; in a small journal at a part of it. Each step
#: of reading takes in one segment at most, so this bounds how long a step takes.
SEGMENT_MESSAGES = 4096
SEGMENT_BYTES = 4 << 20
#: Once the ring is so full, a lease in its oldest fifth is about to lose messages.
_NEARLY_FULL = 0.8
_OLDEST = 0.2

_first = attrgetter("first")


class OverwrittenError(Exception):
    """The ring was faster than a reader, which still wanted the messages from `position` on."""

    def __init__(self, position: int, first: int) -> None:
        super().__init__(f"messages {position} to {first - 1} were overwritten")
        self.position = position
        self.first = first


class Journal:
    """The ring, at most `budget` bytes of it and, unless 0, at most `messages` messages."""

    def __init__(
        self,
        patterns: Iterable[str],
        clock: Callable[[], float],
        *,
        budget: int = 256 << 20,
        messages: int = 0,
    ) -> None:
        self.epoch = secrets.token_hex(8)
        self.patterns = tuple(patterns)
        self.budget = budget
        self.limit = messages
        self._clock = clock
        self._wanted = Selection(self.patterns)
        self._segment_bytes = max(1, min(SEGMENT_BYTES, budget // 64))
        self._segment_messages = SEGMENT_MESSAGES
        if messages:
            self._segment_messages = max(1, min(SEGMENT_MESSAGES, messages // 16))
        self._segments: deque[Segment] = deque([Segment(1)])
        self.writer = Writer(self._segments[0], self._full)
        #: Keep one message.
        self.append = self.writer.append
        self.on_news = self.writer.on_news
        #: The memory held by all segments but the open one.
        self._held = 0
        self.leases = Leases(clock)
        #: Called with a lease whose messages are about to be overwritten, once a time of that.
        self.alarm: Callable[[Lease], None] = lambda lease: None
        self._make_room()

    @property
    def _open(self) -> Segment:
        """The segment that is written into."""
        return cast(Segment, self.writer.lists)

    def _begin(self, segment: Segment) -> None:
        """Write into another segment from now on."""
        self._segments.append(segment)
        self.writer.lists = segment

    # Where it begins and ends

    @property
    def first(self) -> int:
        """The number of the oldest message kept; that of the next when there is none."""
        return self._segments[0].first

    @property
    def next(self) -> int:
        """The number that the next message will have."""
        return self._open.first + len(self._open.subjects)

    def __len__(self) -> int:
        return self.next - self.first

    @property
    def held(self) -> int:
        """The memory held, on the generous side."""
        return self._held + self._open.cost

    def at_time(self, time: float) -> int:
        """The number of the first message kept that is not older than `time`; else the next."""
        for segment in self._segments:
            if segment.count and segment.newest >= time:
                return segment.at_time(time)
        return self.next

    # Keeping

    def wants(self, subject: str) -> bool:
        """Whether messages on `subject` are kept."""
        return subject in self._wanted

    def _full(self) -> None:
        """The open segment has had the room that there was for it."""
        full = self._open
        if full.count >= self._segment_messages or full.cost >= self._segment_bytes:
            self._held += full.cost
            self._begin(Segment(full.end))
            self._make_room()
            if self.leases:
                self._look_at_leases()
        else:
            self._make_room()

    def _make_room(self) -> None:
        """Forget what there is no room for, and see how much is left."""
        while self.held > self.budget or 0 < self.limit < len(self):
            gone = self._segments.popleft()
            if gone is self._open:
                self._begin(Segment(gone.end))
            else:
                self._held -= gone.cost
        self.writer.room_messages = self._segment_messages
        if self.limit:
            others = len(self) - self._open.count
            self.writer.room_messages = min(self._segment_messages, self.limit - others + 1)
        self.writer.room_bytes = min(self._segment_bytes, self.budget - self._held + 1)

    # Reading

    def segment(self, position: int) -> Segment:
        """The segment with the message of this number, which must be there."""
        if position < self.first:
            raise OverwrittenError(position, self.first)
        return self._segments[bisect_right(self._segments, position, key=_first) - 1]

    def read(
        self, start: int, end: int, wanted: Selection, *, limit: int | None = None
    ) -> Iterator[Excerpt | None]:
        """The wanted messages from `start` on and before `end`, in steps; a step in which there
        was none is None. What was overwritten before the first step is not there: compare `start`
        with `first`. What is overwritten after it raises an `OverwrittenError`."""
        position, end = max(start, self.first), min(end, self.next)
        left = end - start if limit is None else limit
        while position < end and left > 0:
            segment = self.segment(position)
            rows = segment.rows(position, end, wanted)[:left]
            position = segment.end
            left -= len(rows)
            yield self._batch(segment, rows) if rows else None

    def _batch(self, segment: Segment, rows: Sequence[int]) -> Excerpt:
        if segment is not self._open and segment.columns is None:
            before = segment.cost
            segment.pack()
            self._held += segment.cost - before
            self._make_room()
        return segment.read(rows)

    # Leases

    def lease(
        self,
        consumer: str,
        position: int,
        ttl: float,
        subjects: tuple[str, ...] = (),
        user: str = "",
    ) -> Lease:
        """Take or renew a lease: `consumer` has read all before `position`."""
        lease = self.leases.take(consumer, position, ttl, self.next, subjects, user)
        self._look_at_leases()
        return lease

    def _look_at_leases(self) -> None:
        kept = len(self)
        full = max(self.held / self.budget, kept / self.limit if self.limit else 0.0)
        for lease in self.leases:
            above = lease.position - self.first
            if above >= 2 * _OLDEST * kept:
                lease.warned = False
            elif full >= _NEARLY_FULL and above < _OLDEST * kept and not lease.warned:
                lease.warned = True
                self.alarm(lease)

    # Telling

    def lag(self, lease: Lease) -> Lag:
        """How far a consumer is behind, and when it would catch up or lose messages."""
        at = max(lease.position, self.first)
        return lag_of(lease, self._clock(), self.first, self.next, self._room(), self._written(at))

    def _room(self) -> float:
        """Messages that still fit in, about, before others make room."""
        kept = len(self)
        room = (self.budget - self.held) / max(1.0, self.held / kept) if kept else float("inf")
        return max(0.0, min(room, self.limit - kept) if self.limit else room)

    def _written(self, seq: int) -> float | None:
        """The time of a message."""
        return self.segment(seq).time(seq) if self.first <= seq < self.next else None

    def stats(self) -> dict[str, Any]:
        """For people and metrics."""
        now = self._clock()
        leases = [(lease, self.lag(lease)) for lease in self.leases]
        return {
            "epoch": self.epoch,
            "patterns": list(self.patterns),
            "first": self.first,
            "next": self.next,
            "messages": len(self),
            "bytes": self.held,
            "max_bytes": self.budget,
            "max_messages": self.limit,
            "overwritten": self.first - 1,
            "consumers": len(leases),
            "largest_lag": max((lag.lag for _, lag in leases), default=0),
            "largest_lag_seconds": max((lag.lag_seconds for _, lag in leases), default=0.0),
            "leases": [
                {
                    "consumer": lease.consumer,
                    "user": lease.user,
                    "subjects": list(lease.subjects),
                    "position": lease.position,
                    "ttl": lease.ttl,
                    "expires_in": round(lease.expires - now, 3),
                    "warned": lease.warned,
                    "dead_letters": lease.dead_letters,
                    **lag._asdict(),
                }
                for lease, lag in leases
            ],
        }


class Measure:
    """How far a reader may go from a position: at most so many wanted messages and bytes of them,
    but one message at least. It is found out in steps, and goes on when there is more."""

    __slots__ = ("_journal", "_most", "_most_bytes", "_wanted", "bytes", "end", "full", "messages")

    def __init__(
        self,
        journal: Journal,
        start: int,
        wanted: Selection,
        messages: int | None = None,
        size: int | None = None,
    ) -> None:
        self._journal = journal
        self._wanted = wanted
        self._most, self._most_bytes = messages, size
        #: The reader may go on before here, where there are so many messages and bytes for it.
        self.end = start
        self.messages = self.bytes = 0
        #: Whether it is a limit that ends it, not the journal.
        self.full = False

    def step(self) -> bool:
        """Look at one segment more; False when there is nothing more to look at."""
        self.end = max(self.end, self._journal.first)
        if self.full or self.end >= self._journal.next:
            return False
        segment = self._journal.segment(self.end)
        rows = segment.rows(self.end, segment.end, self._wanted)
        fit = len(rows) if self._most is None else min(len(rows), self._most - self.messages)
        if self._most_bytes is not None:
            for i in range(fit):
                more = segment.size(rows[i])
                if self.bytes + more > self._most_bytes and self.messages + i > 0:
                    fit = i
                    break
                self.bytes += more
        self.messages += fit
        self.full = fit < len(rows)
        self.end = segment.first + rows[fit] if self.full else segment.end
        return True
