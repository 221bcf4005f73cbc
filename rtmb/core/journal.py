"""The journal: a bounded ring of what was published, in order, each message with a number.

It is what Spark reads. Numbers begin with 1 and belong to an *epoch*, another at each start of the
broker, so that a position of an earlier life is never taken for one of this. What was overwritten
is told as lost. The ring forgets a segment at a time. Knows no sockets.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rtmb.codecs import columns as frames
from rtmb.core.leases import Lag, Lease, LeaseError, lag_of
from rtmb.core.message import Message
from rtmb.core.segments import MESSAGE_COST, TAIL_COST, Segment, Selection

#: A segment is full at this many messages or bytes; in a small journal at a part of it.
SEGMENT_MESSAGES = 8192
SEGMENT_BYTES = 4 << 20
#: Once the ring is so full, a lease in its oldest fifth is about to lose messages.
_NEARLY_FULL = 0.8
_OLDEST = 0.2
#: Consumers that may hold a lease at once: a bound, not a goal.
MOST_LEASES = 1000
#: Ids of published messages that are remembered: some 150 bytes each.
MOST_REPEATS = 1_000_000
#: The payload of one answer, about: enough for Arrow, little enough to be sent in a moment.
ANSWER_BYTES = 8 << 20


class Measure(NamedTuple):
    """How far a reader may go: before `end`, with so many messages that it wants."""

    end: int
    messages: int


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
        self._open = Segment(1)
        self._segments: deque[Segment] = deque([self._open])
        #: The memory held, on the generous side.
        self.held = 0
        self._leases: dict[str, Lease] = {}
        #: Called once with the next message; see `Journal.on_news`.
        self._news: Callable[[], None] | None = None
        #: Called with a lease whose messages are about to be overwritten, once a time of that.
        self.alarm: Callable[[Lease], None] = lambda lease: None

    # Where it begins and ends

    @property
    def first(self) -> int:
        """The number of the oldest message kept; that of the next when there is none."""
        return self._segments[0].first

    @property
    def next(self) -> int:
        """The number that the next message will have."""
        return self._open.first + self._open.count

    def __len__(self) -> int:
        return self.next - self.first

    def at_time(self, time: float) -> int:
        """The number of the first message kept that is not older than `time`; else the next."""
        for segment in self._segments:
            if segment.count and segment.times[-1] >= time:
                return segment.first + bisect_left(segment.times, time)
        return self.next

    # Keeping

    def wants(self, subject: str) -> bool:
        """Whether messages on `subject` are kept."""
        return subject in self._wanted

    def append(self, message: Message) -> None:
        """Keep one message."""
        segment = self._open
        segment.subjects.append(message.subject)
        segment.times.append(message.time)
        segment.doors.append(message.door)
        segment.bodies.append(message)
        self._kept(segment, 1, MESSAGE_COST + message.size)

    def extend(self, subjects: list[str], time: float, door: str, tails: list[bytes]) -> None:
        """Keep many messages of one moment, each ``[reply ]size\r\npayload\r\n``."""
        while tails:
            segment = self._open
            each = TAIL_COST + sum(map(len, tails)) // len(tails)
            room = min(self._segment_messages - segment.count, self._segment_bytes // each) or 1
            tails, now = tails[room:], tails[:room]
            n = len(now)
            segment.subjects += subjects[:n]
            subjects = subjects[n:]
            segment.times += [time] * n
            segment.doors += [door] * n
            segment.bodies += now
            self._kept(segment, n, n * TAIL_COST + sum(map(len, now)))

    def _kept(self, segment: Segment, count: int, cost: int) -> None:
        segment.count += count
        segment.cost += cost
        self.held += cost
        if segment.count >= self._segment_messages or segment.cost >= self._segment_bytes:
            self._open = Segment(segment.end)
            self._segments.append(self._open)
            self._make_room()
            if self._leases:
                self._look_at_leases()
        elif self.held > self.budget or 0 < self.limit < len(self):
            self._make_room()
        if self._news is not None:
            news, self._news = self._news, None
            news()

    def _make_room(self) -> None:
        while self.held > self.budget or 0 < self.limit < len(self):
            gone = self._segments.popleft()
            self.held -= gone.cost
            if gone is self._open:
                self._open = Segment(gone.end)
                self._segments.append(self._open)

    def on_news(self, call: Callable[[], None]) -> None:
        """Call once, from the middle of a delivery, when there is a message more. Whoever asked
        last is called."""
        self._news = call

    # Reading

    def measure(
        self, start: int, wanted: Selection, messages: int | None = None, size: int | None = None
    ) -> Measure:
        """How far to read from `start`: at most so many wanted messages and bytes of them, but one
        message at least."""
        count = total = 0
        for segment in self._segments:
            if segment.end <= start:
                continue
            rows = segment.rows(start, segment.end, wanted)
            fit = len(rows) if messages is None else min(len(rows), messages - count)
            if size is not None:
                for i in range(fit):
                    more = segment.size(rows[i])
                    if total + more > size and count + i > 0:
                        fit = i
                        break
                    total += more
            count += fit
            if fit < len(rows):
                return Measure(segment.first + rows[fit], count)
        return Measure(max(start, self.next), count)

    def read(
        self,
        start: int,
        end: int,
        wanted: Selection,
        *,
        limit: int | None = None,
        size: int = ANSWER_BYTES,
        headers: bool = True,
    ) -> tuple[int, list[frames.Buffer]]:
        """The wanted messages from `start` on and before `end`, as frames, and where to go on:
        less than `end` when it got too much for one answer. What was overwritten is not there:
        compare `start` with `first`."""
        pieces: list[frames.Buffer] = []
        left = limit if limit is not None else end - start
        for segment in self._segments:
            if segment.end <= start or segment.first >= end:
                continue
            rows = segment.rows(start, end, wanted)
            if not rows:
                continue
            if left <= 0 or size <= 0:
                return segment.first + rows[0], pieces
            if segment is not self._open and segment.columns is None:
                before = segment.cost
                segment.pack()
                self.held += segment.cost - before
            columns, numbered = segment.as_columns(rows[:left])
            frame = columns.frame(numbered, headers)
            pieces += frame
            size -= sum(map(len, frame))
            if left < len(rows):
                return segment.first + rows[left], pieces
            left -= len(rows)
        return min(end, max(start, self.next)), pieces

    # Leases

    def lease(
        self, consumer: str, position: int, ttl: float, subjects: tuple[str, ...] = ()
    ) -> Lease:
        """Take or renew a lease: `consumer` has read all before `position`."""
        old = self.leases.get(consumer)
        if old is None and len(self._leases) >= MOST_LEASES:
            raise LeaseError(f"there are {MOST_LEASES} leases already")
        lease = Lease(consumer, position, ttl, self._clock() + ttl, subjects)
        if old is not None:
            lease.warned, lease.marks = old.warned, old.marks
        lease.mark(self._clock(), self.next)
        self._leases[consumer] = lease
        self._look_at_leases()
        return lease

    def renew(self, consumer: str) -> None:
        """Its holder is still at work."""
        lease = self.leases.get(consumer)
        if lease is not None:
            lease.expires = self._clock() + lease.ttl

    def release(self, consumer: str) -> bool:
        return self._leases.pop(consumer, None) is not None

    @property
    def leases(self) -> dict[str, Lease]:
        """Those that have not expired."""
        now = self._clock()
        for name in [name for name, lease in self._leases.items() if lease.expires <= now]:
            del self._leases[name]
        return self._leases

    def _look_at_leases(self) -> None:
        kept = len(self)
        full = max(self.held / self.budget, kept / self.limit if self.limit else 0.0)
        for lease in self.leases.values():
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
        for segment in reversed(self._segments):
            if segment.first <= seq < segment.end:
                return segment.times[seq - segment.first]
        return None

    def stats(self) -> dict[str, Any]:
        """For people and metrics."""
        now = self._clock()
        lags = {lease.consumer: self.lag(lease) for lease in self.leases.values()}
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
            "consumers": len(lags),
            "largest_lag": max((lag.lag for lag in lags.values()), default=0),
            "largest_lag_seconds": max((lag.lag_seconds for lag in lags.values()), default=0.0),
            "leases": [
                {
                    "consumer": lease.consumer,
                    "subjects": list(lease.subjects),
                    "position": lease.position,
                    "ttl": lease.ttl,
                    "expires_in": round(lease.expires - now, 3),
                    "warned": lease.warned,
                    **lags[lease.consumer]._asdict(),
                }
                for lease in self._leases.values()
            ],
        }


class Repeats:
    """The ids of messages lately published, so that one sent again is known.

    Ids come in rows, ``<name>`` 0, 1, 2, …, each row published in order; of a row only the next
    number is kept. A single id is a row of one. What was not seen for `window` seconds, and at
    most twice as long, is forgotten, or earlier when there are too many."""

    def __init__(self, window: float, clock: Callable[[], float], most: int = MOST_REPEATS) -> None:
        self.window = window
        self._clock = clock
        self._most = most
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}
        self._turned = clock()
        #: Ids forgotten before their time.
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def fresh(self, name: bytes, number: int = 0) -> bool:
        """Whether this id is new; from now on it is not."""
        young = self._young
        if max(young.get(name, 0), self._old.get(name, 0)) > number:
            return False
        young[name] = number + 1
        if len(young) >= self._most // 2:
            self.forgotten += len(self._old)
            self._turn()
        return True

    def tick(self) -> None:
        """Forget what is old; called before a batch."""
        late = self._clock() - self._turned
        if late >= self.window:
            self._turn()
        if late >= 2 * self.window:
            self._turn()

    def _turn(self) -> None:
        self._old, self._young = self._young, {}
        self._turned = self._clock()
