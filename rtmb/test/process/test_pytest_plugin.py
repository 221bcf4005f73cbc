"""Tests for `rtmb.pytest_plugin`: its fixtures, in test runs of other people."""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import subprocess
import sys
import textwrap
import unittest
from pathlib import Path

from rtmb.test.support.files import folder
from rtmb.test.support.processes import PATIENCE
from rtmb.testing.process import environment


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
        """Nothing to import; settings by marker; one process for all tests with the same settings,
        and nothing in it of the tests before."""
        said = self.run_tests(
            """
            import socket
            import urllib.request
            import pytest

            pids = set()

            def info(broker):
                with socket.create_connection((broker.host, broker.port)) as s:
                    return s.recv(4096)

            @pytest.mark.parametrize("n", [1, 2, 3])
            def test_like_new(rtmb_broker, n):
                assert rtmb_broker.published() == []
                assert b"auth_required" not in info(rtmb_broker)
                urllib.request.urlopen(f"{rtmb_broker.http_url}/publish/a", data=b"x").read()
                assert [m.payload for m in rtmb_broker.published()] == [b"x"]
                left = socket.create_connection((rtmb_broker.host, rtmb_broker.port))
                pids.add(rtmb_broker.pid)
                assert len(pids) == 1

            @pytest.mark.rtmb(token="x")
            class TestSettings:
                @pytest.mark.rtmb(max_payload=2048)
                def test_marker(self, rtmb_broker):
                    assert b'"auth_required":true' in info(rtmb_broker)
                    assert b'"max_payload":2048' in info(rtmb_broker)
                    assert rtmb_broker.pid not in pids

            def test_ended(rtmb_broker):
                rtmb_broker.kill()

            def test_another(rtmb_broker):
                assert b"INFO" in info(rtmb_broker)
                assert rtmb_broker.pid not in pids

            def test_factory(rtmb_broker_factory, rtmb_broker):
                one, two = rtmb_broker_factory(), rtmb_broker_factory(token="t")
                assert len({one.port, two.port, rtmb_broker.port}) == 3
                assert b"auth_required" in info(two)
                pids.add(one.pid)
                pytest.one = one

            def test_gone():
                with pytest.raises(OSError):
                    info(pytest.one)
            """,
            "--strict-markers",
        )
        self.assertIn("8 passed", said)

    def test_one_for_the_session(self) -> None:
        """What is started once stays connected to it: nothing is forgotten between the tests."""
        said = self.run_tests(
            """
            import urllib.request
            import pytest

            @pytest.fixture(scope="session")
            def app(rtmb_session_broker):
                urllib.request.urlopen(f"{rtmb_session_broker.http_url}/publish/a", data=b"x")

            @pytest.mark.parametrize("n", [1, 2])
            def test_session(rtmb_session_broker, app, n):
                assert len(rtmb_session_broker.published("a")) == 1
            """
        )
        self.assertIn("2 passed", said)

    def test_a_marker_without_names(self) -> None:
        said = self.run_tests(
            """
            import pytest

            @pytest.mark.rtmb("x")
            def test_it(rtmb_broker):
                pass
            """
        )
        self.assertIn("1 error", said)
        self.assertIn("@pytest.mark.rtmb takes settings by name", said)
        self.assertIn("not 'x'", said)

    def test_the_traffic_of_a_test_that_fails(self) -> None:
        said = self.run_tests(
            """
            import urllib.request

            def publish(broker, subject):
                urllib.request.urlopen(f"{broker.http_url}/publish/{subject}", data=b"7").read()

            def test_passes(rtmb_broker):
                publish(rtmb_broker, "passes")

            def test_fails(rtmb_broker):
                publish(rtmb_broker, "fails.a")
                assert rtmb_broker.wait_for("fails.*").json() == 8

            def test_waits(rtmb_broker):
                publish(rtmb_broker, "other")
                rtmb_broker.wait_for("fails.*", within=0.01)

            def test_factory(rtmb_broker_factory):
                publish(rtmb_broker_factory(), "made")
                assert False

            def test_session(rtmb_session_broker):
                publish(rtmb_session_broker, "session")
                assert False

            def test_killed(rtmb_broker):
                rtmb_broker.kill()
                assert False
            """
        )
        self.assertIn("5 failed, 1 passed", said)
        self.assertNotIn(" passes ", said)
        for subject in ("fails.a", "other", "made", "session"):
            self.assertRegex(
                said,
                rf"-+ traffic of nats://127.0.0.1:\d+ -+\n1 messages published\n"
                rf" +\+0\.000 s  {subject}  '7'\n",
            )
        self.assertIn("no message on fails.* within 0.01 s", said)
        self.assertIn("the broker has ended", said)

    def test_fifteen_tests_in_two_seconds(self) -> None:
        """Of the processor's time, as a busy machine may make them wait, and beyond what pytest
        takes to start."""
        source = """
            import urllib.request
            import pytest

            @pytest.mark.parametrize("n", range(15))
            def test_it(rtmb_broker, n):
                url = f"{rtmb_broker.http_url}/publish/orders.{n}"
                urllib.request.urlopen(url, data=b"x").read()
                assert rtmb_broker.wait_for("orders.*").subject == f"orders.{n}"
            """
        fifteen, said = self.time_spent(source)
        self.assertIn("15 passed", said)
        none, said = self.time_spent("def test_nothing(): pass")
        self.assertIn("1 passed", said)
        self.assertLess(fifteen - none, 2)

    def time_spent(self, source: str) -> tuple[float, str]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = self.run_tests(source)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, said

    def test_xdist(self) -> None:
        """Each worker has a broker of its own."""
        said = self.run_tests(
            """
            import os
            import urllib.request
            import pytest

            @pytest.mark.parametrize("n", range(8))
            def test_it(rtmb_broker, n):
                assert rtmb_broker.published() == []
                url = f"{rtmb_broker.http_url}/publish/orders"
                urllib.request.urlopen(url, data=b"x").read()
                assert rtmb_broker.wait_for("orders").text == "x"
                print(os.environ["PYTEST_XDIST_WORKER"], rtmb_broker.pid)
                assert n != 7
            """,
            *("-n", "2", "-rP"),
        )
        self.assertIn("1 failed, 7 passed", said)
        pairs = set(re.findall(r"^(gw[01]) (\d+)$", said, re.MULTILINE))
        self.assertEqual({worker for worker, _ in pairs}, {"gw0", "gw1"})
        self.assertEqual(len(pairs), 2, pairs)
        self.assertRegex(said, r"-+ traffic of nats://")

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
        setup = Path(__file__).parents[3] / "setup.cfg"
        if setup.exists():
            self.assertIn("pytest11 =\n    rtmb = rtmb.pytest_plugin\n", setup.read_text())
        else:
            (found,) = importlib.metadata.entry_points(group="pytest11", name="rtmb")
            self.assertEqual(found.value, "rtmb.pytest_plugin")
