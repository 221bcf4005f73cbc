"""Everyone who is connected, at whatever door: their numbers, their limit, their counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rtmb.core.counters import Counters
from rtmb.interfaces import IClient


class Clients:
    """All clients of a broker by number. A connection takes a place before it becomes a client, and
    may never become one: a request by HTTP does not."""

    def __init__(self, limit: int) -> None:
        #: The most connections at once, of all doors.
        self.limit = limit
        #: Connections there are.
        self.places = 0
        #: Set once the broker is to be left: nobody joins any more.
        self.leaving = False
        self._clients: dict[int, IClient] = {}
        self._last_number = 0
        self._departed: defaultdict[str, Counters] = defaultdict(Counters)

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[IClient]:
        return iter(list(self._clients.values()))

    def get(self, number: int) -> IClient | None:
        return self._clients.get(number)

    def take_place(self) -> bool:
        """Count one more connection; False when there are too many. What was taken must be given
        back with `free_place`."""
        if self.places >= self.limit:
            return False
        self.places += 1
        return True

    def free_place(self) -> None:
        self.places -= 1

    def join(self, client: IClient) -> int:
        """Say that a client is here; returns its number."""
        self._last_number += 1
        self._clients[self._last_number] = client
        return self._last_number

    def leave(self, number: int) -> None:
        client = self._clients.pop(number, None)
        if client is not None:
            self._departed[client.door].add(client.counters)

    def count_in(self, door: str, messages: int, size: int) -> None:
        """Count what was published by a door without any client."""
        self._departed[door].in_msgs += messages
        self._departed[door].in_bytes += size

    def by_door(self) -> dict[str, Counters]:
        """Messages and bytes in and out since the start, for each door that anyone came by."""
        found: defaultdict[str, Counters] = defaultdict(Counters)
        for door, counters in self._departed.items():
            found[door].add(counters)
        for client in self._clients.values():
            found[client.door].add(client.counters)
        return dict(found)
