"""`rtmb pipeline` as a process: what is told before Spark starts, and who is behind."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

from rtmb.test.support.processes import (
    PATIENCE,
    RawClient,
    WithProcesses,
    environment,
    need,
)
from rtmb.test.support.spark_jobs import has_module

#: A mistake is told in 2 s by someone who has the machine to himself; here others work as well.
SOON = 10.0


class PipelineCase(WithProcesses):
    def run_pipeline(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rtmb", "pipeline", *arguments],
            env=environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rtmb-pipeline-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def broker(self, *arguments: str) -> str:
        broker = self.start("--no-msgpack", *arguments)
        self.port = broker.port
        return f"http://127.0.0.1:{broker.http_port}"


class MistakeTests(PipelineCase):
    """What would fail in Spark in half a minute is told at once, in one line."""

    def refused(self, *arguments: str) -> str:
        began = time.monotonic()
        done = self.run_pipeline(*arguments)
        self.assertLess(time.monotonic() - began, SOON)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertRegex(done.stderr, r"\AError: [^\n]+\n\Z")
        return done.stderr

    def test_no_broker(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        nowhere = f"http://127.0.0.1:{port}"
        for job in (["archive"], ["rollup", "a"], ["query", "select 1"], ["report"]):
            self.assertIn("no broker answers", self.refused(*job, "--servers", nowhere))

    def test_one_that_does_not_answer(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            said = self.refused("archive", "--servers", f"http://127.0.0.1:{port}")
        self.assertIn("no broker answers", said)

    def test_no_journal(self) -> None:
        said = self.refused("archive", "--servers", self.broker())
        self.assertIn("start the broker with --journal PATTERN", said)

    def test_a_wrong_key(self) -> None:
        server = self.broker("--journal", ">", "--api-key", "right")
        said = self.refused("archive", "--servers", server, "-O", "apiKey=wrong")
        self.assertIn("-O apiKey=", said)
        self.assertNotIn("wrong", said)

    def test_options_paths_and_masters(self) -> None:
        server = self.broker("--journal", ">")
        (self.folder / "file").write_text("")
        with socket.create_server(("127.0.0.1", 0)) as free:
            master = f"spark://127.0.0.1:{free.getsockname()[1]}"
        for words, arguments in (
            ("did you mean subject", ["archive", "-O", "subjekt=a"]),
            ("--until: expected", ["archive", "--until", "soon"]),
            ("is a file, and no folder", ["archive", "--archive", "file/below"]),
            ("no archive there", ["query", "select 1", "--archive", "nowhere"]),
            ("Spark knows no such master", ["archive", "--master", "sparky"]),
            ("no Spark master answers", ["archive", "--master", master]),
            ("ends in .svg or .png", ["query", "select 1", "--chart", "a.gif"]),
            ("there is no folder", ["query", "select 1", "--csv", "away/a.csv"]),
            ("would roll up itself", ["rollup", ">"]),
            ("not a subject or pattern", ["archive", "a..b"]),
        ):
            self.assertIn(words, self.refused(*arguments, "--servers", server), arguments)

    def test_as_json(self) -> None:
        server = self.broker()
        done = self.run_pipeline("archive", "--servers", server, "--json")
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertIn("--journal", json.loads(done.stdout)["error"])


class ImportTests(unittest.TestCase):
    def test_help_needs_no_pyspark(self) -> None:
        program = (
            "import sys; from rtmb.cli.pipeline import pipeline\n"
            "assert 'pyspark' not in sys.modules and 'twisted' not in sys.modules, sys.modules"
        )
        subprocess.run([sys.executable, "-c", program], env=environment(), check=True)

    def test_the_jobs_do_without_twisted(self) -> None:
        names = "alert archive broker charts enrich files lake messages page"
        names += " query replay report rollup store streams"
        program = (
            f"import sys; from rtmb.spark.jobs import {', '.join(names.split())}\n"
            "assert 'twisted' not in sys.modules"
        )
        need(self, has_module("pyspark"), "there is no pyspark")
        subprocess.run([sys.executable, "-c", program], env=environment(), check=True)


class StatusTests(PipelineCase):
    def publish(self, count: int) -> None:
        with RawClient(self.port) as client:
            client.connect()
            client.send(b"PUB a 1\r\nx\r\n" * count)
            client.settle()

    def test_who_is_behind(self) -> None:
        server = self.broker("--journal", ">", "--journal-messages", "1000")
        self.assertIn("nobody reads it", self.run_pipeline("status", "--servers", server).stdout)
        for name, position in (("archive", 1), ("rollup", 1)):
            body = json.dumps({"position": position, "ttl": 600}).encode()
            url = f"{server}/journal/leases/{name}"
            urllib.request.urlopen(urllib.request.Request(url, body, method="PUT")).close()
        self.publish(3)
        done = self.run_pipeline("status", "--servers", server)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"archive +3 ")
        said = json.loads(self.run_pipeline("status", "--servers", server, "--json").stdout)
        self.assertEqual([lease["lag"] for lease in said["leases"]], [3, 3])
        self.assertGreater(said["leases"][0]["lag_seconds"], 0)

    def test_who_has_lost_something(self) -> None:
        server = self.broker("--journal", ">", "--journal-messages", "16")
        url = f"{server}/journal/leases/slow"
        body = b'{"position": 1, "ttl": 600}'
        urllib.request.urlopen(urllib.request.Request(url, body, method="PUT")).close()
        self.publish(40)
        done = self.run_pipeline("status", "--servers", server)
        self.assertEqual(done.returncode, 1)
        self.assertIn("slow", done.stdout)
