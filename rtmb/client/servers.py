"""The servers that a client knows: those it was told of, and those that servers name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rtmb.client.address import ServerAddress, parse_url


class ServerList:
    """Addresses in a fixed order, of which one is the present or last one."""

    def __init__(self, url: str, others: Sequence[str]) -> None:
        first = parse_url(url)
        self._addresses = [first, *(parse_url(other, first) for other in others)]
        #: Where in the list the present or last server stands.
        self._current = -1

    def all(self) -> list[ServerAddress]:
        return list(self._addresses)

    def in_turn(self) -> Iterator[ServerAddress]:
        """Each of them once, beginning behind the present one."""
        count = len(self._addresses)
        start = self._current + 1
        for index in range(start, start + count):
            yield self._addresses[index % count]

    def choose(self, address: ServerAddress) -> None:
        """This is the present one."""
        self._current = self._addresses.index(address)

    def learn(self, info: Mapping[str, Any], current: ServerAddress) -> None:
        """Add what the present server's INFO says of others."""
        urls = info.get("ws_connect_urls" if current.websocket else "connect_urls") or ()
        known = {(a.host, a.port) for a in self._addresses}
        for url in urls:
            try:
                address = parse_url(str(url), current)
            except ValueError:
                continue
            if (address.host, address.port) not in known:
                self._addresses.append(address)
