"""TLS: after INFO, before it, and with certificates on both sides."""

from __future__ import annotations

import asyncio
import os
import ssl
import unittest
from collections.abc import Awaitable, Callable
from typing import Any

import nats
from nats.aio.client import Client

from rtmb.test.support.certificates import made
from rtmb.test.support.files import folder
from rtmb.test.support.processes import PATIENCE, BrokerProcess, RawClient, twistd


class TlsTests(unittest.TestCase):
    """A broker with a certificate."""

    def setUp(self) -> None:
        self.place = folder(self)
        for name, data in made().items():
            (self.place / name).write_bytes(data)

    def path(self, name: str) -> str:
        return str(self.place / name)

    def start(self, *arguments: str) -> BrokerProcess:
        broker = BrokerProcess(
            "--tls-cert", self.path("server.pem"), "--tls-key", self.path("server.key"), *arguments
        )
        self.addCleanup(broker.stop)
        return broker

    def start_verifying(self, *arguments: str) -> BrokerProcess:
        return self.start("--tls-ca", self.path("ca.pem"), "--tls-verify", *arguments)

    def context(self, who: str = "") -> ssl.SSLContext:
        """A client's TLS, with the certificate of `who` if there is one."""
        context = ssl.create_default_context(cafile=self.path("ca.pem"))
        if who:
            context.load_cert_chain(self.path(f"{who}.pem"), self.path(f"{who}.key"))
        return context

    def raw(self, broker: BrokerProcess, **options: Any) -> RawClient:
        client = RawClient(broker.port, **options)
        self.addCleanup(client.close)
        return client

    def with_client(
        self, broker: BrokerProcess, work: Callable[[Client], Awaitable[None]], **options: Any
    ) -> None:
        async def whole() -> None:
            client = await nats.connect(
                broker.url,
                tls_hostname="localhost",
                allow_reconnect=False,
                **({"tls": self.context()} | options),
            )
            try:
                await work(client)
            finally:
                await client.close()

        asyncio.run(asyncio.wait_for(whole(), 2 * PATIENCE))

    async def exchange(self, client: Client) -> None:
        """A small message and the largest, there and back."""
        subscription = await client.subscribe("tls.*")
        for data in (b"hello", os.urandom(1 << 20)):
            await client.publish("tls.this", data)
            message = await subscription.next_msg(timeout=PATIENCE)
            self.assertTrue(message.data == data)

    def assert_cut_off(self, work: Callable[[], object]) -> None:
        """The broker ends the connection during the handshake or right after it."""
        with self.assertRaises((ssl.SSLError, ConnectionError, AssertionError)):
            work()

    def test_upgrade_after_info(self) -> None:
        """nats-py goes over to TLS after INFO, and messages up to the largest pass."""
        self.with_client(self.start(), self.exchange)

    def test_upgrade_byte_by_byte(self) -> None:
        """INFO is plain and says that TLS is required; the protocol goes on encrypted."""
        broker = self.start()
        client = self.raw(broker)
        self.assertIs(client.info["tls_required"], True)
        self.assertIs(client.info["tls_verify"], False)
        client.start_tls(self.context())
        self.assertEqual(client.connect(), b"")
        client.subscribe("a")
        self.assertEqual(client.publish("a", b"hi"), b"MSG a 1 2\r\nhi\r\n")

    def test_tls_first(self) -> None:
        """With --tls-first the handshake comes before INFO, for nats-py and by hand."""
        broker = self.start("--tls-first")
        client = self.raw(broker, tls_first=self.context())
        self.assertIs(client.info["tls_required"], True)
        client.connect()
        self.with_client(broker, self.exchange, tls_handshake_first=True)

    def test_tls_first_refuses_plain_text(self) -> None:
        """With --tls-first someone who speaks plain text is told nothing and closed."""
        broker = self.start("--tls-first")
        client = self.raw(broker, info=False)
        client.send(b"CONNECT {}\r\n")
        self.assertNotIn(b"INFO", client.read_to_end())

    def test_client_certificate(self) -> None:
        """With --tls-verify a client with a certificate of our authority comes in."""
        broker = self.start_verifying()
        self.assertIs(self.raw(broker).info["tls_verify"], True)
        self.with_client(broker, self.exchange, tls=self.context("client"))

    def test_client_without_certificate(self) -> None:
        """With --tls-verify a client without a certificate, or with a stranger's, is refused."""
        for who in ("", "stranger"):
            for first in (False, True):
                with self.subTest(who=who, first=first):
                    broker = self.start_verifying(*(["--tls-first"] if first else []))

                    def attempt(
                        who: str = who, first: bool = first, broker: BrokerProcess = broker
                    ) -> None:
                        if first:
                            client = self.raw(broker, tls_first=self.context(who))
                        else:
                            client = self.raw(broker)
                            client.start_tls(self.context(who))
                        client.connect()

                    self.assert_cut_off(attempt)
                    broker.expect_log("disconnected: ")
                    broker.stop()
                    self.assertNotIn("Traceback", broker.log())

    def test_plain_text_is_refused(self) -> None:
        """CONNECT in plain text to a broker with TLS is told so and closed, others stay."""
        broker = self.start()
        other = self.raw(broker)
        other.start_tls(self.context())
        other.connect()
        client = self.raw(broker)
        client.send(b"CONNECT {}\r\nPUB a 1\r\nx\r\n")
        self.assertEqual(client.read_to_end(), b"-ERR 'Secure Connection - TLS Required'\r\n")
        other.settle()

    def test_handshake_timeout(self) -> None:
        """Who does not begin the handshake, or not end it, is closed in time."""
        broker = self.start("--auth-timeout", "0.3")
        silent, half = self.raw(broker), self.raw(broker)
        half.send(b"\x16\x03\x01")
        self.assertEqual(silent.read_to_end(), b"")
        self.assertEqual(half.read_to_end(), b"")
        self.assertIn("TLS handshake timeout", broker.log())

    def test_nonsense_for_a_handshake(self) -> None:
        """Bytes that only begin like a handshake harm nobody else and leave no traceback."""
        broker = self.start()
        client = self.raw(broker)
        client.send(b"\x16\x03\x01" + b"\xff" * 100)
        client.read_to_end()
        self.with_client(broker, self.exchange)
        broker.stop()
        self.assertNotIn("Traceback", broker.log())

    def test_certificate_and_token(self) -> None:
        """Authentication comes after the handshake and works as without TLS."""
        broker = self.start("--token", "opensesame")
        self.with_client(broker, self.exchange, token="opensesame")
        client = self.raw(broker)
        client.start_tls(self.context())
        client.send(b'CONNECT {"auth_token":"wrong"}\r\n')
        self.assertEqual(client.read_to_end(), b"-ERR 'Authorization Violation'\r\n")

    def test_many_messages(self) -> None:
        """Thousands of messages in one stream arrive in order and whole through TLS."""
        broker = self.start()
        client = self.raw(broker)
        client.start_tls(self.context())
        client.connect()
        client.subscribe("stream")
        count = 5000
        numbers = [b"%d" % i for i in range(count)]
        client.send(b"".join(b"PUB stream %d\r\n%b\r\n" % (len(n), n) for n in numbers))
        got = client.settle()
        self.assertTrue(
            got == b"".join(b"MSG stream 1 %d\r\n%b\r\n" % (len(n), n) for n in numbers)
        )

    def test_bad_files(self) -> None:
        """A certificate, key or authority that cannot be used is one line and exit status 1."""
        (self.place / "nonsense.pem").write_text("nonsense\n")
        cases = [
            (["--tls-cert", "none.pem", "--tls-key", "server.key"], "tls_cert"),
            (["--tls-cert", "server.pem", "--tls-key", "none.key"], "tls_key"),
            (["--tls-cert", "nonsense.pem", "--tls-key", "server.key"], "tls_cert"),
            (["--tls-cert", "server.pem", "--tls-key", "nonsense.pem"], "tls_key"),
            (["--tls-cert", "server.pem", "--tls-key", "client.key"], "tls_key"),
            (["--tls-cert", "server.pem"], "tls_key"),
            (["--tls-first"], "tls_cert"),
            (
                ["--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-verify"],
                "tls_ca",
            ),
            (
                [
                    *("--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-verify"),
                    *("--tls-ca", "nonsense.pem"),
                ],
                "tls_ca",
            ),
        ]
        for arguments, word in cases:
            with self.subTest(arguments=arguments):
                ended = twistd("--port", "0", *arguments, cwd=self.place)
                self.assertEqual(ended.returncode, 1, ended)
                self.assertEqual(len(ended.stderr.splitlines()), 1, ended.stderr)
                self.assertIn(word, ended.stderr)
