"""Tests for `rtmb.client`, in memory and with a clock. `test_client_servers` has real servers."""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import Any, Unpack

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rtmb.auth import Access, decode_nkey
from rtmb.client import (
    AuthenticationFailed,
    BadSubject,
    BufferFull,
    Client,
    ClientError,
    ClientService,
    ConnectionClosed,
    ConnectionFailed,
    Disconnected,
    Event,
    Headers,
    Message,
    NoResponders,
    Options,
    PayloadTooLarge,
    PermissionViolation,
    RequestTimeout,
    Subscription,
    SubscriptionEnded,
    Timeout,
)
from rtmb.client.address import Nkey, parse_url
from rtmb.client.connection import Connection
from rtmb.client.outgoing import Outgoing
from rtmb.testing import MemoryBroker
from rtmb.testing.memory import MemoryTransport

reactor: Any = _reactor


def new_seed() -> str:
    """A user's nkey seed."""
    seed, user = 18 << 3, 20 << 3
    raw = bytes([seed | user >> 5, (user & 31) << 3]) + os.urandom(32)
    check = binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(raw + check).decode().rstrip("=")


class AddressTests(SynchronousTestCase):
    def test_urls(self) -> None:
        """What a URL leaves out has a default."""
        for url, scheme, host, port, user, password in (
            ("nats://h", "nats", "h", 4222, None, None),
            ("h", "nats", "h", 4222, None, None),
            ("h:5", "nats", "h", 5, None, None),
            ("tls://u:p%40@h:1", "tls", "h", 1, "u", "p@"),
            ("nats://token@h", "nats", "h", 4222, "token", None),
            ("ws://h", "ws", "h", 80, None, None),
            ("wss://[::1]:7/nats", "wss", "::1", 7, None, None),
        ):
            found = parse_url(url)
            self.assertEqual((found.scheme, found.host, found.port), (scheme, host, port), url)
            self.assertEqual((found.user, found.password), (user, password), url)

    def test_bad_urls(self) -> None:
        """They are refused, and the error does not tell the password."""
        for url in ("http://h", "nats://", "nats://h:x", "nats://h:99999", "x://u:secret@h"):
            error = self.assertRaises(ValueError, parse_url, url)
            self.assertNotIn("secret", str(error))

    def test_no_secrets_are_shown(self) -> None:
        found = parse_url("nats://u:secret@h")
        self.assertEqual(found.url, "nats://h:4222")
        self.assertNotIn("secret", repr(found))

    def test_a_server_named_by_another(self) -> None:
        """Host and port are its own, the rest is as for the one that named it."""
        found = parse_url("10.0.0.2:4223", parse_url("tls://u:p@h"))
        self.assertEqual((found.url, found.user), ("tls://10.0.0.2:4223", "u"))

    def test_seeds(self) -> None:
        seed = new_seed()
        self.assertEqual(seed[:2], "SU")
        self.assertEqual(len(decode_nkey(Nkey(seed).public)), 32)
        mistyped = seed[:20] + ("A" if seed[20] != "A" else "B") + seed[21:]
        for bad in ("", "SU", "x" * 58, mistyped, Nkey(seed).public):
            self.assertRaises(ValueError, Nkey, bad)


class Script(SynchronousTestCase):
    """A client whose server is this test, byte by byte."""

    def setUp(self) -> None:
        self.memory = MemoryBroker()
        self.client = self.memory.client()
        self.connection = Connection(self.client, parse_url("nats://h"))
        self.client._dial = lambda client, address: self.dialed()
        self.client.connect().addErrback(lambda failure: None)
        self.link()
        self.connection.dataReceived(b'INFO {"server_id": "x", "max_payload": 100}\r\n')
        self.hello = self.transport.value()
        self.connection.dataReceived(b"PONG\r\n")
        self.transport.clear()

    def link(self) -> None:
        self.transport = MemoryTransport()
        self.transport.protocol = self.connection
        self.connection.makeConnection(self.transport)

    def dialed(self) -> Deferred[Connection]:
        ready = self.connection.ready = Deferred()
        return ready

    def lose(self) -> None:
        """The connection is lost."""
        old = self.connection
        self.connection = Connection(self.client, parse_url("nats://h"))
        old.connectionLost(Failure(ConnectionDone()))

    def come_back(self) -> None:
        """There is another, and the client has said hello."""
        self.memory.clock.advance(1)
        self.link()
        self.connection.dataReceived(b'INFO {"server_id": "x"}\r\n')
        self.transport.clear()
        self.connection.dataReceived(b"PONG\r\n")

    def sent(self) -> bytes:
        self.memory.clock.advance(0)
        found: bytes = self.transport.value()
        self.transport.clear()
        return found


class WireTests(Script):
    def test_hello(self) -> None:
        lines = self.hello.split(b"\r\n")
        options = json.loads(lines[0].removeprefix(b"CONNECT "))
        self.assertEqual(lines[1:], [b"PING", b""])
        for name in ("headers", "no_responders", "echo"):
            self.assertIs(options[name], True)
        self.assertIs(options["verbose"], False)
        self.assertNotIn("user", options)

    def test_what_is_said(self) -> None:
        """One turn's words go out together, in order."""
        subscription = self.client.subscribe("a.*")
        self.client.subscribe("b", queue="q")
        self.client.publish("c", "é")
        self.client.publish("c", b"", reply="r")
        self.client.publish("c", b"x", reply="r", headers={"K": ["1", "2"]})
        self.client.publish("c", b"x", headers={"K": "1"})
        subscription.unsubscribe()
        self.assertEqual(
            self.sent(),
            b"SUB a.* 1\r\nSUB b q 2\r\n"
            b"PUB c 2\r\n\xc3\xa9\r\nPUB c r 0\r\n\r\n"
            b"HPUB c r 24 25\r\nNATS/1.0\r\nK: 1\r\nK: 2\r\n\r\nx\r\n"
            b"HPUB c 18 19\r\nNATS/1.0\r\nK: 1\r\n\r\nx\r\n"
            b"UNSUB 1\r\n",
        )
        self.assertEqual(self.sent(), b"")

    def test_split_anywhere(self) -> None:
        """However the bytes are cut, the messages are the same."""
        stream = (
            b"MSG a.b 1 5\r\nhe\r\no\r\nPING\r\nMSG a.b 1 5\r\nworld\r\n+OK\r\n"
            b"MSG a.c 1 rep.ly 0\r\n\r\nHMSG a.b 1 18 20\r\nNATS/1.0\r\nK: v\r\n\r\nhi\r\n"
            b"MSG other 99 3\r\nabc\r\nmsg\ta.b  1 1\r\nz\r\n"
        )
        wanted = [
            ("a.b", b"he\r\no", None, {}),
            ("a.b", b"world", None, {}),
            ("a.c", b"", "rep.ly", {}),
            ("a.b", b"hi", None, {"K": "v"}),
            ("a.b", b"z", None, {}),
        ]
        got: list[Message] = []
        self.client.subscribe("a.*", callback=got.append)
        cuts = [[stream[:i], stream[i:]] for i in range(len(stream))]
        cuts.append([stream[i : i + 1] for i in range(len(stream))])
        for pieces in cuts:
            got.clear()
            self.sent()
            for piece in pieces:
                self.connection.dataReceived(piece)
            found = [(m.subject, m.payload, m.reply, dict(m.headers)) for m in got]
            self.assertEqual(found, wanted, pieces)
            self.assertEqual(self.sent(), b"PONG\r\n")

    def test_a_broken_server(self) -> None:
        """What is not the protocol ends the connection, and harms nobody."""
        for said in (
            b"HELLO\r\n",
            b"MSG a\r\n",
            b"MSG a 1 x\r\n",
            b"x" * (2 << 20),
            b"INFO []\r\n",
        ):
            self.setUp()
            self.connection.dataReceived(said)
            self.assertTrue(self.transport.lost, said[:20])

    def test_limits_of_the_server(self) -> None:
        """INFO may change how much fits."""
        self.client.publish("a", b"x" * 100)
        self.assertRaises(PayloadTooLarge, self.client.publish, "a", b"x" * 101)
        self.assertRaises(PayloadTooLarge, self.client.publish, "a", b"x" * 90, headers={"A": "b"})
        self.connection.dataReceived(b'INFO {"max_payload": 200}\r\n')
        self.client.publish("a", b"x" * 101)

    def test_bad_subjects(self) -> None:
        """They raise, and nothing of them is sent."""
        for bad in ("", " ", "a b", "a..b", ".a", "a.*", ">", "a\r\nPUB x 0", "x" * 2000):
            self.assertRaises(BadSubject, self.client.publish, bad)
            self.assertRaises(BadSubject, self.client.publish, "ok", reply=bad)
            self.assertRaises(BadSubject, self.client.publish, "ok", reply=bad, headers={"a": "b"})
            self.failureResultOf(self.client.request(bad), BadSubject)
        for bad in ("", "a b", "a..b", "a.>.b", "a\r\n", "x" * 2000):
            self.assertRaises(BadSubject, self.client.subscribe, bad)
            self.assertRaises(BadSubject, self.client.subscribe, "ok", queue=bad or " ")
        for bad in ("", "a:b", "a\r\nb", " a", "é"):
            self.assertRaises(ValueError, self.client.publish, "ok", headers={bad: "x"})
        self.assertNotIn(b"PUB", self.sent())
        self.assertEqual(self.client.stats.out_msgs, 0)

    def test_headers_cannot_smuggle(self) -> None:
        self.client.publish("a", headers={"K": "v\r\n\r\nPUB b 0\r\n"})
        self.assertIn(b"K: v  PUB b 0\r\n\r\n\r\n", self.sent())

    def test_last_and_replay(self) -> None:
        """After a reconnect the last value is asked for again; a replay is not."""
        self.client.subscribe("a", last=True)
        self.client.subscribe("b.*", replay=5)
        self.assertEqual(self.sent(), b"SUB $LAST.a 1\r\nSUB $REPLAY.5.b.* 2\r\n")
        self.assertRaises(ValueError, self.client.subscribe, "a", last=True, replay=2)
        self.assertRaises(ValueError, self.client.subscribe, "a", replay=-1)
        self.lose()
        self.client.subscribe("c", replay=3)  # made while away: never asked for yet
        self.come_back()
        self.assertEqual(self.sent(), b"SUB $LAST.a 1\r\nSUB b.* 2\r\nSUB $REPLAY.3.c 3\r\n")

    def test_the_rest_of_a_maximum(self) -> None:
        """A new server counts from when it is told."""
        self.client.subscribe("m").unsubscribe(max=3)
        self.assertEqual(self.sent(), b"SUB m 1\r\nUNSUB 1 3\r\n")
        self.connection.dataReceived(b"MSG m 1 0\r\n\r\n")
        self.lose()
        self.come_back()
        self.assertEqual(self.sent(), b"SUB m 1\r\nUNSUB 1 2\r\n")

    def test_what_another_connection_is_told(self) -> None:
        """What the lost one had not taken, but for what is made anew; nothing begins in the
        middle."""
        self.transport.stuck = True
        self.client.publish("first", b"handed to the transport")
        self.memory.clock.advance(0)
        self.client.publish("a", b"1")
        self.client.subscribe("s")
        self.client.publish("a", b"2")
        self.client.flush().addErrback(lambda failure: None)
        self.client.publish("a", b"3")
        self.memory.clock.advance(0)
        self.lose()
        self.come_back()
        self.assertEqual(
            self.sent(), b"SUB s 1\r\n" + b"".join(b"PUB a 1\r\n%d\r\n" % i for i in (1, 2, 3))
        )


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


class MemoryTests(SynchronousTestCase):
    """With a broker in memory and a clock."""

    def setUp(self) -> None:
        self.memory = MemoryBroker()
        self.events: list[Event] = []

    def connect(self, **options: Unpack[Options]) -> Client:
        options.setdefault("on_event", self.events.append)
        client = self.memory.connect(**options)
        client._random = lambda: 0.0
        return client

    def told(self) -> list[str]:
        return [event.name for event in self.events]

    def read(self, subscription: Subscription) -> list[bytes]:
        """All that waits to be read."""
        self.memory.advance()
        found: list[bytes] = []
        while True:
            waiting = subscription.next()
            if not waiting.called:
                waiting.addErrback(lambda failure: None)
                waiting.cancel()
                return found
            if isinstance(waiting.result, Failure):
                self.failureResultOf(waiting, SubscriptionEnded)
                return found
            found.append(self.successResultOf(waiting).payload)


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
        self.assertEqual(len(self.memory.hub.trie), 0)

    def test_maximum_that_was_reached(self) -> None:
        """What was received before stays to be read."""
        client = self.connect()
        subscription = client.subscribe("a")
        client.publish("a", b"0")
        self.memory.advance()
        subscription.unsubscribe(max=1)
        self.assertEqual(self.read(subscription), [b"0"])
        self.assertEqual(len(self.memory.hub.trie), 0)

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
        self.assertEqual(len(self.memory.hub.trie), 0)

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


class AskingTests(MemoryTests):
    def test_request(self) -> None:
        """Many at once, each gets its own answer, over one subscription."""
        client, server = self.connect(), self.connect()
        server.subscribe("double", callback=lambda m: m.respond(str(2 * int(m.text))))
        self.memory.advance()
        answers = [client.request("double", str(i)) for i in range(20)]
        self.memory.advance()
        self.assertEqual(
            [self.successResultOf(answer).text for answer in answers],
            [str(2 * i) for i in range(20)],
        )
        self.assertEqual(len(self.memory.hub.trie), 2)
        self.assertEqual(len(client._requests), 0)

    def test_nobody(self) -> None:
        client = self.connect()
        asked = client.request("nobody.here")
        self.memory.advance()
        error = self.failureResultOf(asked, NoResponders).value
        self.assertIn("nobody.here", str(error))

    def test_too_late(self) -> None:
        """A request fails in time, and a late answer is nothing."""
        client = self.connect()
        questions: list[Message] = []
        client.subscribe("slow", callback=questions.append)
        asked = client.request("slow", timeout=2)
        self.memory.advance(1.9)
        self.assertNoResult(asked)
        self.memory.advance(0.2)
        self.failureResultOf(asked, RequestTimeout)
        questions[0].respond(b"late")
        self.memory.advance()
        self.assertEqual(len(client._requests), 0)

    def test_cancel(self) -> None:
        client = self.connect()
        client.subscribe("slow")
        asked = client.request("slow")
        asked.addErrback(lambda failure: None)
        asked.cancel()
        self.assertEqual(len(client._requests), 0)


class StayingTests(MemoryTests):
    """Losing the connection and coming back."""

    def test_backoff(self) -> None:
        """Waits double up to a limit; what is left out by chance is half at most."""
        client = self.connect(reconnect_wait=1, reconnect_wait_max=4)
        self.memory.lose_connections(reachable=False)
        self.assertEqual(self.told(), ["connected", "disconnected"])
        for wait in (1, 2, 4, 4):
            before = self.told().count("error")
            self.memory.advance(wait - 0.01)
            self.assertEqual(self.told().count("error"), before)
            self.memory.advance(0.01)
            self.assertEqual(self.told().count("error"), before + 1)
        client._random = lambda: 1.0
        self.memory.advance(4)  # the wait that had begun
        before = self.told().count("error")
        self.memory.advance(2)
        self.assertEqual(self.told().count("error"), before + 1)
        self.memory.reachable = True
        self.memory.advance(2)
        self.assertEqual(self.told()[-1], "reconnected")
        self.assertEqual(client.stats.reconnects, 1)
        self.assertEqual(client.connected_url, "nats://memory:4222")

    def test_giving_up(self) -> None:
        """After so many attempts all who wait are told."""
        client = self.connect(max_reconnects=3)
        subscription = client.subscribe("a")
        reading, flushing = subscription.next(), None
        self.memory.lose_connections(reachable=False)
        flushing, asking = client.flush(timeout=1000), client.request("a", timeout=1000)
        self.memory.advance(100)
        for _ in range(5):
            self.memory.advance(100)
        self.assertEqual(self.told().count("error"), 3)
        self.assertEqual(self.told()[-1], "closed")
        for waiting in (reading, flushing, asking):
            self.failureResultOf(waiting, ConnectionClosed)
        self.assertTrue(client.closed)
        self.assertRaises(ConnectionClosed, client.publish, "a")
        self.assertRaises(ConnectionClosed, client.subscribe, "a")
        for waiting in (client.flush(), client.request("a"), client.ready()):
            self.failureResultOf(waiting, ConnectionClosed)
        self.successResultOf(client.close())

    def test_no_reconnect(self) -> None:
        for options in ({"reconnect": False}, {"max_reconnects": 0}):
            client = self.connect(**options)
            self.memory.lose_connections()
            self.assertTrue(client.closed)
            self.assertEqual(self.told()[-2:], ["disconnected", "closed"])

    def test_several_servers(self) -> None:
        """The next one first; those that a server names count too."""
        tried: list[str] = []
        client = self.memory.client(servers=["two", "three:5"])
        dial = client._dial

        def count(client: Client, address: Any) -> Deferred[Connection]:
            tried.append(f"{address.host}:{address.port}")
            return dial(client, address)

        client._dial = count
        client.start()
        self.memory.advance()
        client._informed({"connect_urls": ["four:6", "two:4222", "no good:x", 7]})
        self.memory.lose_connections(reachable=False)
        for _ in range(3):
            self.memory.advance(1)
        self.assertEqual(tried[0], "memory:4222")
        self.assertEqual(tried[1:6], ["two:4222", "three:5", "four:6", "7:4222", "memory:4222"])
        client.close()

    def test_subscriptions_come_back(self) -> None:
        """With what is left of their maximum."""
        client = self.connect()
        plain, some = client.subscribe("a"), client.subscribe("a")
        some.unsubscribe(max=3)
        client.publish("a", b"0")
        self.memory.advance()
        self.memory.lose_connections()
        made_away = client.subscribe("a")
        gone = client.subscribe("a")
        gone.unsubscribe()
        self.memory.advance(1)
        for i in range(1, 5):
            client.publish("a", b"%d" % i)
        self.assertEqual(self.read(plain), [b"0", b"1", b"2", b"3", b"4"])
        self.assertEqual(self.read(some), [b"0", b"1", b"2"])
        self.assertEqual(self.read(made_away), [b"1", b"2", b"3", b"4"])
        self.assertEqual(len(self.memory.hub.trie), 2)

    def test_publishing_while_away(self) -> None:
        """It waits, in order, within a limit of bytes, and arrives behind the subscriptions."""
        client = self.connect(pending_limit=1000)
        subscription = client.subscribe("a")
        self.memory.advance()
        self.memory.lose_connections(reachable=False)
        for i in range(8):
            client.publish("a", b"%d" % i * 100)
        self.assertRaises(BufferFull, client.publish, "a", b"x" * 100)
        client.publish("a", b"small")
        self.memory.reachable = True
        flushed = client.flush()
        self.assertNoResult(flushed)
        self.memory.advance(1)
        self.successResultOf(flushed)
        got = self.read(subscription)
        self.assertEqual(got, [*(b"%d" % i * 100 for i in range(8)), b"small"])
        self.assertEqual(client.pending, 0)

    def test_ready(self) -> None:
        """A fast publisher can wait until little waits to be sent."""
        client = self.connect()
        self.successResultOf(client.ready())
        self.memory.lose_connections(reachable=False)
        for _ in range(3):
            client.publish("a", b"x" * 500_000)
        waiting = client.ready()
        self.memory.advance(1)
        self.assertNoResult(waiting)
        self.memory.reachable = True
        self.memory.advance(2)
        self.successResultOf(waiting)
        self.assertEqual(client.pending, 0)

    def test_a_server_that_reads_slowly(self) -> None:
        """What it has not taken waits, within the limit, and is kept for the next."""
        client = self.connect(pending_limit=500_000)
        subscription = client.subscribe("a")
        self.memory.advance()
        client._connection.transport.stuck = True  # type: ignore[union-attr]
        for i in range(40):
            client.publish("a", b"%d" % (i % 10) * 10_000)
        self.memory.advance()
        self.assertGreater(client.pending, 200_000)
        self.assertRaises(BufferFull, client.publish, "a", b"x" * 300_000)
        self.memory.lose_connections()
        self.memory.advance(1)
        got = self.read(subscription)
        self.assertEqual(client.pending, 0)
        self.assertEqual(got, [b"%d" % (i % 10) * 10_000 for i in range(40)])

    def test_closing_when_told(self) -> None:
        """A listener may close the client, whatever it was told of."""
        for name in ("connected", "disconnected", "error", "reconnected"):
            self.memory = MemoryBroker()
            closed: list[Deferred[None]] = []
            made: list[Client] = []

            def listen(
                event: Event,
                name: str = name,
                made: list[Client] = made,
                closed: list[Deferred[None]] = closed,
            ) -> None:
                if event.name == name:
                    closed.append(made[0].close())

            client = self.memory.client(on_event=listen)
            made.append(client)
            client.start()
            self.memory.advance()
            self.memory.lose_connections(reachable=False)
            self.memory.advance(1)
            self.memory.reachable = True
            for _ in range(5):
                self.memory.advance(10)
            self.assertEqual(len(closed), 1, name)
            self.successResultOf(closed[0])
            self.assertEqual(self.memory.factory.clients, {}, name)

    def test_flush_tells_of_loss(self) -> None:
        """It does not say that all has arrived when a connection was lost with something on it."""
        client = self.connect()
        client.publish("a")
        waiting = client.flush()
        self.memory.lose_connections()
        self.failureResultOf(waiting, Disconnected)
        self.memory.advance(1)
        waiting = client.flush()  # told once
        self.memory.advance()
        self.successResultOf(waiting)

        client.publish("a")
        self.memory.clock.advance(0)  # sent, and the PONG of nothing confirms it
        self.memory.lose_connections()
        self.memory.advance(1)
        self.failureResultOf(client.flush(), Disconnected)
        waiting = client.flush()
        self.memory.advance()
        self.successResultOf(waiting)

        client.publish("a")
        waiting = client.flush()
        self.memory.advance()
        self.successResultOf(waiting)
        self.memory.lose_connections()  # all was confirmed
        self.memory.advance(1)
        waiting = client.flush()
        self.memory.advance()
        self.successResultOf(waiting)

    def test_flush_in_time(self) -> None:
        client = self.connect()
        self.memory.lose_connections(reachable=False)
        waiting = client.flush(timeout=3)
        self.memory.advance(2.9)
        self.assertNoResult(waiting)
        self.memory.advance(0.2)
        self.failureResultOf(waiting, Timeout)
        self.memory.reachable = True
        self.memory.advance(20)
        waiting = client.flush()
        self.memory.advance()
        self.successResultOf(waiting)

    def test_stale_server(self) -> None:
        """One that does not answer PINGs is left."""
        client = self.connect(ping_interval=10, max_pings_out=2)
        for _ in range(5):
            self.memory.advance(10)
        self.assertEqual(self.told(), ["connected"])
        # From here on nothing that is written arrives.
        for _ in range(2):
            self.memory.clock.advance(10)
        self.assertEqual(self.told(), ["connected"])
        self.memory.clock.advance(10)
        self.assertEqual(self.told(), ["connected", "disconnected"])
        self.assertIn("PING", str(self.events[-1].error))
        self.memory.advance(1)
        self.assertEqual(self.told()[-1], "reconnected")
        client.close()

    def test_handshake_that_takes_too_long(self) -> None:
        client = self.memory.client(connect_timeout=5)
        connecting = client.connect()  # and nothing is carried
        self.memory.clock.advance(4.9)
        self.assertNoResult(connecting)
        self.memory.clock.advance(0.2)
        error = self.failureResultOf(connecting, ConnectionFailed).value
        self.assertIn("within 5 s", str(error))
        self.memory.advance()
        self.assertEqual(self.memory.factory.clients, {})

    def test_lame_duck(self) -> None:
        client = self.connect()
        self.memory.broker.lame_duck()
        self.memory.advance()
        self.assertEqual(self.told(), ["connected", "lame_duck"])
        self.memory.advance(31)
        self.assertIn("disconnected", self.told())
        client.close()

    def test_a_listener_that_fails(self) -> None:
        """It harms nobody."""

        def fail(event: Event) -> None:
            raise RuntimeError("on purpose")

        client = self.connect(on_event=fail)
        self.assertEqual(client.connected_url, "nats://memory:4222")
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_unknown_option(self) -> None:
        self.assertRaises(TypeError, Client, "nats://h", reconect=True)


class ClosingTests(MemoryTests):
    def test_close(self) -> None:
        """What was published is sent; nothing is left behind."""
        client, other = self.connect(), self.connect()
        heard = other.subscribe("a")
        self.memory.advance()
        subscription = client.subscribe("b")
        reading = subscription.next()
        client.publish("a", b"last words")
        closed = client.close()
        self.memory.advance()
        self.successResultOf(closed)
        self.failureResultOf(reading, SubscriptionEnded)
        self.assertEqual(self.read(heard), [b"last words"])
        self.successResultOf(client.close())
        self.assertEqual(self.told().count("closed"), 1)
        self.successResultOf(other.close())
        self.memory.advance(10)
        self.assertEqual(len(self.memory.clock.getDelayedCalls()), 1)  # the broker's own tick

    def test_close_while_away(self) -> None:
        client = self.connect()
        self.memory.lose_connections(reachable=False)
        self.successResultOf(client.close())
        self.memory.advance()
        self.assertEqual(len(self.memory.clock.getDelayedCalls()), 1)  # the broker's own tick
        self.memory.reachable = True
        self.memory.advance(100)
        self.assertEqual(self.memory.factory.clients, {})

    def test_drain(self) -> None:
        """All that came is read and all that was published arrives, answers included."""
        client, other = self.connect(), self.connect()
        door: Deferred[None] = Deferred()

        async def answer(message: Message) -> None:
            await door
            message.respond(b"answer")

        client.subscribe("ask", callback=answer)
        reader = client.subscribe("a")
        self.memory.advance()
        asked = other.request("ask")
        other.publish("a", b"0")
        self.memory.advance()
        drained = client.drain()
        self.memory.advance()
        self.assertEqual(self.read(reader), [b"0"])
        self.assertNoResult(drained)
        door.callback(None)
        self.memory.advance()
        self.assertEqual(self.successResultOf(asked).payload, b"answer")
        self.successResultOf(drained)
        self.assertTrue(client.closed)

    def test_service(self) -> None:
        """It connects when it can, and drains at the end; it can be used before."""
        self.memory.reachable = False
        service = ClientService("nats://memory:4222", reactor=self.memory.clock)
        service.client = client = self.memory.client()
        subscription = client.subscribe("a")
        client.publish("a", b"early")
        service.startService()
        connected = service.when_connected()
        self.memory.advance(10)
        self.assertNoResult(connected)
        self.memory.reachable = True
        self.memory.advance(20)
        self.assertIs(self.successResultOf(connected), client)
        self.assertIs(self.successResultOf(service.when_connected()), client)
        self.assertEqual(self.read(subscription), [b"early"])
        stopped = service.stopService()
        self.memory.advance()
        self.successResultOf(stopped)
        self.assertTrue(client.closed)
        self.failureResultOf(service.when_connected(), ConnectionClosed)

    def test_service_without_a_server(self) -> None:
        """Stopping takes no longer than it was told, whatever waits."""
        self.memory.reachable = False
        service = ClientService("nats://memory:4222", reactor=self.memory.clock)
        service.client = self.memory.client()
        service.startService()
        service.client.publish("a")
        stopped = service.stopService()
        self.assertNoResult(stopped)
        self.memory.advance(ClientService.drain_timeout + 0.1)
        self.successResultOf(stopped)


class PermissionTests(SynchronousTestCase):
    def test_violations(self) -> None:
        """They are told, the reader of that subject too, and the connection lives."""
        rule = {"subscribe": {"allow": ["ok", "_INBOX.>"]}, "publish": {"deny": ["no"]}}
        user = {"user": "u", "password": "p", "permissions": rule}
        memory = MemoryBroker(access=Access.from_table({"users": [user]}))
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
