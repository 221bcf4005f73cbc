"""Who may come in at the text door, with a real process and real libraries."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import threading
from pathlib import Path

import bcrypt
import nats

from rtmb.test.support.processes import (
    PATIENCE,
    BrokerProcess,
    RawClient,
    WithProcesses,
    need,
)
from rtmb.test.support.users import USERS, Nkey


class AccessTests(WithProcesses):
    """Who may come in, and what they may do."""

    def assert_let_in(self, broker: BrokerProcess, **options: str) -> RawClient:
        client = self.client(broker)
        self.assertEqual(client.connect(**options), b"")
        return client

    def assert_refused(self, broker: BrokerProcess, **options: str) -> None:
        client = self.client(broker)
        client.send(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        self.assertEqual(client.read_to_end(), b"-ERR 'Authorization Violation'\r\n")

    def test_user_and_password(self) -> None:
        """--user and --password let in who knows both, and nobody else."""
        broker = self.start("--user", "alice", "--password", "opensesame")
        self.assert_let_in(broker, user="alice", **{"pass": "opensesame"})
        self.assert_refused(broker, user="alice", **{"pass": "opensesam"})
        self.assert_refused(broker, user="alice")
        self.assert_refused(broker, user="bob", **{"pass": "opensesame"})
        self.assert_refused(broker, user="bob", **{"pass": ""})
        self.assert_refused(broker)

    def test_nothing_before_connect(self) -> None:
        """Where users are set, an operation before CONNECT is a violation."""
        broker = self.start("--token", "t")
        client = self.client(broker)
        client.send(b"SUB > 1\r\n")
        self.assertEqual(client.read_to_end(), b"-ERR 'Authorization Violation'\r\n")

    def test_bcrypt(self) -> None:
        """A password may be set as its bcrypt hash; what follows CONNECT waits for the check."""
        hashed = bcrypt.hashpw(b"opensesame", bcrypt.gensalt(4)).decode()
        broker = self.start("--user", "alice", "--password", hashed)
        client = self.client(broker)
        client.send(
            b'CONNECT {"lang":"test","user":"alice","pass":"opensesame"}\r\n'
            b"SUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n"
        )
        self.assertEqual(client.read_until(b"PONG\r\n"), b"MSG a 1 2\r\nhi\r\nPONG\r\n")
        self.assert_refused(broker, user="alice", **{"pass": "wrong"})
        self.assert_refused(broker, user="alice", **{"pass": hashed})

    def test_token(self) -> None:
        """--token lets in who knows it, also when a client gives it as the user."""
        broker = self.start("--token", "opensesame")
        self.assert_let_in(broker, auth_token="opensesame")
        self.assert_let_in(broker, user="opensesame")
        self.assert_refused(broker, auth_token="wrong")
        self.assert_refused(broker)

    def test_nkey(self) -> None:
        """An nkey lets in who can sign the nonce with it, and each client's nonce is new."""
        nkey, other = Nkey(), Nkey()
        broker = self.start(config=f'[[auth.users]]\nnkey = "{nkey.public}"\n')
        client = self.client(broker)
        nonce = client.info["nonce"]
        client.connect(nkey=nkey.public, sig=nkey.sign(nonce))
        for public, signed in (
            (nkey.public, nkey.sign(nonce)),  # of another connection's nonce
            (nkey.public, ""),
            (other.public, None),
        ):
            again = self.client(broker)
            sig = other.sign(again.info["nonce"]) if signed is None else signed
            again.send(b"CONNECT %b\r\n" % json.dumps({"nkey": public, "sig": sig}).encode())
            self.assertEqual(again.read_to_end(), b"-ERR 'Authorization Violation'\r\n")

    def test_libraries(self) -> None:
        """nats-py gets in with an nkey, a user and password, and a token in its URL."""
        need(self, importlib.util.find_spec("nkeys"), "the nkeys package is not installed")
        nkey = Nkey()
        broker = self.start(
            config=f'[auth]\ntoken = "t0ken"\n[[auth.users]]\nnkey = "{nkey.public}"\n' + USERS
        )

        async def work() -> None:
            for url, options in (
                (broker.url, {"nkeys_seed_str": nkey.seed}),
                (broker.url, {"user": "alice", "password": "one"}),
                (broker.url.replace("//", "//t0ken@"), {}),
            ):
                client = await nats.connect(url, allow_reconnect=False, **options)
                await client.flush()
                await client.close()

        asyncio.run(asyncio.wait_for(work(), PATIENCE))

    def test_no_auth_user(self) -> None:
        """Who gives no credentials is the no_auth_user, with its permissions."""
        broker = self.start(
            config='[auth]\nno_auth_user = "guest"\n[[auth.users]]\nuser = "guest"\n'
            'password = "g"\npermissions.publish.deny = [">"]\n' + USERS
        )
        guest = self.assert_let_in(broker)
        self.assertEqual(
            guest.publish("a"), b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"
        )
        self.assert_refused(broker, user="guest", **{"pass": "wrong"})
        self.assertEqual(
            self.assert_let_in(broker, user="alice", **{"pass": "one"}).publish("a"), b""
        )

    def test_permissions(self) -> None:
        """Allow and deny lists hold for each direction, and say so with NATS's own words."""
        broker = self.start(
            config="""
[[auth.users]]
user = "alice"
password = "one"
permissions.publish.allow = ["orders.>", "any"]
permissions.publish.deny = ["orders.secret.>"]
permissions.subscribe.allow = ["orders.>", "work.* workers"]
permissions.subscribe.deny = ["orders.internal"]

[[auth.users]]
user = "root"
password = "two"
"""
        )
        alice = self.assert_let_in(broker, user="alice", **{"pass": "one"})
        for subject, good in (
            ("orders.new", True),
            ("orders.secret.x", False),
            ("other", False),
            ("orders", False),
        ):
            with self.subTest(publish=subject):
                error = f"-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n"
                self.assertEqual(alice.publish(subject), b"" if good else error.encode())
        for sid, (asked, good) in enumerate(
            {
                "orders.*": True,
                "orders.internal": False,
                "other": False,
                ">": False,
                "work.a": False,
                "work.a workers": True,
                "work.a others": False,
                "$LAST.other": False,
            }.items()
        ):
            with self.subTest(subscribe=asked):
                subject, _, queue = asked.partition(" ")
                using = f' using queue "{queue}"' if queue else ""
                error = f"-ERR 'Permissions Violation for Subscription to \"{subject}\"{using}'\r\n"
                expected = b"" if good else error.encode()
                self.assertEqual(alice.subscribe(asked, str(sid)), expected)
        root = self.assert_let_in(broker, user="root", **{"pass": "two"})
        root.publish("orders.internal", b"hidden")
        root.publish("orders.open", b"shown")
        self.assertEqual(alice.settle(), b"MSG orders.open 0 5\r\nshown\r\n")

    def test_authentication_timeout(self) -> None:
        """Who does not authenticate in time is told so and closed."""
        broker = self.start("--token", "t", "--auth-timeout", "0.3")
        silent = self.client(broker)
        inside = self.client(broker)
        inside.connect(auth_token="t")
        self.assertEqual(silent.read_to_end(), b"-ERR 'Authentication Timeout'\r\n")
        inside.settle()

    def test_maximum_connections(self) -> None:
        """One connection more than allowed is told so and closed; when one goes there is room."""
        broker = self.start("--max-connections", "2")
        one, other = self.client(broker), self.client(broker)
        third = self.client(broker, info=False)
        self.assert_ends_with(third, b"-ERR 'maximum connections exceeded'\r\n")
        other.settle()
        one.close()
        broker.expect_log("disconnected: client closed")
        self.client(broker).settle()

    def test_secrets_stay_out_of_the_log(self) -> None:
        """No password, token or signature reaches the log, whether it was right or wrong."""
        nkey = Nkey()
        signed = nkey.sign("something else")
        hashed = bcrypt.hashpw(b"s3cret-hashed", bcrypt.gensalt(4)).decode()
        config = (
            '[auth]\ntoken = "s3cret-token"\n[[auth.users]]\nuser = "alice"\n'
            f'password = "s3cret-password"\n[[auth.users]]\nuser = "bob"\npassword = "{hashed}"\n'
            f'[[auth.users]]\nnkey = "{nkey.public}"\n'
        )
        broker = self.start(config=config)
        self.assert_let_in(broker, user="alice", **{"pass": "s3cret-password"})
        self.assert_let_in(broker, user="bob", **{"pass": "s3cret-hashed"})
        self.assert_let_in(broker, auth_token="s3cret-token")
        self.assert_refused(broker, user="alice", **{"pass": "s3cret-wrong"})
        self.assert_refused(broker, user="bob", **{"pass": "s3cret-wrong"})
        self.assert_refused(broker, auth_token="s3cret-wrong")
        self.assert_refused(broker, nkey=nkey.public, sig=signed)
        for line in (
            b'CONNECT {"pass":"s3cret-broken"\r\n',
            b'CONNECT {"user":"alice","pass":"s3cret-broken","protocol":9}\r\n',
            b"CONNEKT s3cret-broken\r\n",
            b'CONNECT {"auth_token":"s3cret-broken' + b"x" * 5000 + b"\r\n",
        ):
            client = self.client(broker)
            client.send(line)
            client.read_to_end()
        broker.config.write_text(config + '[[auth.users]]\nuser = 5\npassword = "s3cret-new"\n')
        broker.signal(signal.SIGHUP)
        broker.expect_log("not reloaded")
        broker.stop()
        self.assertIn("authentication failed", broker.log())
        for secret in ("s3cret", hashed, signed):
            self.assertNotIn(secret, broker.log())

    def test_wrong_token_as_user_stays_out_of_the_log(self) -> None:
        """A token given as the user, which is allowed, is not logged when it is wrong."""
        broker = self.start("--token", "s3cret-token")
        self.assert_refused(broker, user="s3cret-toke")
        broker.stop()
        self.assertNotIn("s3cret", broker.log())


class SlowConsumerTests(WithProcesses):
    """One client that never reads."""

    def test_never_reads(self) -> None:
        """It is closed and logged with who and subject; neighbours get all; memory is bounded."""
        need(self, Path("/proc/self/status").exists(), "this system does not tell memory in /proc")
        limit, count = 8 << 20, 1000
        broker = self.start("--max-pending", str(limit), "--history", "0")
        payload = b"x" * 100_000
        deaf = self.client(broker, receive_buffer=4096)
        deaf.connect(name="deaf-one")
        deaf.subscribe("flood.>")
        neighbour = self.client(broker)
        neighbour.connect()
        neighbour.subscribe("flood.*")
        publisher = self.client(broker)
        publisher.connect()
        before = broker.rss()
        received = 0
        message = len(b"MSG flood.now 1 100000\r\n\r\n") + len(payload)

        def read() -> None:
            nonlocal received
            neighbour.socket.settimeout(PATIENCE)
            while received < count * message and (data := neighbour.socket.recv(1 << 20)):
                received += len(data)

        reader = threading.Thread(target=read)
        reader.start()
        peak = before
        for _ in range(count):
            publisher.publish("flood.now", payload)
            peak = max(peak, broker.rss())
        reader.join(PATIENCE)
        self.assertEqual(received, count * message)
        found = broker.expect_log(r"slow consumer: (.*): (\d+) bytes waiting, at (\S+): close")
        self.assertIn(b"deaf-one", found[1])
        self.assertEqual(found[3], b"flood.now")
        self.assertEqual(broker.log().count("slow consumer: "), 1)
        broker.expect_log("deaf-one.* disconnected: slow consumer")
        neighbour.settle()
        # The limit, and as much again for copies on their way.
        self.assertLess(peak - before, 3 * limit)
