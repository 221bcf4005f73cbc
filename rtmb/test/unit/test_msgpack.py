"""Tests for `rtmb.doors.msgpack.protocol`: commands, bad frames, who may come in."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

from rtmb.auth import AuthTable, User
from rtmb.codecs.msgpack import MOST_TOKENS, MOST_WILDCARDS
from rtmb.config import Settings
from rtmb.core.message import MOST_NESTED, Message
from rtmb.test.support.msgpack import InMemory, packed, publish, subscribe, unsubscribe


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
        self.assertEqual((len(feed.globs), len(self.memory.broker.clients)), (0, 0))
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
        by_door = self.memory.broker.clients.by_door()["msgpack"]
        self.assertEqual((by_door.in_msgs, by_door.out_msgs, by_door.changes), (2, 3, 2))
        self.assertEqual(other.protocol.counters.out_msgs, 2)


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
        self.assertEqual(len(self.memory.broker.clients), 0)

    def test_a_declared_length_costs_nothing(self) -> None:
        """An array of four billion is believed when it has come, not before."""
        client = self.client(b"\x81\xa7Publish\xdd\xff\xff\xff\xff")
        self.assertFalse(client.closed)
        self.assertLess(client.protocol._frames.waiting, 20)


class LimitTests(InMemory):
    def test_max_subscriptions(self) -> None:
        self.start(max_subscriptions=2)
        client = self.client(subscribe("a"), subscribe("b"), subscribe("a"))
        self.assertFalse(client.closed)
        client.send(subscribe("c"))
        self.assertTrue(client.closed)

    def test_what_would_cost_too_much(self) -> None:
        """Topics of many tokens, patterns of many wildcards, and keys of maps that are nested
        deep close their client only, and say so."""
        keys = b"\x81" * MOST_NESTED + b"\x01" * (MOST_NESTED + 1)
        fine = [
            publish("a" + ".a" * (MOST_TOKENS - 1), 1),
            subscribe("*a" * (MOST_WILDCARDS // 2) + "a?" * (MOST_WILDCARDS // 2)),
            b"\x81\xa7Publish\x91\x92\xa1a" + keys,
        ]
        bad = {
            "a topic of 129 tokens; 128 are the most": publish("a" + ".a" * MOST_TOKENS, 1),
            "a pattern of 17 wildcards; 16 are the most": subscribe("*a" * 17),
            "a pattern of 18 wildcards; 16 are the most": subscribe("a?" * 18),
            "keys of a map nested too deeply": fine[2].replace(keys, b"\x81" + keys + b"\x01"),
            "keys of a map nested": b"\x81\xa7Publish\x91\x92\xa1a" + b"\x81" * 1000 + bytes(1001),
        }
        other = self.client(subscribe("b"))
        self.assertFalse(self.client(*fine).closed)
        for reason, frame in bad.items():
            with capturedLogs() as logs:
                client = self.client(publish("b", 1), frame)
            self.assertTrue(client.closed, reason)
            self.assertIn(f"bad frame: {reason}", "\n".join(str(formatEvent(e)) for e in logs))
            self.assertEqual(other.heard(), [["b", 1]])

    def test_a_key_that_is_nested_deep_leaves_the_other_doors_alone(self) -> None:
        library = self.memory.library()
        for depth in (60, 1000):
            value = b"\x81" * depth + b"\x01" * (depth + 1)
            self.client(b"\x81\xa7Publish\x91\x92\xa1a" + value)
        heard = library.send(b"SUB $LAST.> 1\r\n")
        self.assertIn(b"MSG a 1 121\r\n", heard)  # what JSON cannot say is its msgpack
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_max_connections(self) -> None:
        """The limit is for all doors together."""
        self.start(max_connections=2)
        self.memory.library()
        fits = self.client()
        with capturedLogs() as logs:
            over = self.client()
        self.assertEqual((fits.closed, over.closed), (False, True))
        self.assertIn("maximum connections exceeded", formatEvent(logs[0]))


GUEST = {
    "user": "guest",
    "password": "",
    "permissions": {
        "publish": {"deny": ["closed.>"]},
        "subscribe": {"deny": ["secret.>", "hidden topic"]},
    },
}


def access(guest: str = "guest", **changes: Any) -> AuthTable:
    users = [{**GUEST, **changes}, {"user": "ann", "password": "pw"}]
    return AuthTable.from_table({"users": users, "no_auth_user": guest})


class AccessTests(InMemory):
    def listens(self) -> bool:
        return self.service.listening is not None

    def test_closed_where_nobody_can_be_asked(self) -> None:
        """With users and no guest among them the door does not open, and says so once."""
        self.start(auth=access(""))
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
        self.start(auth=access())
        self.patch(self.memory.broker.authenticator, "authenticate", lambda credentials: answer)
        self.service.privilegedStartService()
        self.assertFalse(self.listens())
        self.assertTrue(self.client().closed)
        answer.callback(User(name="someone"))
        self.assertTrue(self.listens())
        self.assertFalse(self.client().closed)

    def test_an_authenticator_that_fails(self) -> None:
        self.start(auth=access())
        answer: Deferred[User | None] = Deferred()
        self.patch(self.memory.broker.authenticator, "authenticate", lambda credentials: answer)
        self.service.privilegedStartService()
        answer.errback(RuntimeError("no"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertFalse(self.listens())

    def test_permissions_of_the_guest(self) -> None:
        """What the guest may not publish goes nowhere, what it may not see does not come: live,
        retained, in bulk, or on topics that are no subjects."""
        self.start(auth=access())
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
        self.start(auth=access())
        self.service.privilegedStartService()
        client = self.client(subscribe("*"))
        client.heard()
        ann = self.memory.library(user="ann", **{"pass": "pw"})
        ann.send(b"PUB secret.a 1\r\n1\r\n")
        self.assertEqual(client.send(publish("closed.a", 1), publish("secret.a", 1)), [])
        self.memory.broker.reload(Settings(auth=access(permissions={})))
        self.assertEqual(client.send(publish("secret.a", 1)), [["secret.a", 1]])
        self.assertEqual(client.send(publish("closed.a", 1)), [["closed.a", 1]])
        self.memory.broker.reload(Settings(auth=access("")))
        self.assertTrue(client.closed)
        self.assertTrue(self.client().closed)

    def test_a_guest_that_expires(self) -> None:
        from datetime import UTC, datetime

        ends = datetime.fromtimestamp(self.memory.clock.seconds() + 60, UTC)
        self.start(auth=access(expires=ends))
        self.service.privilegedStartService()
        client = self.client()
        self.memory.clock.advance(59)
        self.assertFalse(client.closed)
        self.memory.clock.advance(2)
        self.assertTrue(client.closed)
        self.assertTrue(self.client().closed)
