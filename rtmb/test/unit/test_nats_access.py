"""Tests for `rtmb.doors.nats`: who may come in, and what they may do."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rtmb.auth import AuthTable, Credentials, User
from rtmb.config import Settings
from rtmb.interfaces import IAuthenticator
from rtmb.test.support.memory import MemoryBroker, Peer


class AccessTests(SynchronousTestCase):
    def broker(self, users: list[dict[str, Any]], **auth: Any) -> MemoryBroker:
        return MemoryBroker(auth=AuthTable.from_table({"users": users, **auth}))

    def test_nothing_before_connect(self) -> None:
        """With users set, CONNECT comes first and INFO says so."""
        broker = MemoryBroker(token="s3cret")
        self.assertTrue(json.loads(Peer(broker.factory).heard()[5:])["auth_required"])
        for said in (b"PING\r\n", b"SUB a 1\r\n", b"PUB a 1\r\nx\r\n", b'CONNECT {"user":"x"}\r\n'):
            peer = broker.connect()
            self.assertEqual(peer.send(said), b"-ERR 'Authorization Violation'\r\n", said)
            self.assertTrue(peer.closed)

    def test_token(self) -> None:
        broker = MemoryBroker(token="s3cret")
        self.assertEqual(broker.connect().send(b'CONNECT {"auth_token":"s3cret"}\r\n'), b"PING\r\n")
        self.assertIn(b"Violation", broker.connect().send(b'CONNECT {"auth_token":"no"}\r\n'))

    def test_timeout(self) -> None:
        """Two seconds to authenticate."""
        broker = MemoryBroker(user="u", password="p")
        peer, good = broker.connect(), broker.connect()
        good.send(b'CONNECT {"user":"u","pass":"p"}\r\n')
        broker.clock.advance(2)
        self.assertEqual(peer.heard(), b"-ERR 'Authentication Timeout'\r\n")
        self.assertTrue(peer.closed)
        self.assertFalse(good.closed)

    def test_permissions(self) -> None:
        """Deny wins over allow; each refusal names what was refused, and the connection lives."""
        rules = {
            "publish": {"allow": ["a.>"], "deny": ["a.no"]},
            "subscribe": {"allow": ["b.>", "w.* workers"], "deny": ["b.no"]},
        }
        broker = self.broker([{"user": "u", "password": "p", "permissions": rules}])
        peer = broker.connect(b'CONNECT {"user":"u","pass":"p"}\r\n')
        for said, refused in (
            (b"PUB x 1\r\n!\r\n", 'Publish to "x"'),
            (b"PUB a.no 1\r\n!\r\n", 'Publish to "a.no"'),
            (b"SUB c 1\r\n", 'Subscription to "c"'),
            (b"SUB > 1\r\n", 'Subscription to ">"'),
            (b"SUB b.no 1\r\n", 'Subscription to "b.no"'),
            (b"SUB $LAST.c 1\r\n", 'Subscription to "$LAST.c"'),
            (b"SUB w.x 1\r\n", 'Subscription to "w.x"'),
            (b"SUB c q 1\r\n", 'Subscription to "c" using queue "q"'),
        ):
            wanted = f"-ERR 'Permissions Violation for {refused}'\r\n".encode()
            self.assertEqual(peer.send(said), wanted, said)
        self.assertEqual(peer.send(b"SUB w.x workers 2\r\nPUB a.x 1\r\n!\r\nPING\r\n"), b"PONG\r\n")

    def test_denied_part_of_a_wildcard_is_hidden(self) -> None:
        rules = {"subscribe": {"deny": ["b.no"]}}
        guest = {"user": "u", "password": "", "permissions": rules}
        broker = self.broker([guest, {"user": "boss", "password": "x"}], no_auth_user="u")
        peer = broker.connect(b"CONNECT {}\r\nSUB b.* 1\r\n")
        peer.heard()
        boss = broker.connect(b'CONNECT {"user":"boss","pass":"x"}\r\n')
        boss.send(b"PUB b.no 1\r\nx\r\nPUB b.yes 1\r\nx\r\n")
        self.assertEqual(peer.heard(), b"MSG b.yes 1 1\r\nx\r\n")
        late = broker.connect(b"CONNECT {}\r\n")
        late.heard()
        self.assertEqual(late.send(b"SUB $LAST.b.* 1\r\n"), b"MSG b.yes 1 1\r\nx\r\n")

    def test_guest_needs_no_connect(self) -> None:
        """Someone who just begins is the guest, and no more than that."""
        guest = {"user": "u", "password": "", "permissions": {"publish": {"deny": ["a"]}}}
        broker = self.broker([guest], no_auth_user="u")
        peer = broker.connect()
        self.assertEqual(peer.send(b"PING\r\nSUB a 1\r\n"), b"PONG\r\n")
        wanted = b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"
        self.assertEqual(peer.send(b"PUB a 1\r\nx\r\n"), wanted)

    def test_walking_walk_keeps_to_permissions(self) -> None:
        """A line that one user may publish is not open to another through the cache."""
        rules = {"publish": {"deny": ["a"]}}
        broker = self.broker(
            [
                {"user": "u", "password": "p"},
                {"user": "v", "password": "p", "permissions": rules},
            ]
        )
        one = broker.connect(b'CONNECT {"user":"u","pass":"p"}\r\nSUB a 1\r\n')
        one.heard()
        self.assertEqual(one.send(b"PUB a 1\r\nx\r\n" * 6), b"MSG a 1 1\r\nx\r\n" * 6)
        two = broker.connect(b'CONNECT {"user":"v","pass":"p"}\r\n')
        two.heard()
        self.assertEqual(two.send(b"PUB a 1\r\nx\r\n" * 6).count(b"Permissions Violation"), 6)
        three = broker.connect()
        self.assertEqual(three.send(b"PUB a 1\r\nx\r\n"), b"-ERR 'Authorization Violation'\r\n")
        self.assertEqual(one.heard(), b"")

    def test_expiry(self) -> None:
        """A user's time runs out, at once if it has already."""
        now = 1_000_000
        users = [
            {"user": "u", "password": "p", "expires": datetime.fromtimestamp(now + 5, UTC)},
            {"user": "v", "password": "p", "expires": datetime.fromtimestamp(now - 5, UTC)},
        ]
        broker = self.broker(users)
        peer = broker.connect(b'CONNECT {"user":"u","pass":"p"}\r\n')
        peer.heard()
        broker.clock.advance(5)
        self.assertEqual(peer.heard(), b"-ERR 'User Authentication Expired'\r\n")
        late = broker.connect()
        self.assertIn(b"Authorization", late.send(b'CONNECT {"user":"v","pass":"p"}\r\n'))

    def test_slow_authenticator(self) -> None:
        """What comes after CONNECT waits for the answer, and is then done in order."""

        @implementer(IAuthenticator)
        class Slow:
            required = True
            guest = None
            nonce_needed = False
            answer: Deferred[User | None] = Deferred()

            def authenticate(self, credentials: Credentials) -> Deferred[User | None]:
                return self.answer

            def recheck(self, user: User | None) -> User | None:
                return user

        for walking in (True, False):
            broker = MemoryBroker(walking=walking)
            broker.factory.authenticator = slow = Slow()
            slow.answer = Deferred()
            peer = broker.connect()
            self.assertEqual(peer.send(b"CONNECT {}\r\nSUB a 1\r\nPUB a 1\r\nx\r\nPING\r\n"), b"")
            slow.answer.callback(User("u"))
            self.assertEqual(peer.heard(), b"PING\r\nMSG a 1 1\r\nx\r\nPONG\r\n")

    def test_reload(self) -> None:
        """A reload ends who is gone, takes away what is no longer allowed, tells new limits."""
        users: list[dict[str, Any]] = [{"user": n, "password": "p"} for n in ("u", "v")]
        broker = self.broker(users)
        u, v = (
            broker.connect(b'CONNECT {"user":"%s","pass":"p","protocol":1}\r\nSUB a 1\r\n' % n)
            for n in (b"u", b"v")
        )
        u.send(b"PUB a 1\r\nx\r\n" * 6)
        u.heard()
        v.heard()
        users = [{"user": "u", "password": "p", "permissions": {"subscribe": {"deny": ["a"]}}}]
        broker.broker.reload(Settings(auth=AuthTable.from_table({"users": users}), max_payload=4))
        heard = u.heard()
        self.assertIn(b"Permissions Violation for Subscription", heard)
        self.assertIn(b'"max_payload":4', heard)
        self.assertEqual(v.heard(), b"-ERR 'Authorization Violation'\r\n")
        self.assertTrue(v.closed)
        self.assertIn(b"Maximum Payload", u.send(b"PUB a 5\r\n"))
