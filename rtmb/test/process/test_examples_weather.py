"""The stations of the weather example."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import rtmb
from rtmb.test.support.processes import BrokerProcess, RawClient, environment, need


class ExampleTests(SynchronousTestCase):
    def test_stations_publish_through_three_doors(self) -> None:
        program = Path(rtmb.__file__).parent.parent / "examples" / "weather" / "stations.py"
        need(self, program.exists(), "the examples are not installed")
        with BrokerProcess() as broker, RawClient(broker.port) as client:
            client.connect()
            client.subscribe("weather.*")
            msgpack_port = broker.expect_log(r"msgpack door: [\d.]+:(\d+)")[1].decode()
            ports = ["--text", str(broker.port), "--http", str(broker.http_port)]
            stations = subprocess.Popen(
                [sys.executable, program, *ports, "--msgpack", msgpack_port], env=environment()
            )
            try:
                missing = {"oslo", "bergen", "rome", "naples", "lima", "cusco"}
                while missing:
                    line = client.read_until(b"\r\n").decode()
                    if line == "PING\r\n":
                        client.send(b"PONG\r\n")
                    elif line.startswith("{"):
                        self.assertEqual(set(json.loads(line)), {"temperature", "wind", "sent"})
                    elif line.startswith("MSG weather."):
                        missing.discard(line.split()[1].removeprefix("weather."))
            finally:
                stations.kill()
                stations.wait()
