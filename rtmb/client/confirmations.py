"""What a server has confirmed: who waits for which PONG, and whether something may be missing."""

from __future__ import annotations

from collections import deque

from twisted.internet.defer import Deferred

from rtmb.client.errors import ConnectionClosed, Disconnected


class Confirmations:
    """A PONG confirms all that was sent before its PING."""

    def __init__(self) -> None:
        #: PINGs on their way: who waits, and the bytes of publications that went before.
        self._pings: deque[tuple[Deferred[None] | None, int]] = deque()
        #: Who asked while there was no connection to send a PING on.
        self._later: list[Deferred[None]] = []
        #: Bytes of publications that a server has confirmed, or that are given up.
        self._confirmed = 0
        self._in_doubt = False
        #: PINGs of the client's own that were not answered yet.
        self.unanswered = 0

    def wait_for_connection(self, waiting: Deferred[None]) -> None:
        self._later.append(waiting)

    def connected(self) -> list[Deferred[None]]:
        """There is a connection: those who waited for one, each for a PING now."""
        self.unanswered = 0
        later, self._later = self._later, []
        return later

    def sent(self, total: int, waiting: Deferred[None] | None) -> None:
        """A PING is on its way behind so many bytes of publications."""
        self._pings.append((waiting, total))

    def pong(self) -> None:
        self.unanswered = 0
        if self._pings:
            waiting, self._confirmed = self._pings.popleft()
            if waiting is not None and not waiting.called:
                waiting.callback(None)

    def lost(self, handed: int) -> None:
        """The connection is gone, after so many bytes were handed to it and those before it."""
        self._in_doubt = self._in_doubt or handed > self._confirmed
        self._confirmed = handed
        pings, self._pings = self._pings, deque()
        for waiting, _ in pings:
            if waiting is not None and not waiting.called:
                self._in_doubt = False  # this one tells
                waiting.errback(Disconnected("the connection was lost, and maybe messages with it"))

    def in_doubt(self) -> bool:
        """Whether something that was published may be missing and nobody was told: once."""
        in_doubt, self._in_doubt = self._in_doubt, False
        return in_doubt

    def fail(self, why: ConnectionClosed) -> None:
        """There will be no more connections."""
        for waiting in self.connected():
            if not waiting.called:
                waiting.errback(why)
