"""Tests for `rtmb.client.subscription`: reading, callbacks, limits, permissions."""

from __future__ import annotations

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.trial.unittest import SynchronousTestCase

from rtmb.auth import AuthTable
from rtmb.client import (
    AuthenticationFailed,
    ClientError,
    Event,
    Headers,
    Message,
    PermissionViolation,
    SubscriptionEnded,
    Timeout,
)
from rtmb.test.support.client import MemoryTests
from rtmb.testing import MemoryBroker


class ReadingTests(MemoryTests):
    def test_messages(self) -> None:
        client = self.connect()
        subscription = client.subscribe("a.*")
        client.publish("a.b", '{"k": [1]}', reply="r", headers={"A": ["1", "2"], "b": "3"})
        self.memory.advance()
        message = self.successResultOf(subscription.next())
        self.assertEqual((message.subject, message.reply), ("a.b", "r"))
        self.assertEqual(message.json(), {"k": [1]})
        self.assertEqual(message.text, '{"k": [1]}')
        self.assertEqual(dict(message.headers), {"A": "1", "b": "3"})
        self.assertEqual(message.headers.all("A"), ["1", "2"])
        self.assertEqual(message.headers.all("no"), [])
        self.assertEqual(message.headers.lists(), {"A": ["1", "2"], "b": ["3"]})
        self.assertEqual(Headers().lists(), {})
        client.publish("a.b", b"\xff{")
        self.memory.advance()
        message = self.successResultOf(subscription.next())
        self.assertEqual(message.text, "�{")
        self.assertRaises(ValueError, message.json)
        self.assertRaises(ClientError, message.respond, b"to nobody")

    def test_async_for(self) -> None:
        """Messages come in order, and the loop ends when the subscription does."""
        client = self.connect()
        subscription = client.subscribe("a")
        got: list[str] = []

        async def read() -> str:
            async for message in subscription:
                got.append(message.text)
            return "over"

        reading = ensureDeferred(read())
        for i in range(5):
            client.publish("a", str(i))
        self.memory.advance()
        self.assertEqual(got, ["0", "1", "2", "3", "4"])
        self.assertNoResult(reading)
        subscription.unsubscribe()
        self.assertEqual(self.successResultOf(reading), "over")
        self.failureResultOf(subscription.next(), SubscriptionEnded)

    def test_several_readers(self) -> None:
        """Each gets another message, first come first served."""
        client = self.connect()
        subscription = client.subscribe("a")
        one, two, three = (subscription.next() for _ in range(3))
        two.addErrback(lambda failure: None)
        two.cancel()
        client.publish("a", b"1")
        client.publish("a", b"2")
        self.memory.advance()
        self.assertEqual(self.successResultOf(one).payload, b"1")
        self.assertEqual(self.successResultOf(three).payload, b"2")

    def test_next_in_time(self) -> None:
        client = self.connect()
        subscription = client.subscribe("a")
        waiting = subscription.next(timeout=2)
        self.memory.advance(1.9)
        self.assertNoResult(waiting)
        self.memory.advance(0.2)
        self.failureResultOf(waiting, Timeout, TimeoutError)
        client.publish("a", b"kept for the next one")
        self.assertEqual(self.read(subscription), [b"kept for the next one"])

    def test_callback(self) -> None:
        """It gets each message at once; when it fails it gets the next all the same."""
        client = self.connect()
        got: list[bytes] = []

        def receive(message: Message) -> None:
            got.append(message.payload)
            if message.payload == b"1":
                raise RuntimeError("on purpose")

        subscription = client.subscribe("a", callback=receive)
        for i in range(3):
            client.publish("a", b"%d" % i)
        self.memory.advance()
        self.assertEqual(got, [b"0", b"1", b"2"])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertRaises(TypeError, subscription.next)

    def test_slow_callback(self) -> None:
        """One that returns a coroutine gets the next message when it is done."""
        client = self.connect()
        steps: list[str] = []
        doors: list[Deferred[None]] = []

        async def receive(message: Message) -> None:
            steps.append(f"begin {message.text}")
            door: Deferred[None] = Deferred()
            doors.append(door)
            await door
            steps.append(f"end {message.text}")
            if message.text == "1":
                raise RuntimeError("on purpose")

        subscription = client.subscribe("a", callback=receive)
        for i in range(3):
            client.publish("a", str(i))
        self.memory.advance()
        drained = subscription.drain()
        self.memory.advance()
        self.assertEqual(steps, ["begin 0"])
        for i in range(3):
            self.assertNoResult(drained)
            doors[i].callback(None)
        self.assertEqual(steps, [f"{w} {i}" for i in range(3) for w in ("begin", "end")])
        self.successResultOf(drained)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_slow_reader(self) -> None:
        """The oldest are dropped, counted, and told of once a burst."""
        client = self.connect()
        subscription = client.subscribe("a", pending_messages=3)
        other = client.subscribe("a")
        for burst in (1, 2):
            for i in range(10):
                client.publish("a", b"%d" % i)
            self.assertEqual(self.read(subscription), [b"7", b"8", b"9"])
            self.assertEqual((subscription.dropped, client.stats.dropped), (7 * burst,) * 2)
            self.assertEqual(self.told().count("slow_reader"), burst)
        self.assertIn("slow reader on a", str(self.events[-1]))
        self.assertEqual(len(self.read(other)), 20)

    def test_slow_reader_of_large_messages(self) -> None:
        """Bytes count too; one message always fits."""
        client = self.connect()
        subscription = client.subscribe("a", pending_bytes=10_000)
        for _ in range(5):
            client.publish("a", b"x" * 4000)
        self.assertEqual(len(self.read(subscription)), 2)
        client.publish("a", b"x" * 20_000)
        self.assertEqual(len(self.read(subscription)), 1)

    def test_maximum(self) -> None:
        """A subscription ends by itself, at the broker as well."""
        client = self.connect()
        subscription = client.subscribe("a")
        client.publish("a", b"0")
        self.memory.advance()
        subscription.unsubscribe(max=3)
        for i in range(1, 6):
            client.publish("a", b"%d" % i)
        self.assertEqual(self.read(subscription), [b"0", b"1", b"2"])
        self.assertTrue(subscription.ended)
        self.assertEqual(len(self.memory.hub.routing), 0)

    def test_maximum_that_was_reached(self) -> None:
        """What was received before stays to be read."""
        client = self.connect()
        subscription = client.subscribe("a")
        client.publish("a", b"0")
        self.memory.advance()
        subscription.unsubscribe(max=1)
        self.assertEqual(self.read(subscription), [b"0"])
        self.assertEqual(len(self.memory.hub.routing), 0)

    def test_unsubscribe(self) -> None:
        """At once: what waits is dropped, what still comes is nobody's."""
        client = self.connect()
        got: list[Message] = []
        subscription = client.subscribe("a", callback=got.append)
        client.publish("a")
        self.memory.advance()
        client.publish("a")
        subscription.unsubscribe()
        subscription.unsubscribe()
        self.memory.advance()
        self.assertEqual(len(got), 1)
        self.assertEqual(len(self.memory.hub.routing), 0)

    def test_drain_a_subscription(self) -> None:
        """What was on its way is still read."""
        client = self.connect()
        subscription = client.subscribe("a")
        client.publish("a", b"0")
        client.publish("a", b"1")
        drained = subscription.drain()
        client.publish("a", b"2")
        self.memory.advance()
        self.assertNoResult(drained)
        self.assertEqual(self.read(subscription), [b"0", b"1"])
        self.successResultOf(drained)

    def test_drain_that_nobody_reads(self) -> None:
        client = self.connect()
        subscription = client.subscribe("a")
        client.publish("a", b"0")
        self.memory.advance()
        drained = subscription.drain(timeout=5)
        self.memory.advance(4)
        self.assertNoResult(drained)
        self.memory.advance(2)
        self.successResultOf(drained)
        self.assertEqual(self.read(subscription), [])


class PermissionTests(SynchronousTestCase):
    def test_violations(self) -> None:
        """They are told, the reader of that subject too, and the connection lives."""
        rule = {"subscribe": {"allow": ["ok", "_INBOX.>"]}, "publish": {"deny": ["no"]}}
        user = {"user": "u", "password": "p", "permissions": rule}
        memory = MemoryBroker(auth=AuthTable.from_table({"users": [user]}))
        events: list[Event] = []
        client = memory.connect(user="u", password="p", on_event=events.append)
        allowed, denied = client.subscribe("ok"), client.subscribe("secret")
        reading = denied.next()
        client.publish("no")
        memory.advance()
        self.failureResultOf(reading, PermissionViolation, PermissionError)
        errors = [str(event.error) for event in events if event.name == "error"]
        self.assertEqual(len(errors), 2)
        self.assertIn("secret", errors[0])
        self.assertEqual(client.stats.errors, 2)
        client.publish("ok", b"alive")
        memory.advance()
        self.assertEqual(self.successResultOf(allowed.next()).payload, b"alive")
        self.assertRaises(AuthenticationFailed, memory.connect, user="u", password="wrong")
        self.assertRaises(AuthenticationFailed, memory.connect)
