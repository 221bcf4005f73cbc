"""The journal: a bounded ring of what was published, in order, each message with a number.

It is what Spark reads. Numbers begin with 1 and belong to an *epoch*, another at each start of the
broker, so that a position of an earlier life is never taken for one of this. What was overwritten
is told as lost. Knows no sockets.

Messages are kept in segments, as lists of what was there anyway: keeping one costs some appends.
Only when a full segment is first read it becomes columns of bytes, which also hold less memory;
from then on reading it is slicing. The ring forgets a segment at a time.
"""

from __future__ import annotations

import secrets
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from rtmb import frames
from rtmb.message import Message
from rtmb.subjects import hears, matches
from rtmb.wire import to_wire

#: What a kept message costs beyond its payload, rounded up: as a `Message`, as the bytes of the
#: text door, and in columns.
MESSAGE_COST = 320
TAIL_COST = 100
COLUMN_COST = 48
#: A segment is full at this many messages or bytes; in a small journal at a part of it.
SEGMENT_MESSAGES = 8192
SEGMENT_BYTES = 4 << 20
#: How many subjects are remembered as wanted or not.
_KNOWN_SUBJECTS = 65_536
#: Once the ring is so full, a lease in its oldest fifth is about to lose messages.
_NEARLY_FULL = 0.8
_OLDEST = 0.2
#: Consumers that may hold a lease at once: a bound, not a goal.
MOST_LEASES = 1000
#: Ids of published messages that are remembered: some 150 bytes each.
MOST_REPEATS = 1_000_000
#: The payload of one answer, about: enough for Arrow, little enough to be sent in a moment.
ANSWER_BYTES = 8 << 20


class Selection:
    """Which subjects someone asked for, less those that they may not see."""

    def __init__(self, patterns: Iterable[str] = (">",), deny: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self.deny = tuple(deny)
        self._known: dict[str, bool] = {}

    def __contains__(self, subject: str) -> bool:
        found = self._known.get(subject)
        if found is None:
            found = any(hears(p, subject) for p in self.patterns)
            found = found and not any(matches(p, subject) for p in self.deny)
            if len(self._known) >= _KNOWN_SUBJECTS:
                self._known.clear()
            self._known[subject] = found
        return found


class Columns:
    """Messages as columns of bytes, as `rtmb.frames` writes them."""

    __slots__ = (
        "data", "doors", "first", "headers", "known_doors", "known_subjects", "replies", "seqs",
        "subjects", "times",
    )  # fmt: skip

    def __init__(
        self,
        seqs: Sequence[int],
        subjects: list[str],
        times: list[float],
        doors: list[str],
        bodies: list[bytes | Message],
    ) -> None:
        self.seqs = seqs
        self.times = array("q", [int(time * 1_000_000) for time in times])
        self.known_subjects, self.subjects = _numbered(subjects)
        self.known_doors, self.doors = _numbered(doors)
        data: list[bytes] = []
        replies: dict[int, bytes] = {}
        headers: dict[int, bytes] = {}
        for row, body in enumerate(bodies):
            if isinstance(body, bytes):
                eol = body.index(b"\n")
                data.append(body[eol + 1 : -2])
                space = body.find(b" ", 0, eol)
                if space >= 0:
                    replies[row] = body[:space]
                continue
            data.append(body.payload)
            if body.reply is not None:
                replies[row] = to_wire(body.reply)
            if body.headers is not None:
                headers[row] = body.headers
        self.data = Texts(data)
        self.replies = replies
        self.headers = headers

    @property
    def cost(self) -> int:
        """The memory it holds, on the generous side."""
        sparse = sum(map(len, self.replies.values())) + sum(map(len, self.headers.values()))
        rare = (len(self.replies) + len(self.headers)) * TAIL_COST
        return len(self.data.whole) + len(self.times) * COLUMN_COST + sparse + rare

    def frame(self, rows: Sequence[int], headers: bool) -> list[frames.Buffer]:
        """A frame of some of the rows, in order."""
        alone = isinstance(rows, range)
        low, high = (rows[0], rows[-1] + 1) if rows else (0, 0)

        def pick(column: Sequence[int]) -> Iterable[int]:
            return column[low:high] if alone else [column[row] for row in rows]

        names, numbers = self.known_subjects, pick(self.subjects)
        if len(names) > len(rows):  # name only what is there
            used = {number: i for i, number in enumerate(dict.fromkeys(numbers))}
            names, numbers = [names[n] for n in used], [used[n] for n in numbers]
        columns: list[frames.Buffer] = [
            frames.numbers("q", pick(self.seqs)),
            frames.numbers("q", pick(self.times)),
            frames.numbers("i", numbers),
            frames.numbers("i", pick(self.doors)),
            *self.data.columns(rows),
            *_rare(self.replies, rows),
            *_rare(self.headers if headers else {}, rows),
        ]
        described = {"rows": len(rows), "subjects": names, "doors": self.known_doors}
        return frames.encode(described, columns)


class Texts:
    """Many bytes as one, and where each begins and the last ends."""

    __slots__ = ("starts", "whole")

    def __init__(self, texts: list[bytes]) -> None:
        self.starts = array("q", accumulate(map(len, texts), initial=0))
        self.whole = b"".join(texts)

    def columns(self, rows: Sequence[int]) -> tuple[frames.Buffer, frames.Buffer]:
        starts, whole = self.starts, self.whole
        if isinstance(rows, range):
            here = starts[rows[0] : rows[-1] + 2] if rows else starts[:1]
            begin = here[0]
            if begin:
                here = array("q", [start - begin for start in here])
            return frames.numbers("i", here), memoryview(whole)[begin : begin + here[-1]]
        texts = [whole[starts[row] : starts[row + 1]] for row in rows]
        return frames.numbers("i", accumulate(map(len, texts), initial=0)), b"".join(texts)


def _rare(texts: dict[int, bytes], rows: Sequence[int]) -> tuple[frames.Buffer, frames.Buffer]:
    """The two columns of what few messages have; both empty when none of these rows does."""
    found = [texts.get(row, b"") for row in rows] if texts else []
    if not any(found):
        return b"", b""
    return frames.numbers("i", accumulate(map(len, found), initial=0)), b"".join(found)


def _numbered(names: list[str]) -> tuple[list[str], array[int]]:
    """The different names, as text that any program can read, and which of them each one is."""
    known: dict[str, int] = {}
    which = array("i", [known.setdefault(name, len(known)) for name in names])
    return [to_wire(name).decode("utf-8", "replace") for name in known], which


class Segment:
    """Messages that follow each other."""

    __slots__ = ("bodies", "columns", "cost", "count", "doors", "first", "subjects", "times")

    def __init__(self, first: int) -> None:
        self.first = first
        self.count = 0
        self.cost = 0
        self.subjects: list[str] = []
        self.times: list[float] = []
        self.doors: list[str] = []
        #: Each a `Message`, or as the text door has it: ``[reply ]size\r\npayload\r\n``.
        self.bodies: list[bytes | Message] = []
        #: The same once it is full and was read; then the bodies are gone.
        self.columns: Columns | None = None

    @property
    def end(self) -> int:
        return self.first + self.count

    def rows(self, start: int, end: int, wanted: Selection) -> Sequence[int]:
        """Which of the messages from `start` on and before `end` are wanted; a range where all
        between two are."""
        low, high = max(0, start - self.first), min(self.count, end - self.first)
        names = self.subjects[low:high] if low or high < self.count else self.subjects
        different = set(names)
        found = {name for name in different if name in wanted}
        if len(found) == len(different):
            return range(low, high)
        return [row for row, name in enumerate(names, low) if name in found] if found else ()

    def size(self, row: int) -> int:
        """The bytes of one message, as limits count them."""
        if self.columns is not None:
            starts = self.columns.data.starts
            return starts[row + 1] - starts[row]
        body = self.bodies[row]
        return len(body) if isinstance(body, bytes) else body.size

    def pack(self) -> None:
        """Make it columns for good."""
        columns, _ = self.as_columns(range(self.count))
        shared: dict[str, str] = {}
        self.subjects = [shared.setdefault(name, name) for name in self.subjects]
        moments: dict[float, float] = {}
        self.times = [moments.setdefault(time, time) for time in self.times]
        self.doors, self.bodies, self.columns = [], [], columns
        self.cost = columns.cost

    def as_columns(self, rows: Sequence[int]) -> tuple[Columns, Sequence[int]]:
        """These rows in columns; and how they are numbered there."""
        if self.columns is not None:
            return self.columns, rows
        low, high = rows[0], rows[-1] + 1
        part = slice(low, high)
        columns = Columns(
            range(self.first + low, self.first + high),
            self.subjects[part],
            self.times[part],
            self.doors[part],
            self.bodies[part],
        )
        if isinstance(rows, range):
            return columns, range(high - low)
        return columns, [row - low for row in rows]


class Measure(NamedTuple):
    """How far a reader may go: before `end`, with so many messages that it wants."""

    end: int
    messages: int


@dataclass
class Lease:
    """A consumer's word that it still needs what is from `position` on."""

    consumer: str
    position: int
    ttl: float
    expires: float
    subjects: tuple[str, ...] = ()
    #: Whether it was told of that its position is about to be overwritten.
    warned: bool = False


class LeaseError(Exception):
    """There are `MOST_LEASES` already."""


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
        lease.warned = old is not None and old.warned
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

    def lag(self, lease: Lease) -> dict[str, int]:
        """How many messages a lease has before it, and how many it has lost for good."""
        lost = max(0, self.first - lease.position)
        return {"lag": max(0, self.next - max(lease.position, self.first)), "lost": lost}

    def stats(self) -> dict[str, Any]:
        """For people and metrics."""
        now = self._clock()
        leases = self.leases.values()
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
            "largest_lag": max((self.lag(lease)["lag"] for lease in leases), default=0),
            "leases": [
                {
                    "consumer": lease.consumer,
                    "subjects": list(lease.subjects),
                    "position": lease.position,
                    "ttl": lease.ttl,
                    "expires_in": round(lease.expires - now, 3),
                    "warned": lease.warned,
                    **self.lag(lease),
                }
                for lease in leases
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
