"""What waits for one client: sent in order, bounded, and paused for."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rtmb.doors.outbox import HIGH_WATER, PAUSE_PRICE, PIECE, Outbox
from rtmb.test.support.memory import MemoryTransport


class Ignoring:
    """A protocol that does not mind losing its connection."""

    def connectionLost(self, reason: Any) -> None:
        pass


class OutboxTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.transport = MemoryTransport()
        self.transport.protocol = Ignoring()
        self.overflows: list[bytes] = []
        self.drained = 0
        self.outbox = Outbox(self.transport, 8 << 20, self.overflows.append)
        self.outbox.drained = self.count_drained

    def count_drained(self) -> None:
        self.drained += 1

    def test_in_order(self) -> None:
        """What was collected goes first, then what is written."""
        self.outbox.batch.append(b"a")
        self.outbox.batch.append(b"b")
        self.outbox.write(b"c")
        self.outbox.batch.append(b"d")
        self.outbox.flush()
        self.assertEqual(self.transport.value(), b"abcd")
        self.assertEqual(self.outbox.pending, 0)

    def test_batch_stays_the_same(self) -> None:
        """Others hold on to it."""
        batch = self.outbox.batch
        self.outbox.write(b"x")
        self.assertIs(self.outbox.batch, batch)
        self.assertFalse(batch)

    def test_waits_for_the_reader(self) -> None:
        """While the peer does not read, the transport holds one piece and the rest waits here."""
        self.transport.stuck = True
        pieces = [bytes([65 + i]) * PIECE for i in range(8)]
        for piece in pieces:
            self.outbox.write(piece)
        self.assertLessEqual(len(self.transport.value()), 2 * PIECE)
        self.assertGreaterEqual(self.outbox.pending, 6 * PIECE)
        told = self.drained
        self.transport.stuck = False
        self.transport.read()
        self.assertEqual(self.transport.value(), b"".join(pieces))
        self.assertEqual(self.outbox.pending, 0)
        self.assertGreater(self.drained, told)

    def test_limit(self) -> None:
        """More than the limit is told, with the bytes that were too many; history asked for is not
        counted against it."""
        self.transport.stuck = True
        self.outbox.allowance = 1 << 20
        for _ in range(8):
            self.outbox.write(bytes(1 << 20))
        self.assertEqual(self.overflows, [])
        for _ in range(3):
            self.outbox.write(b"x" * (1 << 20))
        self.assertEqual(self.overflows[0][:1], b"x")

    def test_pauses_are_earned(self) -> None:
        """Who is far behind is worth a pause, and another only after having read something."""
        self.transport.stuck = True
        self.assertFalse(self.outbox.worth_a_pause())
        for _ in range(HIGH_WATER // PIECE + 3):
            self.outbox.write(bytes(PIECE))
        self.assertTrue(self.outbox.congested)
        self.assertTrue(self.outbox.worth_a_pause())
        self.assertFalse(self.outbox.worth_a_pause())
        self.outbox.resumeProducing()  # it took a piece
        self.assertGreater(PIECE, PAUSE_PRICE)
        self.assertTrue(self.outbox.worth_a_pause())

    def test_finish(self) -> None:
        """The connection is closed when all has been sent, and not before."""
        self.transport.stuck = True
        self.outbox.write(bytes(PIECE))
        self.outbox.write(bytes(PIECE))
        self.outbox.batch.append(b"last")
        self.outbox.finish()
        self.outbox.write(b"too late")
        self.assertFalse(self.transport.disconnecting)
        self.transport.stuck = False
        self.transport.read()
        self.assertTrue(self.transport.lost)
        self.assertEqual(self.transport.value(), bytes(2 * PIECE) + b"last")

    def test_discard(self) -> None:
        """Nothing waits for a client that is gone, and those who paused for it go on."""
        self.transport.stuck = True
        for _ in range(4):
            self.outbox.write(bytes(PIECE))
        told = self.drained
        self.outbox.discard()
        self.assertEqual(self.outbox.pending, 0)
        self.assertEqual(self.drained, told + 1)
        self.outbox.write(b"x")
        self.assertEqual(self.outbox.pending, 0)
