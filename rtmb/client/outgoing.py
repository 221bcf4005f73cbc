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
        #: All bytes that wait here, the batch included.
        self.size = 0
        #: Bytes of all publications there ever were.
        self.total = 0
        #: Publications of this turn, not joined yet.
        self.batch: list[bytes] = []
        self._batch_size = 0
        #: Pieces that wait, and whether each is publications, fit for another connection.
        self._pieces: deque[tuple[bytes, bool]] = deque()
        self._transport: Any = None
        self._direct = False
        self._producing = False
        self._ready: list[Deferred[None]] = []

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
        self.size = sum(len(piece) for piece, _ in self._pieces)

    # Collecting

    def publish(self, data: bytes) -> bool:
        """Add a publication; whether there is enough to send at once."""
        self.batch.append(data)
        size = len(data)
        self.size += size
        self.total += size
        self._batch_size += size
        return self._batch_size >= PIECE

    def say(self, data: bytes, *, first: bool = False) -> None:
        """Add what only this connection should hear, in order, or before all that waits."""
        self._seal()
        self.size += len(data)
        if first:
            self._pieces.appendleft((data, False))
        else:
            self._pieces.append((data, False))

    def _seal(self) -> None:
        if self.batch:
            self._pieces.append((b"".join(self.batch), True))
            self.batch.clear()
            self._batch_size = 0

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

    def _take(self) -> bytes:
        pieces = self._pieces
        taken = [pieces.popleft()[0]]
        size = len(taken[0])
        while pieces and size + len(pieces[0][0]) <= PIECE:
            taken.append(pieces.popleft()[0])
            size += len(taken[-1])
        self.size -= size
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
                self.size += len(rest)
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
        if self._ready and self.size < LOW_WATER:
            self._let_go_on()

    def stopProducing(self) -> None:
        """The connection is gone; `detach` follows."""

    def ready(self) -> Deferred[None]:
        """Fires when little waits."""
        if self.size < LOW_WATER:
            return succeed(None)
        ready: Deferred[None] = Deferred()
        self._ready.append(ready)
        return ready

    def _let_go_on(self) -> None:
        ready, self._ready = self._ready, []
        for one in ready:
            one.callback(None)

    def fail(self, error: Exception) -> None:
        """Nothing will be sent any more."""
        self._pieces.clear()
        self.batch.clear()
        self.size = self._batch_size = 0
        ready, self._ready = self._ready, []
        for one in ready:
            one.errback(error)
