"""Tests for `rtmb.doors.nats.connection`: limits, clients that do not keep up, and the end."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.support.memory import MemoryBroker, Peer


class LimitTests(SynchronousTestCase):
    def test_connections(self) -> None:
        broker = MemoryBroker(max_connections=1)
        first = broker.connect()
        second = Peer(broker.factory)
        self.assertEqual(second.heard(), b"-ERR 'maximum connections exceeded'\r\n")
        self.assertTrue(second.closed)
        first.leave()
        self.assertFalse(broker.connect().closed)

    def test_subscriptions(self) -> None:
        broker = MemoryBroker(max_subscriptions=1)
        peer = broker.connect(b"SUB a 1\r\n")
        self.assertEqual(peer.send(b"SUB b 2\r\n"), b"-ERR 'maximum subscriptions exceeded'\r\n")
        peer.send(b"UNSUB 1\r\n")
        self.assertEqual(peer.send(b"SUB b 2\r\nPING\r\n"), b"PONG\r\n")

    def test_payload_and_line(self) -> None:
        """The limits are the settings', and what just fits is let in."""
        broker = MemoryBroker(max_payload=4, max_control_line=16, max_pending=1 << 20)
        peer = broker.connect(b"SUB a 1\r\n")
        self.assertEqual(peer.send(b"PUB a 4\r\nabcd\r\n"), b"MSG a 1 4\r\nabcd\r\n")
        self.assertIn(b"Maximum Payload", peer.send(b"PUB a 5\r\n"))
        peer = broker.connect()
        self.assertEqual(peer.send(b"SUB aaaaaaaaaa 1\r\nPING\r\n"), b"PONG\r\n")
        self.assertIn(b"maximum control line", peer.send(b"SUB aaaaaaaaaaaa 11\r\n"))


class SlowConsumerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.broker = MemoryBroker(max_pending=1 << 20)
        self.slow = self.broker.connect(b"SUB a 1\r\n")
        self.neighbour = self.broker.connect(b"SUB a 1\r\n")
        self.publisher = self.broker.connect()
        self.slow.transport.stuck = True
        self.chunk = b"PUB a 1000\r\n" + b"x" * 1000 + b"\r\n"

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.publisher.protocol.dataReceived(self.chunk * 10)
            self.broker.clock.advance(0.02)

    def test_cut_off(self) -> None:
        """Who never reads is closed at the limit, counted, and harms no neighbour."""
        self.publish(200)
        self.assertTrue(self.slow.closed)
        self.assertEqual(self.broker.broker.announcements.slow_consumers, {("nats", "close"): 1})
        self.assertEqual(self.neighbour.heard().count(b"MSG a 1 1000\r\n"), 2000)
        (left,) = self.broker.hub.routing
        self.assertIs(left.subscriber, self.neighbour.protocol)

    def test_bounded(self) -> None:
        worst = 0
        for _ in range(200):
            self.publish(1)
            worst = max(worst, self.slow.protocol.outbox.pending)
        self.assertGreater(worst, 900_000)
        self.assertLessEqual(worst, (1 << 20) + 11_000)

    def test_publisher_pauses_briefly(self) -> None:
        """A publisher waits for who is behind, 10 ms at most, and not again for who never reads."""
        for _ in range(60):
            self.publisher.protocol.dataReceived(self.chunk * 10)
            if self.publisher.transport.producerState == "paused":
                break
        self.assertEqual(self.publisher.transport.producerState, "paused")
        self.broker.clock.advance(0.01)
        self.assertEqual(self.publisher.transport.producerState, "producing")
        self.publisher.protocol.dataReceived(self.chunk)
        self.assertEqual(self.publisher.transport.producerState, "producing")

    def test_publisher_goes_on_when_the_reader_has_caught_up(self) -> None:
        for _ in range(60):
            self.publisher.protocol.dataReceived(self.chunk * 10)
        self.assertEqual(self.publisher.transport.producerState, "paused")
        self.slow.transport.stuck = False
        self.slow.transport.read()
        self.assertEqual(self.publisher.transport.producerState, "producing")
        self.assertEqual(self.slow.heard().count(b"MSG"), 600)
        self.assertFalse(self.slow.closed)

    def test_stalled_member_is_passed_over(self) -> None:
        """A queue group does not wait for a member that is behind."""
        self.slow.protocol.dataReceived(b"SUB w q 2\r\n")
        self.neighbour.protocol.dataReceived(b"SUB w q 2\r\n")
        for _ in range(60):
            self.publisher.protocol.dataReceived(self.chunk * 10)
        self.neighbour.heard()
        self.publisher.send(b"PUB w 1\r\nx\r\n" * 10)
        self.assertEqual(self.neighbour.heard().count(b"MSG w 2 1\r\n"), 10)

    def test_history_asked_for_is_no_fault(self) -> None:
        """Replaying more than the limit does not make a client a slow consumer."""
        broker = MemoryBroker(max_pending=50_000, max_payload=50_000)
        publisher = broker.connect()
        publisher.send(self.chunk * 100)
        late = broker.connect()
        late.transport.stuck = True
        late.protocol.dataReceived(b"SUB $REPLAY.100.a 1\r\n")
        publisher.send(b"PUB a 1\r\nx\r\n")
        self.assertFalse(late.closed)
        late.transport.stuck = False
        late.transport.read()
        self.assertEqual(late.heard().count(b"MSG a 1"), 101)


class EndTests(SynchronousTestCase):
    def test_drain(self) -> None:
        """Stopping sends what waits, and cuts off who does not read within the time."""
        broker = MemoryBroker()
        good, stuck = broker.connect(b"SUB a 1\r\n"), broker.connect(b"SUB a 1\r\n")
        stuck.transport.stuck = good.transport.stuck = True
        broker.connect().send(b"PUB a 1\r\nx\r\n")
        stopped = broker.service.stopService()
        self.assertNoResult(stopped)
        good.transport.stuck = False
        good.transport.read()
        self.assertEqual(good.heard(), b"MSG a 1 1\r\nx\r\n")
        self.assertTrue(good.closed)
        broker.clock.advance(5)
        self.assertTrue(stuck.closed)
        self.successResultOf(stopped)

    def test_lame_duck(self) -> None:
        """Clients that understand are told; all are closed over the grace time."""
        broker = MemoryBroker(lame_duck=10.0)
        told, untold = broker.library(), broker.connect()
        done = broker.broker.enter_lame_duck()
        self.assertIn(b'"ldm":true', told.heard())
        self.assertEqual(untold.heard(), b"")
        late = broker.connect()
        self.assertEqual((late.closed, late.heard()), (True, b""))
        broker.clock.advance(5)
        self.assertEqual([told.closed, untold.closed], [True, False])
        broker.clock.advance(5)
        self.assertTrue(untold.closed)
        self.successResultOf(done)
