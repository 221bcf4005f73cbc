"""A door of another package, found by twistd and run: `examples/echo_door`."""

from __future__ import annotations

import os
from pathlib import Path

import rtmb
from rtmb.test.support.processes import RawClient, WithProcesses, need, twistd

EXAMPLE = Path(rtmb.__file__).resolve().parent.parent / "examples" / "echo_door"


class EchoDoorTests(WithProcesses):
    def setUp(self) -> None:
        need(self, EXAMPLE.is_dir(), "the examples are not installed with the package")
        path = os.pathsep.join([str(EXAMPLE), os.environ.get("PYTHONPATH", "")])
        self.environment = {"PYTHONPATH": path}

    def test_it_is_found_and_runs(self) -> None:
        broker = self.start(config="[doors.echo]\nport = 0\n", env=self.environment)
        port = int(broker.expect_log(r"echo door: \S+:(\d+)")[1])
        library = self.client(broker)
        library.connect()
        library.subscribe("echo.>")
        client = RawClient(port, info=False)
        self.addCleanup(client.close)
        client.send(b"echo.a hello there\n")
        client.read_until(b"echo.a hello there\n")
        self.assertEqual(library.settle(), b"MSG echo.a 1 11\r\nhello there\r\n")
        broker.stop()
        self.assertEqual(client.read_to_end(), b"? the broker is stopping\n")

    def test_a_wrong_table(self) -> None:
        broker = self.start()
        config = broker.directory / "wrong.toml"
        config.write_text('[doors.echo]\nport = "x"\n')
        ended = twistd("--config", str(config), cwd=broker.directory, env=self.environment)
        self.assertIn("doors.echo.port: expected a port", ended.stdout + ended.stderr)
        self.assertEqual(ended.returncode, 1)
