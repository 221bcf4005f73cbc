"""Tests for `rtmb.doors.http.streams`: clients that do not keep up, second by second."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from rtmb.auth import ANYONE
from rtmb.core.message import Message
from rtmb.core.subscriptions import Subscription
from rtmb.doors.http.streams import ROOM, Stream, Streams
from rtmb.doors.outbox import Outbox
from rtmb.doors.session import STOPPING
from rtmb.interfaces import ISubscriber
from rtmb.test.support.memory import MemoryBroker, MemoryTransport


class Plain(Stream):
    """A stream whose messages are their payloads, and what it is told stands in brackets."""

    door = "plain"

    def encode(self, message: Message) -> bytes:
        return message.payload

    def tell_dropped(self, count: int, topics: list[str]) -> None:
        self.say(f"[dropped {count} {' '.join(topics)}]".encode())

    def too_slow(self, count: int, topics: list[str]) -> None:
        self.finish([b"[slow]"], "slow consumer")

    def close(self, reason: str) -> None:
        self.finish([b"[end]"], reason, flush=True)


class StreamTests(SynchronousTestCase):
    def start(self, **settings: Any) -> None:
        self.memory = MemoryBroker(ws_queue=3, ws_stuck=5.0, **settings)
        self.clock, self.hub = self.memory.clock, self.memory.hub
        self.streams = Streams(self.memory.broker, SimpleNamespace(access=None))
        self.transport: Any = MemoryTransport()
        self.stream = Plain(self.streams, ANYONE, None)
        self.stream.channel = cast(Any, SimpleNamespace(transport=self.transport))
        self.transport.protocol = SimpleNamespace(connectionLost=lambda why: self.stream.lost("x"))
        self.stream.begin(Outbox(self.transport, 10 << 20, self.stream.overflowed))
        for name in ("a", "b"):
            subscription = Subscription(self.stream, name)
            self.stream.by_pattern[name] = subscription
            self.hub.subscribe(subscription)

    def setUp(self) -> None:
        self.start()

    def publish(self, *payloads: str, subject: str = "a") -> None:
        for payload in payloads:
            self.hub.publish(Message(subject, payload.encode()))

    def fill(self) -> None:
        """Let the socket be full."""
        self.transport.stuck = True
        self.publish("x" * ROOM)
        self.heard()

    def heard(self) -> str:
        said: bytes = self.transport.value()
        self.transport.clear()
        return said.decode()

    def read(self) -> str:
        """The client reads all there is."""
        self.transport.stuck = False
        self.transport.read()
        self.clock.advance(0)
        return self.heard().replace("x" * ROOM, "")

    def test_it_is_a_subscriber(self) -> None:
        verifyObject(ISubscriber, self.stream)

    def test_messages_pass(self) -> None:
        self.publish("1", "2")
        self.assertEqual(self.heard(), "12")
        self.assertFalse(self.stream.stalled)

    def test_what_fits_waits_and_nothing_is_lost(self) -> None:
        self.fill()
        self.assertTrue(self.stream.stalled)
        self.publish("1", "2")
        self.assertEqual(self.heard(), "")
        self.assertTrue(self.read().endswith("12"))
        self.assertFalse(self.stream.stalled)

    def test_nothing_overtakes_what_waits(self) -> None:
        self.fill()
        self.publish("1", "2")
        self.transport.stuck = False
        self.transport.read()
        self.publish("3")  # the socket is free, but what waits has not been sent yet
        self.assertTrue(self.read().endswith("123"))

    def test_the_oldest_are_dropped_and_told_in_their_place(self) -> None:
        self.fill()
        self.publish("1", "2", "3")
        self.publish("4", subject="b")
        self.publish("5", "6")
        said = self.read()
        self.assertTrue(said.endswith("[dropped 3 a]456"), said[-40:])
        self.publish("7")
        self.assertEqual(self.heard(), "7")

    def test_a_batch_that_finds_room_is_sent_whole(self) -> None:
        """However many messages: only those that come while the socket is full may be dropped."""
        self.transport.stuck = True
        for i in range(100):
            self.hub.deliver(Message("a", b"%02d" % i * (ROOM // 20)))
        self.hub.flush()
        self.publish("last")
        self.transport.stuck = False
        self.transport.read()
        for _ in range(200):
            self.clock.advance(0)
        said = self.heard()
        self.assertEqual(len(said), 100 * 2 * (ROOM // 20) + 4)
        self.assertTrue(said.endswith("99last"))

    def test_bytes_are_bounded_too(self) -> None:
        self.start(max_pending=1 << 20)
        self.fill()
        self.publish("1" * 700_000, "2" * 700_000)
        self.assertIn("[dropped 1 a]2", self.read())

    def test_stuck(self) -> None:
        self.fill()
        self.publish(*"12345")
        self.clock.advance(4.9)
        self.assertFalse(self.stream.done)
        self.clock.advance(0.2)
        self.assertTrue(self.stream.done)
        self.assertEqual(self.memory.broker.announcements.slow_consumers["plain", "close"], 1)
        self.assertTrue(self.read().endswith("[slow]"))
        self.assertTrue(self.transport.lost)
        self.assertNotIn(self.stream, list(self.memory.broker.clients))

    def test_one_that_never_reads_is_cut_off(self) -> None:
        self.fill()
        self.publish(*"12345")
        self.clock.pump([5.1, 5.1])
        self.assertTrue(self.transport.lost)
        self.assertEqual(len(self.hub.routing), 0)

    def test_silence_is_not_being_stuck(self) -> None:
        """A socket that stays full while nothing has to be dropped is left alone."""
        self.fill()
        self.publish("1")
        self.clock.advance(60)
        self.assertFalse(self.stream.done)

    def test_a_slow_reader_lives(self) -> None:
        self.fill()
        for _ in range(5):
            self.publish(*"12345")
            self.clock.advance(3)
            self.read()
            self.fill()
        self.assertFalse(self.stream.done)

    def test_drops_are_reported_once_a_second(self) -> None:
        self.fill()
        with capturedLogs() as logged:
            self.publish(*"123456789")
            self.clock.advance(1)
            self.publish(*"12")
            self.clock.advance(1)
        lines = [line for line in map(formatEvent, logged) if line and "dropped" in line]
        self.assertEqual(len(lines), 2)
        self.assertIn("dropped 6 messages", lines[0])
        self.assertEqual(self.memory.broker.announcements.drops["plain"], 8)

    def test_the_names_of_topics_are_bounded(self) -> None:
        self.fill()
        subscription = Subscription(self.stream, ">")
        self.hub.subscribe(subscription)
        for i in range(300):
            self.publish("z", subject=f"t.{i}")
        count, names = self.stream._told()
        self.assertEqual((count, len(names)), (297, 100))

    def test_shutting_down_flushes(self) -> None:
        self.fill()
        self.publish("1", "2")
        self.stream.close(STOPPING)
        self.assertTrue(self.read().endswith("12[end]"))
        self.assertTrue(self.transport.lost)

    def test_publishers_pause_for_one_that_reads(self) -> None:
        self.transport.stuck = True
        self.hub.deliver(Message("a", b"x" * 2 * ROOM))
        self.assertEqual(self.hub.flush(), [self.stream])
        self.hub.wake(self.stream)
        self.assertEqual(self.hub.flush(), [], "once, as long as it takes nothing")
