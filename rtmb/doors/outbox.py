"""What is on its way out to one client: collected during a batch, sent once, bounded.

During a batch messages are collected in `Outbox.batch`. When nothing waits before them, `flush`
sends them from there straight on the socket (benchmarks: 1→1, latency); what that does not take is
copied and waits here. The transport gets it piece by piece, as a pull producer gives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IPullProducer
from twisted.internet.tcp import Connection
from zope.interface import implementer

from rtmb.core.batch import Batch, Piece
from rtmb.core.subscriptions import Outlet

#: The most that the transport is handed at once, and that one `send` is asked to take.
PIECE = 256 * 1024
#: Over this, publishers are asked to pause. Several reads' worth (the doors' READ_SIZE): with less,
#: publisher and subscriber wait for each other in turns. Much more costs speed, as the
#: bytes leave the processor's cache before they are sent (benchmark: 1→1, 1 KiB).
HIGH_WATER = 2 << 20
#: Below this, publishers that paused may go on.
LOW_WATER = 512 * 1024
#: What a client must have taken since publishers last paused for it, to be worth another pause.
PAUSE_PRICE = 64 * 1024
#: What one waiting piece costs beyond its bytes.
_PIECE_COST = 64
#: The most pieces that one call of the system takes.
_VECTOR = 512
#: Pieces smaller than this are put together while they wait: thousands of them would leave as much
#: memory again unusable between them (benchmark: slow consumer).
_SMALL = 64 * 1024


@implementer(IPullProducer)
class Outbox:
    """Bytes for one transport, at most `limit` of them waiting."""

    __slots__ = (
        "_closing", "_direct", "_earned", "_handed", "_high", "_producing", "_queue", "_queued",
        "_transport", "allowance", "batch", "closed", "drained", "limit", "outlet", "overflowed",
    )  # fmt: skip

    def __init__(self, transport: Any, limit: int, overflowed: Callable[[bytes], None]) -> None:
        self._transport = transport
        #: Whether the transport is a plain TCP socket that can be sent on without ceremony.
        self._direct = isinstance(transport, Connection)
        if self._direct:
            transport.SEND_LIMIT = PIECE
        self.limit = limit
        #: Called with the last bytes when more than `limit` wait; it should end the connection.
        self.overflowed = overflowed
        #: Called each time the waiting bytes fall below the low-water mark.
        self.drained: Callable[[], None] | None = None
        #: Told whether the client is behind, where the hub asks that and not the client.
        self.outlet: Outlet | None = None
        #: What this batch has collected so far. It stays the same one for good.
        self.batch = Batch()
        #: Bytes beyond `limit` that may wait because they are history that was asked for.
        self.allowance = 0
        self._queue: deque[bytes | bytearray] = deque()
        self._queued = 0
        self._handed = 0
        self._producing = False
        self._closing = False
        self.closed = False
        self._high = min(HIGH_WATER, limit // 2)
        self._earned = PAUSE_PRICE

    @property
    def pending(self) -> int:
        """Bytes that wait to be sent."""
        return self._queued + self._handed

    @property
    def congested(self) -> bool:
        return self._queued > self._high

    def started_tls(self) -> None:
        """From now on the transport encrypts: everything must go through it."""
        self._direct = False

    def worth_a_pause(self) -> bool:
        """Whether publishers should pause for this client: it is behind, but it is reading.

        One that reads nothing gets one pause, and then no more than its limit."""
        if self._queued > self._high and self._earned >= PAUSE_PRICE:
            self._earned = 0
            return True
        return False

    def write(self, data: bytes) -> None:
        """Send something now, behind all that was collected before it."""
        self.batch.append(data)
        self.flush()

    def flush(self) -> None:
        """Send what this batch collected."""
        batch = self.batch
        if not batch:
            return
        pieces = batch.take()
        if self.closed or self._closing:
            batch.clear()
            return
        if self._producing:
            self._enqueue_all(pieces)
        else:
            rest = self._send_all(pieces) if self._direct else pieces
            if rest:
                self._enqueue_all(rest)
                self._produce()
        batch.clear()

    def _send_all(self, pieces: list[Piece]) -> list[Piece]:
        """Send straight on the socket; returns what it did not take."""
        if len(pieces) == 1:  # by far the most common (benchmark: request, 1 in flight)
            sent = self._send(pieces)
            if sent == len(pieces[0]):
                return []
            return [memoryview(pieces[0])[sent:]] if sent else pieces
        while pieces:
            asked = pieces[:_VECTOR]
            sent = self._send(asked)
            for i, piece in enumerate(asked):
                if sent < len(piece):
                    rest = pieces[i:]
                    rest[0] = memoryview(piece)[sent:] if sent else piece
                    return rest
                sent -= len(piece)
            pieces = pieces[_VECTOR:]
        return []

    def _send(self, pieces: list[Piece]) -> int:
        """Ask the socket once; how many bytes it took."""
        try:
            if len(pieces) == 1:
                return int(self._transport.socket.send(pieces[0]))
            return int(self._transport.socket.sendmsg(pieces))
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:  # the connection is lost; the reactor will say so
            self.closed = True
            return sum(map(len, pieces))

    def _enqueue_all(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            self._enqueue(piece)
        if self.outlet is not None:
            self.outlet.stalled = self._queued > self._high

    def _enqueue(self, data: Piece) -> None:
        queue, small = self._queue, len(data) < _SMALL
        if small and queue and isinstance(queue[-1], bytearray) and len(queue[-1]) < PIECE:
            queue[-1] += data
            self._queued += len(data)
        else:
            # What lies in a room is copied: the room is used again.
            queue.append(bytearray(data) if small and queue else bytes(data))
            self._queued += len(data) + _PIECE_COST
        if self._queued + self._handed > self.limit + self.allowance:
            self.overflowed(bytes(data))

    def _produce(self) -> None:
        if not self._producing and self._queue and not self.closed:
            self._producing = True
            self._transport.registerProducer(self, False)

    # IPullProducer: the transport has written all it had.

    def resumeProducing(self) -> None:
        self._earned += self._handed
        self._handed = 0
        queue = self._queue
        while queue:
            piece = self._take()
            rest = self._send_all([piece]) if self._direct else [piece]
            left = sum(map(len, rest))
            self._earned += len(piece) - left
            if rest:
                self._handed = left
                self._transport.write(bytes(rest[0]))
                break
        if self.outlet is not None:
            self.outlet.stalled = self._queued > self._high
        if self._queued < LOW_WATER and self.drained is not None:
            self.drained()
        if not queue and not self._handed:
            self._stop()

    def _take(self) -> bytes:
        """The next piece to send, of about `PIECE` bytes."""
        queue = self._queue
        pieces = [queue.popleft()]
        size = len(pieces[0])
        self._queued -= size + _PIECE_COST
        while queue and size + len(queue[0]) <= PIECE:
            piece = queue.popleft()
            size += len(piece)
            self._queued -= len(piece) + _PIECE_COST
            pieces.append(piece)
        return b"".join(pieces)  # of one `bytes` it makes no copy

    def _stop(self) -> None:
        self.allowance = 0
        if self._producing:
            self._producing = False
            self._transport.unregisterProducer()
        if self._closing:
            self._transport.loseConnection()

    def stopProducing(self) -> None:
        """The connection is gone."""
        self.discard()

    # Ending

    def finish(self) -> None:
        """Close the connection once everything has been sent."""
        self.flush()
        self._closing = True
        if not self._producing:
            self._stop()

    def discard(self) -> None:
        """Forget what waits: nobody will read it."""
        self.closed = True
        self._queue.clear()
        self.batch.clear()
        self._queued = self._handed = 0
        if self._producing:
            self._producing = False
            self._transport.unregisterProducer()
        if self.drained is not None:
            self.drained()
