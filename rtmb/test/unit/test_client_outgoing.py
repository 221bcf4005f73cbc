"""Tests for `rtmb.client.outgoing`: what waits to be sent."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rtmb.client.outgoing import Outgoing
from rtmb.testing.memory import MemoryTransport


class Socket(MemoryTransport):
    """A transport that can be sent on directly, and takes `room` bytes that way."""

    room = 0

    def writeSomeData(self, data: bytes) -> int:
        taken = data[: self.room]
        self.room -= len(taken)
        self.write(taken)
        return len(taken)


class OutgoingTests(SynchronousTestCase):
    """Sending straight on the socket."""

    def setUp(self) -> None:
        self.outgoing = Outgoing(10 << 20)
        self.socket = Socket()

    def publish(self, data: bytes) -> None:
        self.outgoing.batch.append(data)
        self.outgoing.batch_size += len(data)

    def attach(self, room: int) -> None:
        self.socket.room = room
        self.outgoing.attach(self.socket)
        self.outgoing._direct = True

    def test_all_at_once(self) -> None:
        """Who waits for it to be sent is told, though the transport had nothing to do."""
        self.publish(b"x" * (2 << 20))
        ready = self.outgoing.ready()
        self.attach(room=10 << 20)
        self.assertNoResult(ready)
        self.outgoing.flush()
        self.successResultOf(ready)
        self.assertEqual((self.outgoing.size, len(self.socket.value())), (0, 2 << 20))

    def test_in_part(self) -> None:
        """What the socket does not take goes through the transport, behind what it took."""
        self.attach(room=5)
        for data in (b"0123456789", b"abc"):
            self.publish(data)
            self.outgoing.flush()
        self.assertEqual(self.socket.value(), b"0123456789abc")
        self.assertEqual((self.outgoing.size, self.outgoing.total), (0, 13))
