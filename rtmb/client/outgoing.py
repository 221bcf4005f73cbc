"""What a client has said and no server has got yet: collected, sent once a turn, bounded.

It outlives connections. While there is none, publications wait here for the next. What was handed
to a connection that is then lost is lost with it: it may or may not have arrived.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IPullProducer
from twisted.internet.tcp import Connection as TCPConnection
from zope.interface import implementer

#: Publications are joined to pieces of this size, and sent when there is a piece
#: (benchmarks/client.py, publish).
PIECE = 64 * 1024
#: Below this, `ready` lets a publisher go on.
LOW_WATER = 1 << 20


@implementer(IPullProducer)
class Outgoing:
    """Bytes for whatever transport there is, at most `limit` of them waiting."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: Publications of this turn, not joined yet, and their bytes. `Client.publish` adds to them
        #: without ceremony (benchmarks/client.py, publish).
        self.batch: list[bytes] = []
        self.batch_size = 0
        #: Bytes that wait in pieces.
        self.joined = 0
        #: Pieces that wait, and whether each is publications, fit for another connection.
        self._pieces: deque[tuple[bytes, bool]] = deque()
        self._transport: Any = None
        self._direct = False
        self._producing = False
        self._ready: list[Deferred[None]] = []
        #: Bytes of publications that were joined to pieces, ever.
        self._published = 0

    @property
    def size(self) -> int:
        """All bytes that wait here."""
        return self.joined + self.batch_size

    @property
    def total(self) -> int:
        """Bytes of all publications there ever were."""
        return self._published + self.batch_size

    # Connections

    def attach(self, transport: Any) -> None:
        """Send to this one from now on."""
        self._transport = transport
        self._direct = isinstance(transport, TCPConnection) and not transport.TLS

    def detach(self) -> None:
        """The connection is gone: keep what another may be told."""
        self._seal()
        self._transport, self._producing = None, False
        self._pieces = deque(piece for piece in self._pieces if piece[1])
        self.joined = sum(len(piece) for piece, _ in self._pieces)

    # Collecting

    def say(self, data: bytes, *, first: bool = False) -> None:
        """Add what only this connection should hear, in order, or before all that waits."""
        self._seal()
        self.joined += len(data)
        if first:
            self._pieces.appendleft((data, False))
        else:
            self._pieces.append((data, False))

    def _seal(self) -> None:
        if self.batch:
            self._pieces.append((b"".join(self.batch), True))
            self.batch.clear()
            self.joined += self.batch_size
            self._published += self.batch_size
            self.batch_size = 0

    # Sending

    def flush(self) -> None:
        """Send what there is, as far as the transport takes it."""
        self._seal()
        if self._transport is None or self._producing:
            return
        if self._direct:
            self._send()
        if self._pieces and self._transport is not None:
            self._producing = True
            self._transport.registerProducer(self, False)
        self._check_ready()

    def _take(self) -> bytes:
        pieces = self._pieces
        taken = [pieces.popleft()[0]]
        size = len(taken[0])
        while pieces and size + len(pieces[0][0]) <= PIECE:
            taken.append(pieces.popleft()[0])
            size += len(taken[-1])
        self.joined -= size
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def _send(self) -> None:
        """Send straight on the socket, until it takes no more."""
        while self._pieces:
            data = self._take()
            sent = self._transport.writeSomeData(data)
            if not isinstance(sent, int):  # the connection is lost; the reactor will say so
                self._transport = None
                return
            if sent < len(data):
                rest = data[sent:]
                self._pieces.appendleft((rest, False))  # the middle of something: for this one only
                self.joined += len(rest)
                return

    def resumeProducing(self) -> None:
        """The transport has sent all it had."""
        transport = self._transport
        if self._direct and transport is not None:
            self._send()
        if self._pieces and self._transport is not None:
            transport.write(self._take())
        elif self._producing:
            self._producing = False
            transport.unregisterProducer()
        self._check_ready()

    def stopProducing(self) -> None:
        """The connection is gone; `detach` follows."""

    def ready(self) -> Deferred[None]:
        """Fires when little waits."""
        if self.size < LOW_WATER:
            return succeed(None)
        ready: Deferred[None] = Deferred()
        self._ready.append(ready)
        return ready

    def _check_ready(self) -> None:
        if self._ready and self.size < LOW_WATER:
            ready, self._ready = self._ready, []
            for one in ready:
                one.callback(None)

    def fail(self, error: Exception) -> None:
        """Nothing will be sent any more."""
        self._pieces.clear()
        self.batch.clear()
        self.joined = self.batch_size = 0
        ready, self._ready = self._ready, []
        for one in ready:
            one.errback(error)
