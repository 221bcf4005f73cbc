"""The Dockerfile, as far as no engine is needed to try it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import unittest
from fnmatch import fnmatch
from pathlib import Path

import rtmb
from rtmb.config import FIELDS, from_environment
from rtmb.test.support.processes import BrokerProcess, environment, need

ROOT = Path(rtmb.__file__).parents[1]


class DockerTests(unittest.TestCase):
    def setUp(self) -> None:
        file = ROOT / "Dockerfile"
        need(self, file.is_file(), "the Dockerfile is no part of what is installed")
        lines = re.sub(r"\\\n", " ", file.read_text()).splitlines()
        self.lines = [line for line in lines if line and not line.startswith("#")]

    def instruction(self, name: str) -> str:
        """What stands behind the last instruction of that name."""
        return [line.partition(" ")[2] for line in self.lines if line.startswith(f"{name} ")][-1]

    def python(self, code: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment(env),
            capture_output=True,
            text=True,
            check=False,
        )

    def test_what_the_build_reads_is_sent_to_it(self) -> None:
        """.dockerignore leaves out everything but what it names."""
        rules = (ROOT / ".dockerignore").read_text().split()
        self.assertEqual(rules[0], "*")
        sent = [rule[1:] for rule in rules if rule.startswith("!")]
        for name in sent:
            self.assertTrue((ROOT / name).exists(), name)
        for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "rtmb.example.toml"):
            self.assertIn(name, sent)
        (copied,) = (line.split()[1] for line in self.lines if line.startswith("COPY setup"))
        self.assertIn(copied, sent)

    def test_requirements(self) -> None:
        """The line that reads them from setup.cfg finds them all."""
        (line,) = (line for line in self.lines if line.startswith("RUN python -c "))
        code = re.search(r'"([^"]*)"', line)
        assert code is not None
        said = self.python(code[1].replace("/tmp/setup.cfg", str(ROOT / "setup.cfg"))).stdout
        found = said.split()
        for name in ("Twisted*", "msgspec*", "msgpack*", "click*"):
            self.assertTrue(any(fnmatch(line, name) for line in found), found)

    def test_variables_are_options(self) -> None:
        """And no option is fixed on the command line, where no variable could change it."""
        pairs = [pair.partition("=") for pair in shlex.split(self.instruction("ENV"))]
        given = {name: value for name, _, value in pairs if name.startswith("RTMB_")}
        self.assertEqual(from_environment(given), {"interface": "0.0.0.0"})
        self.assertEqual(json.loads(self.instruction("ENTRYPOINT")), ["rtmb"])
        self.assertEqual(json.loads(self.instruction("CMD")), ["serve"])

    def test_ports(self) -> None:
        doors = ("port", "http_port", "msgpack_port")
        ports = [str(FIELDS[name].default) for name in doors]
        self.assertEqual(self.instruction("EXPOSE").split(), ports)

    def test_health(self) -> None:
        _, _, command = self.instruction("HEALTHCHECK").partition("CMD ")
        python, flag, code = json.loads(command)
        self.assertEqual((python, flag), ("python", "-c"))
        with BrokerProcess("--api-key", "secret") as broker:
            port = str(broker.http_port)
            self.assertEqual(self.python(code, RTMB_HTTP_PORT=port).returncode, 0)
        self.assertNotEqual(self.python(code, RTMB_HTTP_PORT=port).returncode, 0)
