"""The examples of `rtmb.client`, run as their first lines say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import TestCase

from rtmb.client import connect
from rtmb.test.support.processes import PATIENCE, TWISTD, NatsServerProcess, ServerProcess, need
from rtmb.testing import start_broker
from rtmb.testing.process import environment

_EXAMPLES = Path(__file__).parents[3] / "examples"


class ExampleTests(TestCase):
    timeout = 3 * PATIENCE

    def setUp(self) -> None:
        # They are no part of what is installed.
        if not _EXAMPLES.exists():
            self.skipTest("the examples are not here")

    def run_example(self, name: str) -> list[str]:
        """What it prints, the same with each server."""
        said = []
        for start in (start_broker, NatsServerProcess):
            with start() as server:
                done = subprocess.run(
                    [sys.executable, _EXAMPLES / name, server.url],
                    env=environment(),
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE,
                    check=False,
                )
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                said.append(done.stdout.splitlines())
        self.assertEqual(said[0], said[1])
        return said[0]

    def test_weather(self) -> None:
        self.assertEqual(
            self.run_example("client_weather.py"),
            ["weather.oslo: rain (station Blindern)", "weather.tokyo: sun (station ?)"],
        )

    def test_request(self) -> None:
        self.assertEqual(
            self.run_example("client_request.py"),
            ["twice 21 is 42", "nobody answers on triple"],
        )

    async def test_service(self) -> None:
        need(self, TWISTD.exists(), "no twistd")
        with start_broker() as broker:
            example = str(_EXAMPLES / "client_service.py")
            command = [str(TWISTD), "-n", "--pidfile=", "-y", example]
            with ServerProcess(command, env={"NATS_URL": broker.url}) as clock:
                clock.expect_log("clock example: connected")
                client = await connect(broker.url)
                answer = await client.request("time.now", timeout=PATIENCE)
                self.assertRegex(answer.text, r"^\d{4}-\d\d-\d\dT.*\+00:00$")
                await client.close()
                clock.stop()
                self.assertIn("clock example: closed", clock.log())
