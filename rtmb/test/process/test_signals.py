"""How the broker ends and reloads: signals."""

from __future__ import annotations

import signal

from rtmb.test.support.processes import (
    RawClient,
    WithProcesses,
)
from rtmb.test.support.users import USERS

_GONE = """
[[auth.users]]
user = "gone"
password = "two"
"""


class SignalTests(WithProcesses):
    """SIGTERM, SIGUSR2, SIGHUP."""

    def test_sigterm_drains(self) -> None:
        """At SIGTERM a client gets all that waits for it before it is closed, within 5 s."""
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                broker = self.start()
                slow = self.client(broker, receive_buffer=4096)
                slow.connect()
                slow.subscribe("queued")
                publisher = self.client(broker)
                publisher.connect()
                payload = b"x" * 100_000
                for _ in range(150):
                    publisher.publish("queued", payload)
                publisher.publish("queued", b"the last")
                broker.signal(number)
                broker.expect_log(r"\(TCP Port \d+ Closed\)")
                with self.assertRaises(ConnectionError):
                    RawClient(broker.port)
                got = slow.read_to_end(timeout=5)
                self.assertEqual(got.count(payload), 150)
                self.assertTrue(got.endswith(b"the last\r\n"))
                # twistd ends itself by the signal it was sent, as Unix asks.
                self.assertIn(broker.wait(5), (0, -number))

    def test_sigterm_does_not_wait_for_ever(self) -> None:
        """A client that does not read cannot keep the broker from stopping."""
        broker = self.start("--drain-timeout", "0.5")
        slow = self.client(broker, receive_buffer=4096)
        slow.connect()
        slow.subscribe("queued")
        publisher = self.client(broker)
        for _ in range(150):
            publisher.publish("queued", b"x" * 100_000)
        broker.signal(signal.SIGTERM)
        self.assertIn(broker.wait(5), (0, -signal.SIGTERM))

    def test_lame_duck(self) -> None:
        """At SIGUSR2 clients are told with `ldm`, closed over the grace time, and it ends."""
        broker = self.start("--lame-duck", "0.4")
        clients = [self.client(broker) for _ in range(4)]
        for client in clients:
            client.connect()
        broker.signal(signal.SIGUSR2)
        for client in clients:
            self.assertIs(client.read_info()["ldm"], True)
        with self.assertRaises(ConnectionError):
            RawClient(broker.port)
        for client in clients:
            self.assertEqual(client.read_to_end(), b"")
        self.assertEqual(broker.wait(), 0)

    def test_lame_duck_alone(self) -> None:
        """At SIGUSR2 a broker without clients ends at once, and a bare client is only closed."""
        broker = self.start()
        self.client(broker).close()
        broker.expect_log("disconnected")
        broker.signal(signal.SIGUSR2)
        self.assertEqual(broker.wait(5), 0)
        self.assertNotIn("Traceback", broker.log())
        broker = self.start("--lame-duck", "0.2")
        bare = self.client(broker)
        bare.settle()
        broker.signal(signal.SIGUSR2)
        self.assertEqual(bare.read_to_end(), b"")
        self.assertEqual(broker.wait(5), 0)

    def test_lame_duck_twice(self) -> None:
        """A second SIGUSR2 changes nothing: the clients are closed, the broker ends cleanly."""
        broker = self.start("--lame-duck", "0.5")
        client = self.client(broker)
        client.connect()
        broker.signal(signal.SIGUSR2)
        self.assertIs(client.read_info()["ldm"], True)
        broker.signal(signal.SIGUSR2)
        client.read_to_end()
        self.assertEqual(broker.wait(5), 0)
        self.assertNotIn("Traceback", broker.log())

    def test_sigterm_in_lame_duck(self) -> None:
        """SIGTERM cuts the grace time of a lame duck short."""
        broker = self.start("--lame-duck", "60")
        client = self.client(broker)
        client.connect()
        broker.signal(signal.SIGUSR2)
        self.assertIs(client.read_info()["ldm"], True)
        broker.signal(signal.SIGTERM)
        self.assertIn(broker.wait(5), (0, -signal.SIGTERM))
        self.assertNotIn("Traceback", broker.log())

    def test_sighup_reloads(self) -> None:
        """SIGHUP takes new users, permissions and limits and holds those connected to them."""
        broker = self.start(config=USERS + _GONE)
        alice, gone = self.client(broker), self.client(broker)
        alice.connect(user="alice", **{"pass": "one"})
        alice.subscribe("open.>", "1")
        alice.subscribe("shut.>", "2")
        gone.connect(user="gone", **{"pass": "two"})
        broker.config.write_text(
            "max_payload = 1000\n"
            + USERS.replace('subscribe.allow = [">"]', 'subscribe.deny = ["shut.>"]')
        )
        broker.signal(signal.SIGHUP)
        self.assert_ends_with(gone, b"-ERR 'Authorization Violation'\r\n")
        told = alice.read_until(b"\r\n") + alice.read_until(b"\r\n")
        self.assertIn(b"-ERR 'Permissions Violation for Subscription to \"shut.>\"'\r\n", told)
        self.assertIn(b'"max_payload":1000', told)
        alice.publish("shut.this", b"no")
        self.assertIn(b"MSG open.this 1 3\r\nyes", alice.publish("open.this", b"yes"))
        alice.send(b"PUB open.this 1001\r\n")
        self.assert_ends_with(alice, b"-ERR 'Maximum Payload Violation'\r\n")
        late = self.client(broker)
        late.send(b'CONNECT {"user":"gone","pass":"two"}\r\n')
        self.assert_ends_with(late, b"-ERR 'Authorization Violation'\r\n")

    def test_sighup_with_a_bad_file(self) -> None:
        """SIGHUP with a bad file keeps the old settings, and the log says what is wrong."""
        broker = self.start(config=USERS)
        alice = self.client(broker)
        alice.connect(user="alice", **{"pass": "one"})
        for bad, said in (("prot = 1\n", "unknown key prot"), ("port = \n", "line 1")):
            broker.config.write_text(bad)
            broker.signal(signal.SIGHUP)
            broker.expect_log(f"not reloaded, the old settings stay: .*{said}")
        broker.config.unlink()
        broker.signal(signal.SIGHUP)
        broker.expect_log("not reloaded, the old settings stay: .*No such file")
        alice.settle()
        again = self.client(broker)
        again.connect(user="alice", **{"pass": "one"})
