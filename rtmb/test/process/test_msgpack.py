"""The msgpack door over real sockets, and its examples with the languages' own libraries."""

from __future__ import annotations

import ssl
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import msgpack

import rtmb
from rtmb.test.support.certificates import Authority
from rtmb.test.support.files import folder
from rtmb.test.support.msgpack import packed, publish, subscribe
from rtmb.test.support.npm import with_packages
from rtmb.test.support.processes import (
    PATIENCE,
    BrokerProcess,
    RawClient,
    Tail,
    environment,
    need,
    twistd,
)

EXAMPLES = Path(rtmb.__file__).resolve().parent.parent / "examples"


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
        place = folder(self)
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
        place = with_packages(self, "@msgpack/msgpack@3", scripts=EXAMPLES)
        self.try_client(["node", script.name], place, rb'weather/oslo {"n":2}')
