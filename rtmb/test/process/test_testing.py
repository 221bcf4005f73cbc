"""Tests for `rtmb.testing`, as other people's tests use it."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import subprocess
import sys
import textwrap
import time
import unittest
from pathlib import Path

from twisted.trial.unittest import TestCase

from rtmb.client import AuthenticationFailed
from rtmb.test.support.files import folder
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


class PytestTests(unittest.TestCase):
    """The fixtures, in test runs of other people."""

    def setUp(self) -> None:
        self.place = folder(self)
        if not importlib.metadata.entry_points(group="pytest11", name="rtmb"):
            # Not installed, but run from its source: what installing it would leave behind.
            info = self.place / "rtmb-0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rtmb\nVersion: 0\n")
            (info / "entry_points.txt").write_text("[pytest11]\nrtmb = rtmb.pytest_plugin\n")

    def run_tests(self, source: str, *options: str) -> str:
        (self.place / "test_theirs.py").write_text(textwrap.dedent(source))
        env = environment()
        env["PYTHONPATH"] = os.pathsep.join([str(self.place), env["PYTHONPATH"]])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
            cwd=self.place,
            env=env,
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
            check=False,
        )
        return done.stdout + done.stderr

    def test_synchronous(self) -> None:
        """Nothing to import; settings by marker; a broker for each test, gone after it."""
        said = self.run_tests(
            """
            import socket
            import pytest

            seen = []

            def info(broker):
                with socket.create_connection((broker.host, broker.port)) as s:
                    return s.recv(4096)

            def test_one(rtmb_broker):
                assert b"INFO" in info(rtmb_broker)
                assert b"auth_required" not in info(rtmb_broker)
                seen.append(rtmb_broker)

            @pytest.mark.rtmb(token="x")
            class TestSettings:
                @pytest.mark.rtmb(max_payload=2048)
                def test_marker(self, rtmb_broker):
                    assert b'"auth_required":true' in info(rtmb_broker)
                    assert b'"max_payload":2048' in info(rtmb_broker)

            def test_gone():
                with pytest.raises(OSError):
                    info(seen[0])

            def test_factory(rtmb_broker_factory):
                one, two = rtmb_broker_factory(), rtmb_broker_factory(token="t")
                assert one.port != two.port
                assert b"auth_required" in info(two)
            """,
            "--strict-markers",
        )
        self.assertIn("4 passed", said)

    def test_asyncio(self) -> None:
        said = self.run_tests(
            """
            import nats
            import pytest

            @pytest.mark.asyncio
            async def test_nats_py(rtmb_broker):
                client = await nats.connect(rtmb_broker.url)
                subscription = await client.subscribe("a")
                await client.publish("a", b"x")
                assert (await subscription.next_msg(10)).data == b"x"
                await client.close()
            """,
            "-p",
            "no:twisted",
        )
        self.assertIn("1 passed", said)

    def test_twisted(self) -> None:
        said = self.run_tests(
            """
            import pytest_twisted
            from rtmb.client import connect

            @pytest_twisted.ensureDeferred
            async def test_client(rtmb_broker):
                client = await connect(rtmb_broker.url)
                subscription = client.subscribe("a")
                client.publish("a", "x")
                assert (await subscription.next(10)).text == "x"
                await client.close()
            """,
            "--reactor=default",
        )
        self.assertIn("1 passed", said)

    def test_costs_nothing_unless_used(self) -> None:
        """Who has rtmb installed and does not use it gets neither Twisted nor a reactor."""
        said = self.run_tests(
            """
            import sys

            def test_nothing_loaded():
                assert "rtmb.pytest_plugin" in sys.modules
                heavy = [m for m in sys.modules if m.startswith(("twisted", "rtmb.testing"))]
                assert heavy == []

            def test_no_reactor(rtmb_broker):
                assert not [m for m in sys.modules if m.startswith("twisted")]
            """,
            "-p",
            "no:twisted",
            "-p",
            "no:hypothesispytest",
        )
        self.assertIn("2 passed", said)

    def test_setup(self) -> None:
        """The entry point is where pip finds it."""
        setup = Path(__file__).parents[2] / "setup.cfg"
        if setup.exists():
            self.assertIn("pytest11 =\n    rtmb = rtmb.pytest_plugin\n", setup.read_text())
        else:
            (found,) = importlib.metadata.entry_points(group="pytest11", name="rtmb")
            self.assertEqual(found.value, "rtmb.pytest_plugin")


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
