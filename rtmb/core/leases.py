"""Leases: how far each consumer of the journal has read, how fast, and when it would lose
messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

#: Consumers that may hold a lease at once: a bound, not a goal.
MOST_LEASES = 1000
#: Speeds are measured over so many seconds at least, and about twice as many at most.
_MEASURED = 5.0


class LeaseError(Exception):
    """There are `MOST_LEASES` already."""


class Mark(NamedTuple):
    """Where a consumer and the journal's end were at one moment."""

    time: float
    position: int
    next: int


class Speeds(NamedTuple):
    """Messages a second: those that a consumer passes, and those that come."""

    taken: float
    incoming: float


@dataclass
class Lease:
    """A consumer's word that it still needs what is from `position` on."""

    consumer: str
    position: int
    ttl: float
    expires: float
    subjects: tuple[str, ...] = ()
    #: Whose it is: nobody else's consumer of the same name.
    user: str = ""
    #: Whether it was told of that its position is about to be overwritten.
    warned: bool = False
    #: Messages that it could not use, and published as dead letters.
    dead_letters: int = 0
    #: Where it was; the older one is what speeds are measured from.
    marks: list[Mark] = field(default_factory=list)

    def mark(self, now: float, next_number: int) -> None:
        """Remember where it is, if the newest mark has grown old."""
        if not self.marks or now - self.marks[-1].time >= _MEASURED:
            self.marks = [*self.marks[-1:], Mark(now, self.position, next_number)]

    def speeds(self, now: float, next_number: int) -> Speeds | None:
        """Of the last seconds; None when it has not been here for long enough to tell."""
        if not self.marks or now - self.marks[0].time < 1.0:
            return None
        since = self.marks[0]
        passed = now - since.time
        taken = max(0, self.position - since.position)
        return Speeds(taken / passed, (next_number - since.next) / passed)


class Leases:
    """Those that have not expired."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._leases: dict[tuple[str, str], Lease] = {}

    def __iter__(self) -> Iterator[Lease]:
        now = self._clock()
        for key in [key for key, lease in self._leases.items() if lease.expires <= now]:
            del self._leases[key]
        return iter(list(self._leases.values()))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def take(
        self,
        consumer: str,
        position: int,
        ttl: float,
        next_number: int,
        subjects: tuple[str, ...] = (),
        user: str = "",
    ) -> Lease:
        """Take or renew one: `consumer` has read all before `position` of a journal that goes on
        at `next_number`."""
        key, now = (user, consumer), self._clock()
        old = self._leases.get(key)
        if old is None and len(self) >= MOST_LEASES:
            raise LeaseError(f"there are {MOST_LEASES} leases already")
        lease = Lease(consumer, position, ttl, now + ttl, subjects, user)
        if old is not None:
            lease.warned, lease.marks = old.warned, old.marks
            lease.dead_letters = old.dead_letters
        lease.mark(now, next_number)
        self._leases[key] = lease
        return lease

    def renew(self, consumer: str, user: str = "") -> None:
        """Its holder is still at work."""
        lease = self._leases.get((user, consumer))
        if lease is not None and lease.expires > self._clock():
            lease.expires = self._clock() + lease.ttl

    def count_dead_letters(self, consumer: str, user: str, count: int) -> None:
        lease = self._leases.get((user, consumer))
        if lease is not None:
            lease.dead_letters += count

    def release(self, consumer: str, user: str = "") -> bool:
        return self._leases.pop((user, consumer), None) is not None


class Lag(NamedTuple):
    """How far a consumer is behind."""

    #: Messages that it has still to read, and that were overwritten before it could.
    lag: int
    lost: int
    #: How old the next message that it will read is, in seconds; 0 when it has read all.
    lag_seconds: float
    #: Messages a second that it passes, and that come; None when it is too early to tell.
    taken: float | None
    incoming: float | None
    #: Seconds until it has read all, at these speeds; None when it never will, or nobody knows.
    catches_up: float | None
    #: Seconds until messages are overwritten that it has not read, at these speeds; None when
    #: they will not be.
    time_left: float | None


def lag_of(
    lease: Lease, now: float, first: int, next_number: int, room: float, written: float | None
) -> Lag:
    """The lag of a lease in a journal from `first` to `next_number` that has room for about so
    many more messages; `written` is the time of the message at its position."""
    behind = max(0, next_number - max(lease.position, first))
    old = max(0.0, now - written) if behind and written is not None else 0.0
    speeds = lease.speeds(now, next_number)
    catches_up = time_left = None
    if behind == 0:
        catches_up = 0.0
    if speeds is not None:
        gain = speeds.taken - speeds.incoming
        if behind and gain > 0:
            catches_up = behind / gain
        elif gain < 0:
            time_left = max(0.0, (lease.position - first + room) / -gain)
    return Lag(
        behind,
        max(0, first - lease.position),
        round(old, 3),
        None if speeds is None else round(speeds.taken, 1),
        None if speeds is None else round(speeds.incoming, 1),
        None if catches_up is None else round(catches_up, 1),
        None if time_left is None else round(time_left, 1),
    )
