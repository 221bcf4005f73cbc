"""Tests for `rtmb.doors.nats.protocol`: what the text door says to whom."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from rtmb.auth import Credentials, User
from rtmb.config import Settings
from rtmb.doors.nats.protocol import NatsProtocol
from rtmb.interfaces import ISubscriber
from rtmb.test.support.memory import MemoryBroker, Peer

#: Input, and all that the client hears. `X` is said by one client with no CONNECT: it is bare.
#: Every case is run whole, byte by byte and cut at every point, through the walk and without.
CASES: list[tuple[str, bytes, bytes]] = [
    ("ping", b"PING\r\n", b"PONG\r\n"),
    ("ping, small, with blanks", b"  ping \t\r\n", b"PONG\r\n"),
    ("ping ended by a line feed", b"PING\n", b"PONG\r\n"),
    ("pong and blank lines", b"PONG\r\n\r\n\nPING\r\n", b"PONG\r\n"),
    ("connect", b"CONNECT {}\r\n", b"PING\r\n"),
    ("connect, verbose", b'CONNECT {"verbose":true}\r\n', b"+OK\r\nPING\r\n"),
    (
        "verbose: each is answered",
        b'CONNECT {"verbose":true}\r\nSUB a 1\r\nPUB a 2\r\nhi\r\nUNSUB 1\r\nPING\r\n',
        b"+OK\r\nPING\r\n+OK\r\nMSG a 1 2\r\nhi\r\n+OK\r\n+OK\r\nPONG\r\n",
    ),
    ("sub and pub", b"SUB a 1\r\nPUB a 5\r\nhello\r\n", b"MSG a 1 5\r\nhello\r\n"),
    ("line feeds only", b"SUB a 1\nPUB a 2\nhi\nPING\n", b"MSG a 1 2\r\nhi\r\nPONG\r\n"),
    ("empty payload", b"SUB a 1\r\nPUB a 0\r\n\r\n", b"MSG a 1 0\r\n\r\n"),
    ("empty payload, line feeds", b"SUB a 1\nPUB a 0\n\nPING\n", b"MSG a 1 0\r\n\r\nPONG\r\n"),
    ("a payload of line ends", b"SUB a 1\r\nPUB a 4\r\n\r\n\r\n\r\n", b"MSG a 1 4\r\n\r\n\r\n\r\n"),
    (
        "a payload that looks like an operation",
        b"SUB a 1\r\n" + b"PUB a 9\r\nPUB a 9\r\n\r\n" * 6,
        b"MSG a 1 9\r\nPUB a 9\r\n\r\n" * 6,
    ),
    (
        "a run",
        b"SUB a 1\r\n" + b"".join(b"PUB a 2\r\n%02d\r\n" % i for i in range(20)),
        b"".join(b"MSG a 1 2\r\n%02d\r\n" % i for i in range(20)),
    ),
    (
        "a run with a payload that ends it early",
        b"SUB a 1\r\n" + b"PUB a 2\r\nxx\r\n" * 8 + b"PUB a 2\r\nxx",
        b"MSG a 1 2\r\nxx\r\n" * 8,
    ),
    (
        "runs of two subjects",
        b"SUB > 1\r\n" + (b"PUB a 1\r\n1\r\n" * 6 + b"PUB b 1\r\n2\r\n" * 6) * 2,
        (b"MSG a 1 1\r\n1\r\n" * 6 + b"MSG b 1 1\r\n2\r\n" * 6) * 2,
    ),
    (
        "a subscription in the middle of a run",
        b"SUB a 1\r\n" + b"PUB a 1\r\nx\r\n" * 6 + b"SUB a 2\r\n" + b"PUB a 1\r\ny\r\n" * 6,
        b"MSG a 1 1\r\nx\r\n" * 6 + b"MSG a 1 1\r\ny\r\nMSG a 2 1\r\ny\r\n" * 6,
    ),
    (
        "a queue group is served in turn",
        b"SUB a q 1\r\nSUB a q 2\r\n" + b"".join(b"PUB a 1\r\n%d\r\n" % i for i in range(8)),
        b"".join(b"MSG a %d 1\r\n%d\r\n" % (1 + i % 2, i) for i in range(8)),
    ),
    ("a reply", b"SUB a 1\r\nPUB a r.x 2\r\nhi\r\n", b"MSG a 1 r.x 2\r\nhi\r\n"),
    ("blanks between", b"sub\ta \t1\r\npub  a\t2\r\nhi\r\n", b"MSG a 1 2\r\nhi\r\n"),
    ("a size with zeros", b"SUB a 1\r\n" + b"PUB a 002\r\nhi\r\n" * 3, b"MSG a 1 2\r\nhi\r\n" * 3),
    (
        "headers are stripped for who cannot read them",
        b"SUB a 1\r\nHPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
        b"MSG a 1 2\r\nhi\r\n",
    ),
    ("any sid", b"SUB a sid-1.x\r\nPUB a 1\r\n!\r\n", b"MSG a sid-1.x 1\r\n!\r\n"),
    ("any bytes", b"SUB \xff.* 1\r\nPUB \xff.\xc3 1\r\n\0\r\n", b"MSG \xff.\xc3 1 1\r\n\0\r\n"),
    ("wildcards", b"SUB f.* 1\r\nSUB f.> 2\r\nPUB f.b.x 1\r\na\r\n", b"MSG f.b.x 2 1\r\na\r\n"),
    ("unsub", b"SUB a 1\r\nPUB a 1\r\nx\r\nUNSUB 1\r\nPUB a 1\r\ny\r\n", b"MSG a 1 1\r\nx\r\n"),
    (
        "unsub after two more",
        b"SUB a 1\r\nPUB a 1\r\n0\r\nUNSUB 1 2\r\n"
        + b"".join(b"PUB a 1\r\n%d\r\n" % i for i in range(1, 9)),
        b"MSG a 1 1\r\n0\r\nMSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\n",
    ),
    (
        "a sid twice",
        b"SUB a 1\r\nSUB b 1\r\nPING\r\n",
        b"-ERR 'Subscription ID already exists'\r\nPONG\r\n",
    ),
    ("an unknown sid", b"UNSUB 9\r\n", b"-ERR 'Subscription ID does not exist'\r\n"),
    ("the last value", b"PUB w.a 1\r\n1\r\nPUB w.a 1\r\n2\r\nSUB $LAST.w.* 1\r\nPUB w.a 1\r\n3\r\n",
     b"MSG w.a 1 1\r\n2\r\nMSG w.a 1 1\r\n3\r\n"),
    (
        "the last three, of a run too",
        b"".join(b"PUB a 1\r\n%d\r\n" % i for i in range(9)) + b"SUB $REPLAY.3.a 1\r\n",
        b"".join(b"MSG a 1 1\r\n%d\r\n" % i for i in (6, 7, 8)),
    ),
    ("bad subject", b"SUB a..b 1\r\nPING\r\n", b"-ERR 'Invalid Subject'\r\nPONG\r\n"),
    ("bad subject of the past", b"SUB $LAST.a..b 1\r\n", b"-ERR 'Invalid Subject'\r\n"),
    (
        "bad publish subject: the payload is read all the same",
        b"SUB > 1\r\nPUB a.* 5\r\nPING\r\r\nPUB .a 1\r\nx\r\nPING\r\n",
        b"-ERR 'Invalid Publish Subject'\r\n" * 2 + b"PONG\r\n",
    ),
    (
        "a reply that nobody may hear",
        b"SUB a 1\r\nPUB a b.* 1\r\nx\r\nPUB a $LAST.b 1\r\nx\r\nPING\r\n",
        b"-ERR 'Permissions Violation for Publish with Reply of \"b.*\"'\r\n"
        b"-ERR 'Permissions Violation for Publish with Reply of \"$LAST.b\"'\r\nPONG\r\n",
    ),
]  # fmt: skip

#: Input, and the error with which the connection closes.
FATAL: list[tuple[bytes, str]] = [
    (b"FOO\r\n", "Unknown Protocol Operation"),
    (b"GET / HTTP/1.1\r\n", "Unknown Protocol Operation"),
    (b"\x00\xff\x00", "Unknown Protocol Operation"),
    (b"MSG a 1 1\r\nx\r\n", "Unknown Protocol Operation"),
    (b"SUB " + b"a" * 5000 + b" 1\r\n", "maximum control line exceeded"),
    (b"PUB " + b"a" * 5000, "maximum control line exceeded"),
    (b"PUB a 1048577\r\n", "Maximum Payload Violation"),
    (b"PUB a\r\n", "PUB needs a subject, an optional reply and a size"),
    (b"PUB a -5\r\n", "PUB has a bad or missing payload size"),
    (b"PUB a 99999999999999999999\r\n", "PUB has a bad or missing payload size"),
    (b"PUB a 2\r\nabc\r\n", "Payload does not end where its size says"),
    (b"PUB a 2\r\nab\rX", "Payload does not end where its size says"),
    (b"HPUB a 5\r\n", "HPUB needs a subject, an optional reply, a header size and a size"),
    (b"HPUB a 6 5\r\n", "HPUB has a header size beyond its total size"),
    (
        b"HPUB a 2 4\r\nabcd\r\n",
        "HPUB headers must begin with NATS/1.0 and end with an empty line",
    ),
    (b"SUB a\r\n", "SUB needs a subject, an optional queue and a sid"),
    (b"UNSUB\r\n", "UNSUB needs a sid and an optional number of messages"),
    (b"UNSUB 1 x\r\n", "UNSUB needs a sid and an optional number of messages"),
    (b"CONNECT\r\n", "CONNECT needs one JSON object"),
    (b"CONNECT []\r\n", "CONNECT needs one JSON object"),
    (b"CONNECT {oops}\r\n", "CONNECT needs one JSON object"),
    (b'CONNECT {"protocol":2}\r\n', "invalid client protocol"),
    (b'CONNECT {"no_responders":true}\r\n', "no responders requires headers support"),
]


def pieces(data: bytes) -> list[tuple[str, list[bytes]]]:
    """A case whole, byte by byte, and cut at every point."""
    found = [("whole", [data]), ("bytes", [data[i : i + 1] for i in range(len(data))])]
    cuts = range(1, len(data)) if len(data) < 600 else range(1, len(data), 97)
    return found + [(f"cut at {i}", [data[:i], data[i:]]) for i in cuts]


class CaseTests(SynchronousTestCase):
    def test_cases(self) -> None:
        """The table above, both paths, however the bytes arrive."""
        for walking in (True, False):
            for name, said, heard in CASES:
                for how, parts in pieces(said):
                    broker = MemoryBroker(walking=walking)
                    peer = broker.connect()
                    got = b"".join(peer.send(part) for part in parts)
                    self.assertEqual(got, heard, f"{name}, {how}, walking={walking}")
                    self.assertFalse(peer.closed, name)

    def test_fatal(self) -> None:
        """What is wrong beyond repair is told and closes the connection, and harms nobody else."""
        for walking in (True, False):
            for said, error in FATAL:
                for how, parts in pieces(said):
                    broker = MemoryBroker(walking=walking)
                    other = broker.connect(b"SUB > 1\r\n")
                    peer = broker.connect()
                    for part in parts:
                        peer.protocol.dataReceived(part)
                    heard = peer.heard()
                    what = f"{said[:40]!r}, {how}, walking={walking}"
                    self.assertEqual(heard, f"-ERR '{error}'\r\n".encode(), what)
                    self.assertTrue(peer.closed, what)
                    self.assertEqual(other.heard(), b"", what)
                    self.assertEqual(other.send(b"PING\r\n"), b"PONG\r\n", what)

    def test_nothing_after_an_error_is_done(self) -> None:
        """What stands behind a fatal error in the same bytes is not carried out."""
        broker = MemoryBroker()
        other = broker.connect(b"SUB > 1\r\n")
        peer = broker.connect()
        peer.send(b"NO\r\nPUB a 1\r\nx\r\n")
        peer.protocol.dataReceived(b"PUB a 1\r\nx\r\n")
        self.assertEqual(other.heard(), b"")


class DialectTests(SynchronousTestCase):
    def test_info(self) -> None:
        """The first line tells what clients need, in less than 4096 bytes."""
        broker = MemoryBroker()
        peer = Peer(broker.factory)
        line = peer.heard()
        self.assertLess(len(line), 4096)
        info = json.loads(line.removeprefix(b"INFO "))
        for key in ("server_id", "server_name", "version", "go", "host", "port", "headers",
                    "max_payload", "proto", "client_id", "client_ip"):  # fmt: skip
            self.assertIn(key, info)
        self.assertNotIn("auth_required", info)
        self.assertNotIn("tls_required", info)

    def test_library_handshake(self) -> None:
        """A library hears PONG first; the broker's PING comes 2 s later, never before it."""
        broker = MemoryBroker()
        peer = broker.connect()
        self.assertEqual(peer.send(b'CONNECT {"lang":"x"}\r\n'), b"")
        broker.clock.advance(2.1)
        self.assertEqual(peer.heard(), b"")
        self.assertEqual(peer.send(b"PING\r\n"), b"PONG\r\n")
        broker.clock.advance(2.1)
        self.assertEqual(peer.heard(), b"PING\r\n")
        broker.clock.advance(0.5)
        peer.send(b"PONG\r\n")
        self.assertEqual(peer.protocol.rtt, 0.5)

    def test_library_sids(self) -> None:
        """A library's second SUB and unknown UNSUB are ignored in silence."""
        broker = MemoryBroker()
        peer = broker.library()
        self.assertEqual(peer.send(b"SUB a 1\r\nSUB b 1\r\nUNSUB 7\r\nPUB b 1\r\nx\r\n"), b"")

    def test_library_maximum_counts_from_sub(self) -> None:
        """UNSUB with a maximum counts what was delivered since SUB, by the walk too."""
        broker = MemoryBroker()
        peer = broker.library()
        peer.send(b"SUB a 1\r\n" + b"PUB a 1\r\nx\r\n" * 10)
        peer.send(b"UNSUB 1 12\r\n")
        self.assertEqual(peer.send(b"PUB a 1\r\ny\r\n" * 5), b"MSG a 1 1\r\ny\r\n" * 2)
        peer.send(b"SUB a 2\r\n" + b"PUB a 1\r\nx\r\n" * 10 + b"UNSUB 2 10\r\n")
        self.assertEqual(peer.send(b"PUB a 1\r\nz\r\n"), b"")

    def test_echo(self) -> None:
        """Without echo, one's own messages go to the others only."""
        broker = MemoryBroker()
        other = broker.connect(b"SUB a 1\r\n")
        peer = broker.library(echo=False)
        said = b"SUB a 1\r\nSUB a q 2\r\n" + b"PUB a 1\r\nx\r\n" * 6
        self.assertEqual(peer.send(said), b"")
        self.assertEqual(other.heard(), b"MSG a 1 1\r\nx\r\n" * 6)

    def test_headers(self) -> None:
        """Headers reach who can read them, exactly."""
        broker = MemoryBroker()
        peer = broker.library()
        block = b"NATS/1.0\r\nA: b\r\n\r\n"
        self.assertEqual(
            peer.send(b"SUB a 1\r\nHPUB a r 18 20\r\n" + block + b"hi\r\n"),
            b"HMSG a 1 r 18 20\r\n" + block + b"hi\r\n",
        )

    def test_no_responders(self) -> None:
        """A request that nobody hears is answered at once, if the sender asked for that."""
        broker = MemoryBroker()
        peer = broker.library(no_responders=True)
        body = b"NATS/1.0 503\r\nNats-Subject: svc\r\n\r\n"
        self.assertEqual(
            peer.send(b"SUB _INBOX.x.* 1\r\nPUB svc _INBOX.x.1 2\r\nhi\r\n"),
            b"HMSG _INBOX.x.1 1 %d %d\r\n%b\r\n" % (len(body), len(body), body),
        )
        quiet = broker.library()
        self.assertEqual(quiet.send(b"SUB _INBOX.y 1\r\nPUB svc _INBOX.y 2\r\nhi\r\n"), b"")

    def test_request_and_reply(self) -> None:
        broker = MemoryBroker()
        service = broker.library()
        service.send(b"SUB svc workers 1\r\n")
        client = broker.library()
        client.send(b"SUB _INBOX.a.* 1\r\nPUB svc _INBOX.a.1 3\r\nask\r\n")
        self.assertEqual(service.heard(), b"MSG svc 1 _INBOX.a.1 3\r\nask\r\n")
        service.send(b"PUB _INBOX.a.1 3\r\nyes\r\n")
        self.assertEqual(client.heard(), b"MSG _INBOX.a.1 1 3\r\nyes\r\n")
        self.assertEqual([t.name for t in broker.hub.history], ["svc"])

    def test_leaving_leaves_nothing(self) -> None:
        """A client that goes takes its subscriptions and timers along."""
        broker = MemoryBroker()
        peer = broker.library()
        peer.send(b"SUB a 1\r\nSUB b q 2\r\n")
        peer.leave()
        self.assertEqual(len(broker.hub.routing), 0)
        self.assertEqual(len(broker.broker.clients), 0)
        broker.clock.advance(0)  # the events of coming and going are told
        self.assertEqual(len(broker.clock.getDelayedCalls()), 1)  # the factory's own tick

    def test_interface(self) -> None:
        verifyObject(ISubscriber, MemoryBroker().connect().protocol)


class KeepAliveTests(SynchronousTestCase):
    def advance(self, broker: MemoryBroker, seconds: float) -> None:
        for _ in range(int(seconds)):
            broker.clock.advance(1)

    def test_stale(self) -> None:
        """Two PINGs may stay unanswered; then the connection is stale."""
        broker = MemoryBroker(ping_interval=10.0)
        peer = broker.connect()
        self.advance(broker, 11)
        self.assertEqual(peer.heard(), b"PING\r\n")
        self.advance(broker, 10)
        self.assertEqual(peer.heard(), b"PING\r\n")
        self.advance(broker, 10)
        self.assertEqual(peer.heard(), b"-ERR 'Stale Connection'\r\n")
        self.assertTrue(peer.closed)

    def test_answered(self) -> None:
        broker = MemoryBroker(ping_interval=10.0, ping_max=1)
        peer = broker.connect()
        for _ in range(5):
            self.advance(broker, 11)
            self.assertEqual(peer.heard(), b"PING\r\n")
            peer.send(b"PONG\r\n")
        self.assertFalse(peer.closed)

    def test_traffic_makes_pings_needless(self) -> None:
        broker = MemoryBroker(ping_interval=10.0)
        peer = broker.connect()
        for _ in range(10):
            self.advance(broker, 5)
            peer.send(b"PUB a 1\r\nx\r\n")
        self.assertEqual(peer.heard(), b"")


class LogTests(SynchronousTestCase):
    def test_nothing_secret(self) -> None:
        """No representation shows a password or a token."""
        shown = repr(Settings(password="pw-1", user="u", token="tok-1"))
        shown += repr(Credentials("u", "pw-1", "tok-1", "", "sig-1")) + repr(User("u", "pw-1"))
        for secret in ("pw-1", "tok-1", "sig-1"):
            self.assertNotIn(secret, shown)


class ProtocolClassTests(SynchronousTestCase):
    def test_is_a_line_receiver(self) -> None:
        from twisted.protocols.basic import LineReceiver

        self.assertTrue(issubclass(NatsProtocol, LineReceiver))
