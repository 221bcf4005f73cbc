"""The ids of messages lately published, so that one sent again is known."""

from __future__ import annotations

from collections.abc import Callable

#: Ids that are remembered, of all users: some 150 bytes each.
MOST_IDS = 1_000_000


class Ids:
    """The ids of one user.

    Ids come in rows, ``<name>`` 0, 1, 2, …, each row published in order; of a row only the next
    number is kept. A single id is a row of one."""

    __slots__ = ("_old", "_turned", "_young")

    def __init__(self, now: float) -> None:
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}
        self._turned = now

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def fresh(self, name: bytes, number: int = 0) -> bool:
        """Whether this id is new; from now on it is not."""
        young = self._young
        if max(young.get(name, 0), self._old.get(name, 0)) > number:
            return False
        young[name] = number + 1
        return True

    def tick(self, now: float, window: float) -> None:
        """Forget what was not seen for `window` seconds, or at most twice as long."""
        late = now - self._turned
        if late >= window:
            self.turn(now)
        if late >= 2 * window:
            self.turn(now)

    def turn(self, now: float) -> int:
        """Forget the older half; how many that were."""
        gone = len(self._old)
        self._old, self._young = self._young, {}
        self._turned = now
        return gone


class Dedup:
    """The ids of all users, each user's by themselves: nobody can make another's messages
    duplicates. When they are too many, whoever has most forgets some before their time."""

    def __init__(self, window: float, clock: Callable[[], float], most: int = MOST_IDS) -> None:
        self.window = window
        self._clock = clock
        self._most = most
        self._users: dict[str, Ids] = {}
        #: Ids forgotten before their time.
        self.forgotten = 0

    def __len__(self) -> int:
        return sum(map(len, self._users.values()))

    def of(self, user: str, coming: int) -> Ids:
        """The ids of a user who is about to publish so many: what is old is forgotten first, and
        what there is no room for."""
        now = self._clock()
        for ids in self._users.values():
            ids.tick(now, self.window)
        self._users = {name: ids for name, ids in self._users.items() if len(ids)}
        found = self._users.setdefault(user, Ids(now))
        while (kept := len(self)) and kept + coming > self._most:
            greediest = max(self._users.values(), key=len)
            self.forgotten += greediest.turn(now)
        return found
