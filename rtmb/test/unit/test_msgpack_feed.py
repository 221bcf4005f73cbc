"""Tests for `rtmb.doors.msgpack.feed`: who gets what, and those who do not keep up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.logger import capturedLogs, formatEvent

from rtmb.doors.msgpack import feed, protocol
from rtmb.test.support.msgpack import InMemory, publish, subscribe, unsubscribe


class RetainedTests(InMemory):
    def test_last_message_of_each_topic(self) -> None:
        """A subscription begins with the last message of every topic that it matches."""
        self.client(publish("a", 1), publish("a", 2), publish("ab", 3), publish("b", 4))
        self.memory.library().send(b"PUB a.nats 1\r\n5\r\n")
        client = self.client()
        self.assertEqual(sorted(client.send(subscribe("a*"))), [["a", 2], ["a.nats", 5], ["ab", 3]])
        self.assertEqual(client.send(subscribe("a")), [])  # it has that one
        self.assertEqual(client.send(subscribe("?")), [["b", 4]])
        self.assertEqual(client.send(subscribe("a*")), [])
        client.send(unsubscribe("a*"), unsubscribe("a*"))
        self.assertEqual(client.send(subscribe("ab")), [["ab", 3]])

    def test_not_twice_in_one_chunk(self) -> None:
        """Publish, subscribe, publish in one chunk: the retained value once, then the live one."""
        client = self.client(subscribe("x"))
        said = client.send(
            publish("x", 0), publish("a", 1), subscribe("a"), publish("a", 2), publish("x", 3)
        )
        self.assertEqual(said, [["x", 0], ["a", 1], ["a", 2], ["x", 3]])

    def test_replies_are_not_retained(self) -> None:
        live = self.client(subscribe("_INBOX*"))
        self.client(publish("_INBOX.1", 1))
        self.assertEqual(live.heard(), [["_INBOX.1", 1]])
        self.assertEqual(self.client().send(subscribe("*INBOX*")), [])

    def test_none_without_history(self) -> None:
        self.start(history=0)
        self.client(publish("a", 1), publish("a b", 1))
        self.assertEqual(self.client().send(subscribe("a*")), [])

    def test_the_brokers_own_topics(self) -> None:
        """Globs match `!system/…`."""
        self.client()
        self.memory.clock.advance(0)
        ((topic, event),) = self.client().send(subscribe("*events/conn*"))
        self.assertEqual((topic, event["door"]), ("!system/events/connect", "msgpack"))

    def test_topics_that_are_no_subjects(self) -> None:
        """They live within this door, retained value and all; the text door hears nothing."""
        library = self.memory.library()
        library.send(b"SUB > 1\r\n")
        client = self.client(subscribe("*"))
        client.heard()
        topics = ["", "a b", "a..b", "*", "a.>", ".", "x\n", "\t"]
        said = client.send(*(publish(topic, 1) for topic in topics))
        self.assertEqual(said, [[topic, 1] for topic in topics])
        self.assertEqual(library.heard(), b"")
        self.assertNotIn("a b", self.hub.topics())
        for topic in topics:
            heard = self.client().send(subscribe(topic if topic != "*" else "?"))
            self.assertIn([topic, 1], heard)
        self.assertEqual(self.hub.totals.in_msgs, len(topics))

    def test_such_topics_are_bounded(self) -> None:
        self.start(msgpack_buffer_bytes=100_000)
        client = self.client()
        for i in range(2000):
            client.send(publish(f"no subject {i}", "x" * 100))
        own = self.service.factory.feed.own
        self.assertLessEqual(own.held, 100_000)
        self.assertIsNotNone(own.get("no subject 1999"))
        self.assertIsNone(own.get("no subject 0"))


class RouteTests(InMemory):
    def test_only_who_is_wanted(self) -> None:
        """A subject has the feed in its route while a client wants it, and not before or after:
        the text door's bulk walk depends on it."""
        route = self.hub.routing.route
        self.assertFalse(route("a.b"))
        client = self.client(subscribe("a*"))
        self.assertTrue(route("a.b"))
        self.assertFalse(route("b"))
        other = self.client(subscribe("b"), subscribe("a*"))
        self.assertTrue(route("b"))
        client.send(unsubscribe("a*"))
        self.assertTrue(route("a.b"))
        other.transport.loseConnection()
        self.assertFalse(route("a.b"))
        self.assertFalse(route("b"))

    def test_a_known_pattern_leaves_the_routes_alone(self) -> None:
        self.client(subscribe("*"))
        route = self.hub.routing.route("a.b")
        self.client(subscribe("*"))
        self.assertTrue(route.live)
        self.client().send(publish("a.b", 1))
        self.assertIs(self.hub.routing.route("a.b"), route)

    def test_more_topics_than_are_kept_ready(self) -> None:
        self.patch(feed, "_CACHE", 3)
        self.patch(protocol, "_CACHE", 3)
        client = self.client(subscribe("t*"))
        said = client.send(*(publish(f"t{i}", i) for i in range(10)))
        self.assertEqual(said, [[f"t{i}", i] for i in range(10)])
        self.assertLessEqual(len(self.service.factory.feed._audiences), 3)
        self.assertLessEqual(len(self.service.factory.topics), 3)


class SlowTests(InMemory):
    """A client that does not read, with room for nearly nothing and a buffer of four messages."""

    def setUp(self) -> None:
        self.patch(protocol, "ROOM", 1)
        self.start(msgpack_buffer=4)
        self.slow = self.client(subscribe("t"))
        self.fast = self.client(subscribe("t"), subscribe("other*"), subscribe("r*"))
        self.slow.transport.stuck = True
        self.publisher = self.client()

    def publish(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.publisher.send(publish("t", number))

    @property
    def feed(self) -> Any:
        return self.service.factory.feed

    def test_within_the_buffer_nothing_is_lost(self) -> None:
        self.publish(range(5))
        self.assertTrue(self.slow.protocol.stalled)
        self.assertEqual(self.slow.read(), [["t", i] for i in range(5)])
        self.assertFalse(self.slow.protocol.stalled)
        self.assertEqual(self.memory.broker.system.drops, {})

    def test_overtaken(self) -> None:
        """It goes on at the newest message, still connected; the others have all."""
        with capturedLogs() as logs:
            self.publish(range(23))
        self.assertEqual(self.fast.heard(), [["t", i] for i in range(23)])
        numbers = [value for _, value in self.slow.read()]
        self.assertEqual(numbers, [0, 21, 22])
        self.assertFalse(self.slow.closed)
        self.publish([23])
        self.assertEqual(self.slow.heard(), [["t", 23]])
        self.assertEqual(self.memory.broker.system.drops, {"msgpack": 20})
        slow = [formatEvent(e) for e in logs if "slow consumer" in (formatEvent(e) or "")]
        self.assertEqual(len(slow), 1, "once a burst")
        self.assertIn(self.slow.protocol.name, slow[0])

    def test_told_once_a_burst(self) -> None:
        """The drops of a burst are told when it is over, in one event."""
        watcher = self.client(subscribe("!system/events/drop"), subscribe("!system/events/slow*"))
        for burst in (1, 2):
            self.slow.transport.stuck = True
            self.publish(range(40))
            self.slow.read()
            self.memory.clock.advance(0)
            slow, drop = watcher.heard()
            self.assertEqual(slow[1]["policy"], "skip")
            self.assertEqual((drop[1]["subjects"], drop[1]["door"]), (["t"], "msgpack"))
            counted = self.memory.broker.system.slow_consumers
            self.assertEqual(counted, {("msgpack", "skip"): burst})
        self.assertEqual(self.memory.broker.system.drops["msgpack"], 2 * drop[1]["count"])

    def test_what_others_get_does_not_count(self) -> None:
        """Messages that it does not want neither count as skipped nor reach it."""
        self.publish([0, 1])
        self.publisher.send(*(publish(f"other{i}", i) for i in range(3)))
        self.publisher.send(*(publish(f"other{i}", i) for i in range(100)))
        self.publish([2])
        self.assertEqual([v for _, v in self.slow.read()], [0, 2])
        self.assertEqual(self.memory.broker.system.drops, {"msgpack": 1})

    def test_the_buffer_is_bounded(self) -> None:
        """By messages and by bytes, and empty when nobody is behind."""
        self.publish(range(100))
        self.assertLessEqual(len(self.feed._buffer), 4)
        self.slow.read()
        self.assertEqual((len(self.feed._buffer), self.feed._buffered), (0, 0))
        self.patch(protocol, "ROOM", 1)
        self.start(msgpack_buffer_bytes=10_000)
        slow = self.client(subscribe("t"))
        slow.transport.stuck = True
        publisher = self.client()
        for i in range(100):
            publisher.send(publish("t", [i, "x" * 900]))
            self.assertLessEqual(self.feed._buffered, 10_000)
        self.assertEqual(slow.read()[-1][1][0], 99)

    def test_a_message_larger_than_the_buffer(self) -> None:
        self.start(msgpack_buffer_bytes=1000)
        slow = self.client(subscribe("t"))
        slow.transport.stuck = True
        self.client(publish("t", 1)).send(publish("t", "x" * 2000))
        self.assertEqual([len(str(v)) for _, v in slow.read()], [1, 2000])

    def test_never_reads_and_leaves(self) -> None:
        """What was skipped is told when it leaves; nothing is kept."""
        self.publish(range(20))
        with capturedLogs() as logs:
            self.slow.transport.abortConnection()
        self.assertTrue(any("dropped" in (formatEvent(e) or "") for e in logs))
        self.assertEqual((len(self.feed._buffer), self.feed.behind), (0, set()))

    def test_retained_values_wait_too(self) -> None:
        """A client that does not read gets no copies of the retained values; when it reads it gets
        those that are newest then, each once and in order."""
        self.publisher.send(*(publish(f"r{i}", "x" * 1000) for i in range(500)))
        client = self.client()
        client.transport.stuck = True
        client.protocol.dataReceived(subscribe("r*"))
        client.protocol.dataReceived(unsubscribe("r*") + subscribe("r*"))
        self.assertLessEqual(client.protocol.outbox.pending, 600_000)
        self.publisher.send(publish("r499", "new"), publish("r498", "new"))
        heard = client.read()
        self.assertEqual(heard[-2:], [["r499", "new"], ["r498", "new"]])
        topics = [topic for topic, _ in heard]
        self.assertEqual(
            (len(set(topics)), topics.count("r499"), topics.count("r498")), (500, 1, 1)
        )

    def test_stopping(self) -> None:
        """A stop closes everyone; who does not read is cut off after a while."""
        self.publish(range(3))
        gone: list[None] = []
        self.service.drain().addCallback(gone.append)
        self.assertTrue(self.fast.closed)
        self.assertEqual((self.slow.closed, gone), (False, []))
        self.memory.clock.advance(5)
        self.assertTrue(self.slow.closed)
        self.assertEqual(gone, [None])
