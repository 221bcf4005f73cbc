"""The msgpack door: its frames, who gets what, those who do not keep up, who may come in."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

import rtmb
from rtmb.auth import Access, User
from rtmb.codecs.msgpack import MOST_NESTED, PackedMessage, unpack
from rtmb.config import Settings
from rtmb.core.message import Message
from rtmb.doors import msgpack as door
from rtmb.doors.msgpack.protocol import MsgpackService
from rtmb.test.memory import MemoryBroker, MemoryTransport
from rtmb.test.process.test_tls import Authority
from rtmb.test.processes import (
    PATIENCE,
    BrokerProcess,
    RawClient,
    Tail,
    environment,
    need,
    twistd,
)

EXAMPLES = Path(rtmb.__file__).resolve().parent.parent / "examples"


def packed(value: Any) -> bytes:
    data: bytes = msgpack.packb(value)
    return data


def publish(topic: str, value: Any) -> bytes:
    return packed({"Publish": [[topic, value]]})


def subscribe(pattern: str) -> bytes:
    return packed({"Subscribe": [pattern]})


def unsubscribe(pattern: str) -> bytes:
    return packed({"Unsubscribe": [pattern]})


def decoded(data: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(data)
    return list(unpacker)


class Client:
    """The other end of one connection to the msgpack door."""

    def __init__(self, service: MsgpackService, *frames: bytes) -> None:
        self.transport = MemoryTransport()
        self.protocol: Any = service.factory.buildProtocol(None)
        self.transport.protocol = self.protocol
        self.protocol.makeConnection(self.transport)
        self.send(*frames)

    def send(self, *frames: bytes) -> list[Any]:
        """Say something; returns what has come since the last time."""
        if frames:
            self.protocol.dataReceived(b"".join(frames))
        return self.heard()

    def raw(self) -> bytes:
        data: bytes = self.transport.value()
        self.transport.clear()
        return data

    def heard(self) -> list[Any]:
        return decoded(self.raw())

    @property
    def closed(self) -> bool:
        return self.transport.lost

    def read(self) -> list[Any]:
        """Begin to read again, until nothing more comes."""
        self.transport.stuck = False
        self.transport.read()
        while self.protocol.stalled:
            self.protocol.factory.reactor.advance(0)
        return self.heard()


class InMemory(SynchronousTestCase):
    def start(self, **options: Any) -> MemoryBroker:
        self.memory = MemoryBroker(**options)
        service = self.memory.broker.getServiceNamed("msgpack")
        assert isinstance(service, MsgpackService)
        self.service = service
        self.hub = self.memory.hub
        return self.memory

    def setUp(self) -> None:
        self.start()

    def client(self, *frames: bytes) -> Client:
        return Client(self.service, *frames)


class CommandTests(InMemory):
    def test_publish_and_subscribe(self) -> None:
        """What one client publishes, the others that asked for it get, and so does itself."""
        one, other = self.client(subscribe("a*")), self.client(subscribe("?b"))
        self.assertEqual(one.send(publish("ab", 1), publish("b", 2)), [["ab", 1]])
        self.assertEqual(other.heard(), [["ab", 1]])

    def test_both_shapes(self) -> None:
        """Arguments come by position or by name, at each level."""
        for frame in (
            {"Subscribe": ["a"]},
            {"Subscribe": {"pattern": "a"}},
        ):
            client = self.client(packed(frame))
            for message in (
                [["a", 1]],
                {"message": {"topic": "a", "value": 1}},
                {"message": {"value": 1, "topic": "a"}},
                {"message": ["a", 1]},
                [{"topic": "a", "value": 1}],
            ):
                said = client.send(packed({"Publish": message}))
                self.assertEqual(said[-1:], [["a", 1]], message)
        client.send(packed({"Unsubscribe": {"pattern": "a"}}))
        self.assertEqual(client.send(publish("a", 2)), [])

    def test_other_spellings(self) -> None:
        """Lengths may be written longer than they need to be."""
        topic, value = b"\xda\x00\x01a", b"\xd3" + bytes(7) + b"\x01"
        frame = b"\xdf\x00\x00\x00\x01\xd9\x07Publish\xdd\x00\x00\x00\x01\xdc\x00\x02"
        client = self.client(subscribe("a"))
        client.protocol.dataReceived(frame + topic + value)
        self.assertEqual(client.raw(), b"\x92" + topic + value)

    def test_one_delivery(self) -> None:
        """A message that several patterns of a client match comes once."""
        client = self.client(subscribe("*"), subscribe("a*"), subscribe("ab"))
        client.heard()
        self.assertEqual(client.send(publish("ab", 1)), [["ab", 1]])

    def test_patterns_are_counted(self) -> None:
        """A pattern that was subscribed to twice ends with the second Unsubscribe."""
        client = self.client(subscribe("a*"), subscribe("a*"), unsubscribe("a*"))
        self.assertEqual(client.send(publish("ab", 1)), [["ab", 1]])
        self.assertEqual(client.send(unsubscribe("a*"), publish("ab", 2)), [])
        self.assertEqual(client.send(unsubscribe("a*"), publish("ab", 3)), [])
        self.assertFalse(client.closed)

    def test_order_across_topics(self) -> None:
        """Messages of several topics in one chunk come in the order they were published, also to
        clients that want some of them only."""
        everything = self.client(subscribe("?"))
        some = self.client(subscribe("a"), subscribe("c"))
        topics = "abcabcca"
        self.client(*(publish(t, i) for i, t in enumerate(topics)))
        self.assertEqual(everything.heard(), [[t, i] for i, t in enumerate(topics)])
        self.assertEqual(some.heard(), [[t, i] for i, t in enumerate(topics) if t != "b"])

    def test_gone_clients_leave_nothing(self) -> None:
        """After the last client has gone, nobody gets anything and nothing is kept for it."""
        client = self.client(subscribe("a*"), subscribe("a*"), subscribe("b"))
        client.transport.loseConnection()
        feed = self.service.factory.feed
        self.assertEqual((len(feed.globs), self.hub.clients), (0, {}))
        self.assertEqual(self.hub.publish(Message("ab", b"1")), 0)

    def test_frames_cut_anywhere(self) -> None:
        """It does not matter how the bytes are cut into chunks."""
        frames = subscribe("*") + publish("a", {"k": [1, b"x" * 40]}) + publish("b" * 40, None)
        expected = [["a", {"k": [1, b"x" * 40]}], ["b" * 40, None]]
        for cut in range(1, len(frames)):
            self.start()
            client = self.client()
            heard = client.send(frames[:cut]) + client.send(frames[cut:])
            self.assertEqual(heard, expected, cut)
        self.start()
        client = self.client()
        heard = [m for i in range(len(frames)) for m in client.send(frames[i : i + 1])]
        self.assertEqual(heard, expected)

    def test_counts(self) -> None:
        """Each delivery is counted once, for the client and for all."""
        one, other = self.client(subscribe("a")), self.client(subscribe("*"))
        one.send(publish("a", "hello"), publish("b", 1))
        totals = self.hub.totals
        self.assertEqual((totals.in_msgs, totals.out_msgs), (2, 3))
        self.assertEqual(totals.in_bytes, len(packed("hello")) + 1)
        by_door = self.hub.by_door()["msgpack"]
        self.assertEqual((by_door.in_msgs, by_door.out_msgs, by_door.changes), (2, 3, 2))
        self.assertEqual(other.protocol.counters.out_msgs, 2)


#: Values as they may stand on the wire, among them some that Python has no object for.
RAW_VALUES = [
    *map(packed, [None, True, -1, 2**64 - 1, -(2**63), 1.5, "é😀", b"\x00\xff", [], {}]),
    packed({1: "int", None: "nil", b"b": "bin", 1.5: "float", False: [{"x": {}}]}),
    packed(msgpack.ExtType(5, b"data")),
    packed(msgpack.Timestamp(1, 5)),
    b"\xc7\x0c\xff" + b"\xff" * 12,  # a time beyond the calendar
    b"\xca\x3f\x80\x00\x00",  # a float of 32 bits
    b"\xd3\x00\x00\x00\x00\x00\x00\x00\x01",  # a small number in 64 bits
    b"\x82\xa1a\x01\xa1a\x02",  # a key twice
    b"\x81\x81\x01\x02\x03",  # a map as a key
    b"\x81\x92\x01\x02\x03",  # an array as a key
    b"\xa2\xff\xfe",  # text that is no UTF-8
    b"\xdc\x00\x01\xdd\x00\x00\x00\x00",
    b"\x91" * 500 + b"\xc0",
]


class ValueTests(InMemory):
    def test_exact_between_msgpack_clients(self) -> None:
        """A value comes out as the bytes that went in, live and retained, whatever else happens
        to it on its way to other doors."""
        library = self.memory.library()
        library.send(b"SUB t 1\r\n")
        client = self.client(subscribe("t"))
        for raw in RAW_VALUES:
            client.send(b"\x81\xa7Publish\x91")  # in two chunks
            client.protocol.dataReceived(b"\x92\xa1t" + raw)
            self.assertEqual(client.raw(), b"\x92\xa1t" + raw)
            late = self.client()
            late.protocol.dataReceived(subscribe("t"))
            self.assertEqual(late.raw(), b"\x92\xa1t" + raw)
            self.assertIn(b"MSG t 1 ", library.heard())

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
            | st.text() | st.binary(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
            max_leaves=20,
        )
    )  # fmt: skip
    @settings(max_examples=50, deadline=None)
    def test_any_value(self, value: Any) -> None:
        client = self.client(subscribe("only.this"))
        client.raw()
        client.protocol.dataReceived(publish("only.this", value))
        self.assertEqual(client.raw(), packed(["only.this", value]))
        client.transport.loseConnection()

    def test_to_a_byte_door(self) -> None:
        """Bytes are bytes, text is UTF-8, the rest is JSON."""
        library = self.memory.library()
        library.send(b"SUB t 1\r\n")
        client = self.client()
        for value, payload in (
            (b"\x00\xff", b"\x00\xff"),
            ("é", "é".encode()),
            ({"a": [1, None, b"x"]}, b'{"a":[1,null,"eA=="]}'),
            ({1: 2}, b'{"1":2}'),
            (msgpack.ExtType(5, b"x"), b'[5,"eA=="]'),
            (msgpack.Timestamp(0), b'"1970-01-01T00:00:00Z"'),
        ):
            client.send(publish("t", value))
            expected = b"MSG t 1 %d\r\n%b\r\n" % (len(payload), payload)
            self.assertEqual(library.heard(), expected)

    def test_from_a_byte_door(self) -> None:
        """JSON becomes its value, other text text, the rest bytes; live, in bulk and retained."""
        client = self.client(subscribe("t"))
        library = self.memory.library()
        for payload, value in (
            (b'{"a": [1, null]}', {"a": [1, None]}),
            (b"hello", "hello"),
            (b"\xff\x00", b"\xff\x00"),
            (b"", ""),
            (b"123456789012345678901234567890", "123456789012345678901234567890"),
            (b"[" * 400 + b"]" * 400, None),
            (b"[" * 5000 + b"]" * 5000, "[" * 5000 + "]" * 5000),
        ):
            line = b"PUB t %d\r\n%b\r\n" % (len(payload), payload)
            library.send(line + line)
            heard = client.heard()
            if value is not None:
                self.assertEqual(heard, [["t", value]] * 2)
            self.assertEqual(len(heard), 2)
            self.assertEqual(self.client().send(subscribe("t")), heard[:1])
        self.assertFalse(client.closed)

    def test_a_subject_that_is_no_utf_8(self) -> None:
        client = self.client(subscribe("x*"))
        self.memory.library().send(b"PUB x\xff 2\r\nhi\r\n")
        self.assertEqual(client.heard(), [["x�", "hi"]])

    def test_nested_too_deep_for_other_doors(self) -> None:
        """JSON of very deep values could not be read: other doors get the msgpack as it is."""
        for depth, expected in ((MOST_NESTED - 1, False), (MOST_NESTED + 1, True), (1000, True)):
            raw = b"\x91" * depth + b"\xc0"
            self.assertEqual(unpack(raw) == raw, expected, depth)
        wide = packed([[i] for i in range(1000)])
        self.assertEqual(unpack(wide), [[i] for i in range(1000)])

    def test_the_value_is_not_kept(self) -> None:
        """The history counts bytes: the objects that a value unpacks to must not stay in it."""
        message = PackedMessage("t", packed(["t", [[]] * 10]), len(b"\x92\xa1t"))
        self.assertEqual(message.value, [[]] * 10)
        self.assertIsNot(message.value, message.value)
        self.assertEqual(message.size, 11)


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
        route = self.hub.trie.route
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
        route = self.hub.trie.route("a.b")
        self.client(subscribe("*"))
        self.assertTrue(route.live)
        self.client().send(publish("a.b", 1))
        self.assertIs(self.hub.trie.route("a.b"), route)

    def test_more_topics_than_are_kept_ready(self) -> None:
        from rtmb.doors import feed

        self.patch(feed, "_CACHE", 3)
        self.patch(door, "_CACHE", 3)
        client = self.client(subscribe("t*"))
        said = client.send(*(publish(f"t{i}", i) for i in range(10)))
        self.assertEqual(said, [[f"t{i}", i] for i in range(10)])
        self.assertLessEqual(len(self.service.factory.feed._audiences), 3)
        self.assertLessEqual(len(self.service.factory.topics), 3)


BAD_FRAMES = {
    "not msgpack": b"\xc1",
    "a frame is a map with one key": b"\x92\xa1a\x01",
    "a frame is a map with one key, the command": packed({"Subscribe": ["a"], "b": 1}),
    "a frame is a map": b"\x80",
    "a command is no text": packed({1: ["a"]}),
    "a command is not UTF-8": b"\x81\xa1\xff\x91\xa1a",
    "unknown command 'Shout'": packed({"Shout": ["a"]}),
    "Subscribe wants [pattern]": packed({"Subscribe": ["a", "b"]}),
    "Subscribe wants": packed({"Subscribe": "a"}),
    "Unsubscribe wants [pattern]": packed({"Unsubscribe": {"topic": "a"}}),
    "Unsubscribe wants": packed({"Unsubscribe": []}),
    "a pattern is no text": packed({"Subscribe": [b"a"]}),
    "a pattern is not UTF-8": b"\x81\xa9Subscribe\x91\xa1\xff",
    "Publish wants [message]": packed({"Publish": ["a", 1]}),
    "a message wants [topic, value]": packed({"Publish": [["a"]]}),
    "a message wants": packed({"Publish": [["a", 1, 2]]}),
    "a message wants [topic": packed({"Publish": [{"topic": "a", "payload": 1}]}),
    "a topic is no text": packed({"Publish": [[1, 1]]}),
    "a topic is no": packed({"Publish": [[b"a", 1]]}),
    "a topic is not UTF-8": b"\x81\xa7Publish\x91\x92\xa1\xff\x01",
    "nested too deeply": b"\x91" * 5000,
    "nested too": b"\x81\xa7Publish\x91\x92\xa1a" + b"\x91" * 5000,
    "a value of 101 bytes, over max_payload": publish("a", "x" * 99),
    "a topic of 51 characters, over max_control_line": publish("é" * 51, 1),
    "a pattern of 51 characters, over max_control_line": subscribe("a" * 51),
    "a frame of more than 364 bytes": publish("a", "x" * 400),
    "a frame of more than": b"\xdd\xff\xff\xff\xff" + b"\x01" * 400,
    "a frame of more": b"\x81\xa7Publish\xc6\xff\xff\xff\xff" + b"x" * 400,
}


class BadFrameTests(InMemory):
    def setUp(self) -> None:
        self.start(max_payload=100, max_control_line=50)

    def test_each_closes_its_client_only(self) -> None:
        """The frames before a bad one count, those after it do not; the log says who and why; the
        other clients notice nothing."""
        for reason, frame in BAD_FRAMES.items():
            other = self.client(subscribe("ok*"))
            other.heard()
            bad = self.client()
            with capturedLogs() as logs:
                bad.send(publish("ok", reason), frame, publish("ok2", "no"))
            self.assertTrue(bad.closed, reason)
            self.assertEqual(other.send(publish("ok3", 1)), [["ok", reason], ["ok3", 1]])
            self.assertFalse(other.closed)
            lines = [formatEvent(event) for event in logs]
            who = bad.protocol.name
            self.assertIn(f"bad frame: {who}: {reason}", "\n".join(map(str, lines)))
            self.assertIn(f"disconnected: bad frame: {reason}", "\n".join(map(str, lines)))
            other.transport.loseConnection()

    def test_byte_by_byte(self) -> None:
        for reason, frame in BAD_FRAMES.items():
            bad = self.client()
            for i in range(len(frame)):
                bad.send(frame[i : i + 1])
            self.assertTrue(bad.closed, reason)

    def test_the_limits_themselves_are_fine(self) -> None:
        client = self.client(subscribe("é" * 50))
        self.assertEqual(client.send(publish("é" * 50, "x" * 98)), [["é" * 50, "x" * 98]])

    @given(st.binary(max_size=40))
    @settings(max_examples=300, deadline=None)
    def test_no_bytes_do_harm(self, data: bytes) -> None:
        client = self.client()
        client.send(data)
        client.send(subscribe("a")[:5], data)
        if not client.closed:
            client.transport.loseConnection()
        self.flushLoggedErrors()
        self.assertEqual(self.hub.clients, {})

    def test_a_declared_length_costs_nothing(self) -> None:
        """An array of four billion is believed when it has come, not before."""
        client = self.client(b"\x81\xa7Publish\xdd\xff\xff\xff\xff")
        self.assertFalse(client.closed)
        self.assertLess(client.protocol._waiting, 20)


class LimitTests(InMemory):
    def test_max_subscriptions(self) -> None:
        self.start(max_subscriptions=2)
        client = self.client(subscribe("a"), subscribe("b"), subscribe("a"))
        self.assertFalse(client.closed)
        client.send(subscribe("c"))
        self.assertTrue(client.closed)

    def test_max_connections(self) -> None:
        """The limit is for all doors together."""
        self.start(max_connections=2)
        self.memory.library()
        fits = self.client()
        with capturedLogs() as logs:
            over = self.client()
        self.assertEqual((fits.closed, over.closed), (False, True))
        self.assertIn("maximum connections exceeded", formatEvent(logs[0]))


class SlowTests(InMemory):
    """A client that does not read, with room for nearly nothing and a buffer of four messages."""

    def setUp(self) -> None:
        self.patch(door, "ROOM", 1)
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
        self.patch(door, "ROOM", 1)
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


GUEST = {
    "user": "guest",
    "password": "",
    "permissions": {
        "publish": {"deny": ["closed.>"]},
        "subscribe": {"deny": ["secret.>", "hidden topic"]},
    },
}


def access(guest: str = "guest", **changes: Any) -> Access:
    users = [{**GUEST, **changes}, {"user": "ann", "password": "pw"}]
    return Access.from_table({"users": users, "no_auth_user": guest})


class AccessTests(InMemory):
    def listens(self) -> bool:
        return self.service.listening is not None

    def test_closed_where_nobody_can_be_asked(self) -> None:
        """With users and no guest among them the door does not open, and says so once."""
        self.start(access=access(""))
        with capturedLogs() as logs:
            self.service.privilegedStartService()
            self.service.startService()
        lines = [formatEvent(e) for e in logs]
        self.assertEqual(len([line for line in lines if "msgpack door: closed" in line]), 1)
        self.assertFalse(self.listens())
        self.assertTrue(self.client().closed, "and nobody gets in by any other way")

    def test_open_without_users(self) -> None:
        self.service.privilegedStartService()
        self.service.startService()
        self.assertTrue(self.listens())

    def test_an_authenticator_that_takes_its_time(self) -> None:
        """Nobody is let in before it has said who they are."""
        answer: Deferred[User | None] = Deferred()
        self.start(access=access())
        self.patch(self.memory.broker.authenticator, "authenticate", lambda credentials: answer)
        self.service.privilegedStartService()
        self.assertFalse(self.listens())
        self.assertTrue(self.client().closed)
        answer.callback(User(name="someone"))
        self.assertTrue(self.listens())
        self.assertFalse(self.client().closed)

    def test_an_authenticator_that_fails(self) -> None:
        self.start(access=access())
        answer: Deferred[User | None] = Deferred()
        self.patch(self.memory.broker.authenticator, "authenticate", lambda credentials: answer)
        self.service.privilegedStartService()
        answer.errback(RuntimeError("no"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertFalse(self.listens())

    def test_permissions_of_the_guest(self) -> None:
        """What the guest may not publish goes nowhere, what it may not see does not come: live,
        retained, in bulk, or on topics that are no subjects."""
        self.start(access=access())
        self.service.privilegedStartService()
        ann = self.memory.library(user="ann", **{"pass": "pw"})
        ann.send(b"SUB > 1\r\n")
        ann.send(b"PUB secret.a 1\r\n1\r\n" * 10 + b"PUB open 1\r\n1\r\n")
        client = self.client(subscribe("*"), subscribe("secret.*"), subscribe("secret.a"))
        topics = {topic for topic, _ in client.heard() if topic[0] != "!"}
        self.assertEqual(topics, set())
        client = self.client()
        heard = client.send(subscribe("*"), subscribe("secret.a"))
        self.assertEqual([m for m in heard if m[0][0] != "!"], [["open", 1]])
        ann.send(b"PUB secret.a 1\r\n2\r\n" * 10)
        self.assertEqual(client.heard(), [])
        ann.heard()
        with capturedLogs() as logs:
            said = client.send(publish("closed.a", 1), publish("closed.a", 2), publish("open", 3))
        self.assertEqual(said, [["open", 3]])
        self.assertEqual(ann.heard(), b"MSG open 1 1\r\n3\r\n")
        self.assertEqual(len([e for e in logs if "refused" in (formatEvent(e) or "")]), 1)
        self.assertFalse(client.closed)

    def test_reload(self) -> None:
        """New permissions count at once; when there is no guest any more, the clients must go."""
        self.start(access=access())
        self.service.privilegedStartService()
        client = self.client(subscribe("*"))
        client.heard()
        ann = self.memory.library(user="ann", **{"pass": "pw"})
        ann.send(b"PUB secret.a 1\r\n1\r\n")
        self.assertEqual(client.send(publish("closed.a", 1), publish("secret.a", 1)), [])
        self.memory.broker.reload(Settings(access=access(permissions={})))
        self.assertEqual(client.send(publish("secret.a", 1)), [["secret.a", 1]])
        self.assertEqual(client.send(publish("closed.a", 1)), [["closed.a", 1]])
        self.memory.broker.reload(Settings(access=access("")))
        self.assertTrue(client.closed)
        self.assertTrue(self.client().closed)

    def test_a_guest_that_expires(self) -> None:
        from datetime import UTC, datetime

        ends = datetime.fromtimestamp(self.memory.clock.seconds() + 60, UTC)
        self.start(access=access(expires=ends))
        self.service.privilegedStartService()
        client = self.client()
        self.memory.clock.advance(59)
        self.assertFalse(client.closed)
        self.memory.clock.advance(2)
        self.assertTrue(client.closed)
        self.assertTrue(self.client().closed)


class WithProcess(unittest.TestCase):
    def broker(self, *arguments: str, **options: Any) -> BrokerProcess:
        broker = BrokerProcess(*arguments, **options)
        self.addCleanup(broker.stop)
        return broker

    def port(self, broker: BrokerProcess) -> int:
        return int(broker.expect_log(r"msgpack door: \S+?:(\d+)")[1])

    def client(self, broker: BrokerProcess, **options: Any) -> RawClient:
        client = RawClient(self.port(broker), info=False, **options)
        self.addCleanup(client.close)
        return client


class ProcessTests(WithProcess):
    def test_a_client_that_never_reads(self) -> None:
        """100 MB at a client that does not read cost the broker a few MiB; when it reads again it
        gets the newest messages in order, still connected."""
        broker = self.broker("--history", "1")
        slow = self.client(broker, receive_buffer=65536)
        slow.send(subscribe("flood") + publish("ready", 1) + subscribe("ready"))
        slow.read_until(packed(["ready", 1]))
        fast = self.client(broker)
        fast.send(subscribe("end") + publish("end", 0))
        fast.read_until(packed(["end", 0]))
        filling = "x" * 10_000
        fast.send(b"".join(publish("flood", [i, filling]) for i in range(200)))
        fast.send(publish("end", 1))
        fast.read_until(packed(["end", 1]))
        before = broker.rss()
        for start in range(200, 10_200, 200):
            fast.send(b"".join(publish("flood", [i, filling]) for i in range(start, start + 200)))
        fast.send(publish("end", 2))
        fast.read_until(packed(["end", 2]))
        grown = broker.rss() - before
        self.assertLess(grown, 12 << 20, "a few MiB: the buffer and what the allocator keeps")
        unpacker = msgpack.Unpacker()
        numbers: list[int] = []
        while not numbers or numbers[-1] != 10_199:
            data = slow.socket.recv(1 << 20)
            self.assertTrue(data, "closed")
            unpacker.feed(data)
            numbers += [value[0] for _, value in unpacker]
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertLess(len(numbers), 10_200)
        newest = [n for n in numbers if n > 10_199 - 50]
        self.assertEqual(newest, list(range(newest[0], 10_200)))
        fast.send(publish("flood", [-1, ""]))
        slow.read_until(packed(["flood", [-1, ""]]))
        self.assertEqual(broker.log().count("slow consumer"), 1)
        broker.expect_log(r"dropped \d+ messages for \S+ - cid:\d+, on flood")

    def test_metrics_at_every_door(self) -> None:
        broker = self.broker("--metrics-interval", "0.2")
        client = self.client(broker)
        client.send(subscribe("!system/metrics/msgpack/connections"))
        client.read_until(packed(["!system/metrics/msgpack/connections", 1]))
        with RawClient(broker.port) as library:
            library.connect()
            library.send(b"SUB $LAST.!system/metrics/connections 1\r\n")
            library.read_until(b"MSG !system/metrics/connections 1 1\r\n2\r\n")

    def test_turned_off(self) -> None:
        broker = self.broker("--no-msgpack")
        self.assertNotIn("msgpack door", broker.log())

    def test_tls(self) -> None:
        """With TLS the door is TLS from the first byte."""
        place = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, place)
        authority = Authority()
        certificate, key = authority.issue("server")
        for name, data in (("ca", authority.pem), ("cert", certificate), ("key", key)):
            (place / name).write_bytes(data)
        broker = self.broker(
            "--tls-cert",
            str(place / "cert"),
            "--tls-key",
            str(place / "key"),
            "--auth-timeout",
            "1",
        )
        context = ssl.create_default_context(cafile=str(place / "ca"))
        client = self.client(broker, tls_first=context)
        client.send(subscribe("a") + publish("a", "x" * 300_000))
        client.read_until(packed(["a", "x" * 300_000]))
        silent = self.client(broker)
        self.assertEqual(silent.read_to_end(), b"")
        broker.expect_log("disconnected: TLS handshake timeout")

    def test_a_taken_port(self) -> None:
        broker = self.broker()
        port = str(self.port(broker))
        ended = twistd("--port", "0", "--msgpack-port", port, cwd=broker.directory)
        self.assertIn("Address already in use; see --msgpack-port", ended.stdout + ended.stderr)
        self.assertEqual(ended.returncode, 1)


class ExampleTests(WithProcess):
    """The clients in `examples/`, as their first lines say to run them."""

    def setUp(self) -> None:
        need(self, EXAMPLES.is_dir(), "the examples are not installed with the package")

    def try_client(self, command: list[str], cwd: Path | None, expected: bytes) -> None:
        broker = self.broker()
        address = f"127.0.0.1:{self.port(broker)}"

        def run(*words: str) -> None:
            subprocess.run(
                [*command, address, *words],
                cwd=cwd,
                env=environment(),
                timeout=PATIENCE,
                check=True,
            )

        for number in (1, 2):
            value = f'{{"n": {number}}}'
            run("publish", "weather/oslo", value)
        watching = subprocess.Popen(
            [*command, address, "subscribe", "weather/*", "live"],
            cwd=cwd,
            env=environment(),
            stdout=subprocess.PIPE,
        )
        assert watching.stdout is not None
        tail = Tail(watching.stdout.fileno())
        try:
            tail.expect(expected)
            run("publish", "weather/bergen", "3")
            tail.expect(b"weather/bergen 3")
            self.assertNotIn(b"1}", tail.data)
        finally:
            watching.kill()
            watching.wait()
            tail.join()
            watching.stdout.close()

    def test_python(self) -> None:
        script = EXAMPLES / "msgpack_client.py"
        self.assertLess(len(script.read_text().splitlines()), 40)
        self.try_client([sys.executable, str(script)], None, rb"weather/oslo {'n': 2}")

    def test_javascript(self) -> None:
        script = EXAMPLES / "msgpack_client.js"
        self.assertLess(len(script.read_text().splitlines()), 40)
        place = _with_npm(self, "@msgpack/msgpack@3")
        shutil.copy(script, place)
        self.try_client(["node", script.name], place, rb'weather/oslo {"n":2}')


def _with_npm(test: unittest.TestCase, package: str) -> Path:
    """A folder where node finds `package`, made once."""
    npm = shutil.which("npm")
    need(test, npm and shutil.which("node"), "node and npm are not installed")
    cache = os.environ.get("RTMB_TEST_CACHE") or os.environ.get("XDG_CACHE_HOME")
    root = Path(cache or Path(tempfile.gettempdir(), f"rtmb-test-cache-{os.getuid()}"))
    place = root / "rtmb-npm" / hashlib.sha256(package.encode()).hexdigest()[:12]
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "node_modules").is_dir():
        (place / "package.json").write_text("{}")
        command = [str(npm), "install", "--no-audit", "--no-fund", package]
        try:
            subprocess.run(command, cwd=place, capture_output=True, check=True, timeout=120)
        except (subprocess.SubprocessError, OSError):
            need(test, False, f"npm could not install {package}")
    return place
