"""Tests for `rtmb.doors.msgpack.feed`: who gets what, and those who do not keep up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from rtmb.doors.msgpack import feed, protocol, retained, service
from rtmb.doors.msgpack.recent import Recent
from rtmb.test.support.msgpack import Client, InMemory, publish, subscribe, unsubscribe


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
        """A subject has the feed in its route while a client wants it, and not before or after."""

        def wanted(subject: bytes) -> bool:
            return self.hub.route(subject).others is not None

        self.assertFalse(wanted(b"a.b"))
        client = self.client(subscribe("a*"))
        self.assertTrue(wanted(b"a.b"))
        self.assertFalse(wanted(b"b"))
        other = self.client(subscribe("b"), subscribe("a*"))
        self.assertTrue(wanted(b"b"))
        client.send(unsubscribe("a*"))
        self.assertTrue(wanted(b"a.b"))
        other.transport.loseConnection()
        self.assertFalse(wanted(b"a.b"))
        self.assertFalse(wanted(b"b"))

    def test_a_known_pattern_leaves_the_routes_alone(self) -> None:
        self.client(subscribe("*"))
        route = self.hub.route(b"a.b")
        self.client(subscribe("*"))
        self.client().send(publish("a.b", 1))
        self.assertEqual(route.made, self.hub.routing.generation_of(route.share))
        self.client(subscribe("?*"))
        self.assertNotEqual(route.made, self.hub.routing.generation_of(route.share))

    def test_more_topics_than_are_kept_ready(self) -> None:
        self.patch(feed, "_CACHE", 3)
        self.patch(service, "_CACHE", 3)
        self.start()
        client = self.client(subscribe("t*"))
        said = client.send(*(publish(f"t{i}", i) for i in range(10)))
        self.assertEqual(said, [[f"t{i}", i] for i in range(10)])
        self.assertLessEqual(len(self.service.factory.feed._audiences.there), 3)
        self.assertLessEqual(len(self.service.factory.topics.there), 3)

    def test_subscriptions_as_monitoring_sees_them(self) -> None:
        """Each pattern, with what it matched; a message that two of them match counts for both."""
        client = self.client(subscribe("a*"), subscribe("ab"), subscribe("a*"))
        client.send(publish("ab", 1), publish("ac", 2), publish("b", 3))
        found = {s.pattern: s.delivered for s in client.protocol.subscriptions}
        self.assertEqual(found, {"a*": 2, "ab": 1})
        self.assertEqual(client.protocol.counters.out_msgs, 2)
        late = self.client(subscribe("a?"))
        self.assertEqual([s.delivered for s in late.protocol.subscriptions], [2])


class ManyTopicsTests(InMemory):
    """More topics than are looked at in one turn."""

    def setUp(self) -> None:
        self.patch(retained, "SLICE", 0.0)
        self.patch(retained, "_STEP", 8)
        self.patch(protocol, "SLICE", 3600.0)
        self.start()
        self.publisher = self.client(*(publish(f"t{i}", "old") for i in range(100)))

    def turns(self, client: Client) -> list[Any]:
        """Let the turns come that there are; what was heard."""
        self.memory.clock.advance(0)
        self.assertFalse(client.protocol.retained)
        return client.heard()

    def test_a_look_at_them_takes_several_turns(self) -> None:
        client = self.client()
        first = client.send(subscribe("t*"))
        self.assertLess(len(first), 20)
        self.assertTrue(client.protocol.retained)
        found = first + self.turns(client)
        self.assertEqual(sorted(found), sorted([f"t{i}", "old"] for i in range(100)))
        self.assertFalse(client.protocol.stalled)

    def test_new_messages_pass_meanwhile(self) -> None:
        """They come at once, and what they make old does not come after them."""
        client = self.client(subscribe("t*"))
        client.heard()
        self.publisher.send(publish("t99", "new"), publish("u", "other"))
        self.assertEqual(client.heard(), [["t99", "new"]])
        rest = self.turns(client)
        self.assertNotIn("t99", [topic for topic, _ in rest])
        self.assertIn(["t98", "old"], rest)
        self.assertEqual(self.publisher.send(), [])

    def test_several_patterns(self) -> None:
        """Each topic comes once, for the first pattern that matches it."""
        client = self.client()
        heard = client.send(subscribe("t1*"), subscribe("t?"), subscribe("*"))
        heard += self.turns(client)
        topics = [topic for topic, _ in heard if topic[0] == "t"]
        self.assertEqual(sorted(topics), sorted(f"t{i}" for i in range(100)))

    def test_unsubscribed_meanwhile(self) -> None:
        client = self.client()
        heard = client.send(subscribe("t*"), subscribe("t9?"), unsubscribe("t*"))
        heard += self.turns(client)
        self.assertLess(len(heard), 30)
        topics = {topic for topic, _ in heard}
        self.assertLessEqual({f"t9{i}" for i in range(10)}, topics)

    def test_gone_meanwhile(self) -> None:
        self.memory.clock.advance(0)
        before = self.memory.clock.getDelayedCalls()
        client = self.client(subscribe("t*"))
        self.assertTrue(client.protocol.retained)
        client.transport.loseConnection()
        self.assertFalse(client.protocol.retained)
        self.memory.clock.advance(0)
        self.assertEqual(self.memory.clock.getDelayedCalls(), before)

    def test_a_chunk_of_many_subscriptions(self) -> None:
        """The looks of one chunk have one time limit together."""
        self.patch(protocol, "SLICE", 0.0)
        client = self.client()
        self.assertEqual(client.send(*(subscribe(f"{'?' * i}*") for i in range(9))), [])
        self.assertEqual(len({topic for topic, _ in self.turns(client) if topic[0] == "t"}), 100)


class RecentTests(SynchronousTestCase):
    def test_the_oldest_few_go(self) -> None:
        """A full one is not emptied: nearly all of it stays."""
        recent: Recent[str, int] = Recent(1000, 1 << 20)
        for i in range(1001):
            recent.keep(f"key {i}", i)
        self.assertGreater(len(recent.there), 900)
        self.assertIsNone(recent.there.get("key 0"))
        self.assertEqual(recent.there.get("key 1000"), 1000)

    def test_long_keys(self) -> None:
        recent: Recent[str, int] = Recent(1000, 10_000)
        for i in range(100):
            recent.keep(f"{i}".ljust(1000), i)
            self.assertLessEqual(sum(map(len, recent.there)), 10_000)
        recent.drop("99".ljust(1000))
        recent.clear()
        for i in range(1000):
            recent.keep(f"{i}".ljust(10), i)
        self.assertEqual(len(recent.there), 1000)


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
        self.assertEqual(self.memory.broker.announcements.drops, {})

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
        self.assertEqual(self.memory.broker.announcements.drops, {"msgpack": 20})
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
            counted = self.memory.broker.announcements.slow_consumers
            self.assertEqual(counted, {("msgpack", "skip"): burst})
        self.assertEqual(self.memory.broker.announcements.drops["msgpack"], 2 * drop[1]["count"])

    def test_what_others_get_does_not_count(self) -> None:
        """Messages that it does not want neither count as skipped nor reach it."""
        self.publish([0, 1])
        self.publisher.send(*(publish(f"other{i}", i) for i in range(3)))
        self.publisher.send(*(publish(f"other{i}", i) for i in range(100)))
        self.publish([2])
        self.assertEqual([v for _, v in self.slow.read()], [0, 2])
        self.assertEqual(self.memory.broker.announcements.drops, {"msgpack": 1})

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

    def test_lame_duck(self) -> None:
        """The clients are closed one by one over the grace; nobody is let in meanwhile; who does
        not read what is left is cut off a while later."""
        self.publish(range(3))
        gone: list[None] = []
        self.memory.broker.clients.leaving = True
        self.service.enter_lame_duck(30.0).addCallback(gone.append)
        self.assertTrue(self.client().closed)
        clients = [self.slow, self.fast, self.publisher]
        closing = []
        for _ in range(3):
            self.memory.clock.advance(10)
            closing.append([client.protocol.done for client in clients])
        self.assertEqual(closing, [[True, False, False], [True, True, False], [True, True, True]])
        self.assertEqual([client.closed for client in clients], [True, True, True])
        self.assertEqual(gone, [None])
