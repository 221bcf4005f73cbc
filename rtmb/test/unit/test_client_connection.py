"""Tests for `rtmb.client.connection`: what the client says to a server, byte by byte."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rtmb.client import (
    BadSubject,
    Message,
    PayloadTooLarge,
)
from rtmb.client.address import parse_url
from rtmb.client.connection import Connection
from rtmb.testing import MemoryBroker
from rtmb.testing.memory import MemoryTransport


class Script(SynchronousTestCase):
    """A client whose server is this test, byte by byte."""

    def setUp(self) -> None:
        self.memory = MemoryBroker()
        self.client = self.memory.client()
        self.connection = Connection(self.client, parse_url("nats://h"))
        self.client._connector.dial = lambda client, address: self.dialed()
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
        for payload in (17, None, ["x"]):
            with self.assertRaisesRegex(TypeError, "bytes or text, not (int|NoneType|list)"):
                self.client.publish("a", payload)  # type: ignore[arg-type]
            asking = self.client.request("a", payload)  # type: ignore[arg-type]
            self.failureResultOf(asking, TypeError)
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
