"""Tests for `rtmb.testing`, as other people's tests use it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

from twisted.trial.unittest import TestCase

from rtmb.client import AuthenticationFailed
from rtmb.test.support.processes import PATIENCE, RawClient, need
from rtmb.testing import BrokerMixin, start_broker
from rtmb.testing.process import environment


def is_listening(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


class ProcessTests(unittest.TestCase):
    def test_start_and_stop(self) -> None:
        """A broker on ports of its own, and gone afterwards."""
        with start_broker() as broker:
            self.assertEqual(broker.url, f"nats://127.0.0.1:{broker.port}")
            with RawClient(broker.port) as client:
                client.connect()
            pid = broker.pid
        self.assertFalse(is_listening(broker.host, broker.port))
        self.assertRaises(ProcessLookupError, os.kill, pid, 0)
        self.assertFalse(broker.directory.exists())
        broker.stop()  # twice does no harm

    def test_starts_fast(self) -> None:
        """In under half a second: of the processor's time, as a busy machine may make it wait."""
        with start_broker() as broker:
            fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
            spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        self.assertLess(spent, 0.5)

    def test_settings(self) -> None:
        """They are those of a TOML file; what is wrong with them is said."""
        users = [{"user": "u", "password": "p"}]
        with (
            start_broker(max_payload="1KiB", auth={"users": users}) as broker,
            RawClient(broker.port) as client,
        ):
            self.assertEqual(client.info["max_payload"], 1024)
            self.assertTrue(client.info["auth_required"])
        for settings, said in (
            ({"histori": 5}, "did you mean history"),
            ({"history": "many"}, "a whole number"),
            ({"password": "x"}, "password needs user"),
        ):
            with self.assertRaisesRegex(ValueError, said):
                start_broker(**settings)

    def test_taken_port(self) -> None:
        with start_broker() as broker, self.assertRaisesRegex(ValueError, "cannot listen"):
            start_broker(port=broker.port)

    def test_two_at_once(self) -> None:
        with start_broker() as one, start_broker() as two:
            self.assertNotEqual(one.port, two.port)

    def test_ends_with_who_started_it(self) -> None:
        """Even when that is killed, no broker stays behind."""
        program = "from rtmb.testing import start_broker; b = start_broker();\n" + (
            "print(b.port, flush=True); import time; time.sleep(600)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment()
        ) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            self.assertTrue(is_listening("127.0.0.1", port))
            process.kill()
        deadline = time.monotonic() + PATIENCE
        while is_listening("127.0.0.1", port):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_reset(self) -> None:
        """Clients are closed, and what was published and counted is forgotten; addresses stay."""
        with start_broker(name="it", history=2) as broker, RawClient(broker.port) as client:
            client.connect()
            client.subscribe("a")
            client.publish("a", b"x")
            addresses = broker.url, broker.http_url, broker.msgpack_port
            broker.reset()
            client.read_to_end()
            self.assertEqual((broker.url, broker.http_url, broker.msgpack_port), addresses)
            self.assertEqual(broker.published(), [])
            with RawClient(broker.port) as other:
                self.assertEqual(other.info["server_name"], "it")
                other.connect()
                other.subscribe("$LAST.a")
                other.settle()
                self.assertNotIn(b"MSG", other.settle())

    def test_published_and_waited_for(self) -> None:
        with start_broker() as broker, RawClient(broker.port) as client:
            client.connect()
            block = b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
            client.send(b"HPUB a.1 back %d %d\r\n%bone\r\n" % (len(block), len(block) + 3, block))
            client.publish("b", b"\xff")
            client.publish("a.2", b'{"n": 2}')
            one, other, two = broker.published()
            self.assertEqual((one.subject, one.text, one.reply), ("a.1", "one", "back"))
            self.assertEqual((one.headers, one.door), ({"A": ["1", "2"]}, "nats"))
            self.assertEqual((other.payload, other.headers), (b"\xff", {}))
            self.assertEqual(two.json(), {"n": 2})
            self.assertTrue(one.time <= other.time <= two.time)
            self.assertEqual(broker.published("a.*"), [one, two])
            # Each call gives the next one; other patterns are counted for themselves.
            self.assertEqual(broker.wait_for("a.*"), one)
            self.assertEqual(broker.wait_for(">"), one)
            self.assertEqual(broker.wait_for("a.*"), two)
            with self.assertRaisesRegex(AssertionError, r"no message on a\.\* within 0.01 s\n3 "):
                broker.wait_for("a.*", within=0.01)
            late = threading.Timer(0.05, client.send, [b"PUB a.3 0\r\n\r\n"])
            late.start()
            self.assertEqual(broker.wait_for("a.*", within=PATIENCE).subject, "a.3")
            late.join()
            with self.assertRaisesRegex(ValueError, "not a pattern"):
                broker.published("a b")

    def test_a_journal_of_ones_own(self) -> None:
        """It is what is recorded then."""
        with start_broker(journal=["a"]) as broker, RawClient(broker.port) as client:
            client.connect()
            client.publish("a", b"")
            client.publish("b", b"")
            self.assertEqual([m.subject for m in broker.published()], ["a"])

    def test_what_an_ended_broker_is_asked(self) -> None:
        with start_broker() as broker:
            broker.kill()
            with self.assertRaisesRegex(ConnectionError, "the broker has ended"):
                broker.published()

    def test_doors(self) -> None:
        """Each door that there is has a port of its own."""
        with start_broker() as broker:
            need(self, broker.http_port, "the broker has no HTTP door")
            assert broker.http_port is not None
            assert broker.msgpack_port is not None
            self.assertTrue(is_listening(broker.host, broker.http_port))
            self.assertTrue(is_listening(broker.host, broker.msgpack_port))
            self.assertEqual(broker.http_url, f"http://127.0.0.1:{broker.http_port}")
            self.assertEqual(broker.ws_url, f"ws://127.0.0.1:{broker.http_port}/ws")
        with start_broker(no_http=True) as broker:
            self.assertRaises(ValueError, lambda: broker.ws_url)


class MixinTests(BrokerMixin, TestCase):
    """A broker in trial's own reactor."""

    async def test_round_trip(self) -> None:
        broker = self.start_broker(history=3)
        self.assertEqual(broker.settings.history, 3)
        client = await self.connect_client(broker)
        subscription = client.subscribe("a")
        client.publish("a", b"x")
        self.assertEqual((await subscription.next(PATIENCE)).payload, b"x")

    async def test_token(self) -> None:
        broker = self.start_broker(token="t")
        await self.connect_client(broker, token="t")
        await self.assertFailure(self.connect_client(broker), AuthenticationFailed)
