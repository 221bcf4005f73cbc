"""README and docs, run: each shell line in bash and in zsh, each script, test and file."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import unittest
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from rtmb.test.support.commands import Running, shared
from rtmb.test.support.docs import ROOT, Block, blocks, shell_commands
from rtmb.test.support.files import folder
from rtmb.test.support.processes import PATIENCE, BrokerProcess, Tail, environment, need

#: How lines begin that are not run here, and why.
ELSEWHERE = {
    "make ": "takes the whole machine; it is what runs these tests",
    "RTMB_PURE=1 .venv/": "these tests, without what is compiled",
    "pip install": "test_packaging installs",
    "docker ": "test_docker, as far as no engine is needed",
    "kubectl ": "test_contrib, as far as no cluster is needed",
    "python -m benchmarks": "takes the whole machine",
    "rtmb pipeline": "Spark: test_spark_jobs",
    "telnet ": "test_client_strangers",
    "nc ": "test_doors",
    "node ": "test_msgpack",
    "PYTHONPATH=examples/": "test_doors",
    "printf '[doors": "test_doors",
    "./start": "test_examples_weather",
    "rtmb top": "test_cli_top, at a terminal",
    "cat stations.csv": "test_spark_jobs",
}
#: How lines begin that go on until they are stopped, and what they print before.
ENDLESS = {
    "curl -N": rb"(retry|id|data): ",
    "rtmb sub 'orders.*'": rb"subscribed to orders",
    "rtmb sub 'orders.>'": rb"subscribed to orders",
    "rtmb record": rb"recording orders",
    "rtmb reply": rb"answering on resize",
    "rtmb pub orders": rb"",
    "rtmb serve": rb"text door",
    "twistd -n": rb"text door",
}
#: Lines whose answer is an error on a broker that has just been started.
REFUSED = ("curl -X DELETE http://127.0.0.1:8080/connections/7",)
#: Lines for a broker that asks who comes.
GUARDED = ("curl -H 'X-API-Key", "curl -u ", "curl -H 'Authorization")


def everything() -> BrokerProcess:
    return BrokerProcess("--journal", ">")


def guarded() -> BrokerProcess:
    users = '[[auth.users]]\nuser = "alice"\npassword = "secret"\n'
    return BrokerProcess(config=f'api_key = "s3cret"\ntoken = "t0ken"\n{users}')


def starting(command: str, beginnings: Mapping[str, object] | tuple[str, ...]) -> str | None:
    """The beginning in the list that a command has."""
    return next((each for each in beginnings if command.startswith(each)), None)


class BashTests(unittest.TestCase):
    """Each line works as it stands: only the ports are those of the test's own broker."""

    shell = "bash"

    def setUp(self) -> None:
        need(self, list(blocks()), "the pages are no part of what is installed")
        for program in (self.shell, "curl", "jq", "openssl"):
            need(self, shutil.which(program), f"there is no {program} here")
        self.place = folder(self)
        for name in ("photo.jpg", "rtmb.toml"):
            (self.place / name).touch()
        (self.place / ".config/fish/completions").mkdir(parents=True)
        shutil.copy(ROOT / "rtmb.example.toml", self.place)
        shutil.copytree(ROOT / "examples", self.place / "examples")
        self.broker, self.guarded = shared(everything), shared(guarded)

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        free = {f"RTMB_{name}": "0" for name in ("PORT", "HTTP_PORT", "MSGPACK_PORT")}
        more = {"PATH": path, "HOME": str(self.place), "NATS_URL": self.broker.url}
        return environment(free | more)

    def here(self, command: str) -> str:
        """The line, with our ports in place of the usual ones."""
        broker = self.guarded if starting(command, GUARDED) else self.broker
        command = re.sub(r"(localhost|127\.0\.0\.1):8080", rf"\1:{broker.http_port}", command)
        msgpack = self.broker.expect_log(r"msgpack door: [^\s{]*:(\d+)")[1].decode()
        command = command.replace(":36912", f":{msgpack}")
        return command.replace(":4333", f":{self.broker.port}")

    def popen(self, command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.shell, "-c", self.here(command)],
            cwd=self.place,
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # without a terminal to ask at
        )

    def run_line(self, block: Block, command: str) -> None:
        process = self.popen(command)
        with process:
            said, _ = process.communicate(b"a word\n", timeout=5 * PATIENCE)
        self.assertEqual(process.returncode, 0, f"{block}: {command}\n{said!r}")
        if command.startswith("curl") and command not in REFUSED:
            self.assertNotIn(b'"error"', said, f"{block}: {command}")

    def run_endless(self, block: Block, command: str, wanted: bytes) -> None:
        process = self.popen(command)
        assert process.stdout is not None
        tail = Tail(process.stdout.fileno())
        with process:
            try:
                tail.expect(wanted, timeout=3 * PATIENCE)
                self.assertIsNone(process.poll(), f"{block}: {command}\n{tail.data!r}")
            finally:
                os.killpg(process.pid, 9)
                process.wait()
                tail.join()

    def test_lines(self) -> None:
        with Running("reply", "clock", "--echo", env={"NATS_URL": self.broker.url}) as clock:
            clock.err.expect(b"answering on clock")
            subprocess.run(
                [sys.executable, "-m", "rtmb", "pub", "weather.oslo", "rain"],
                env=self.environment(),
                check=True,
            )
            for block in blocks():
                for command in shell_commands(block):
                    if starting(command, ELSEWHERE) is not None:
                        continue
                    with self.subTest(where=str(block), command=command):
                        endless = starting(command, ENDLESS)
                        if endless is not None:
                            self.run_endless(block, command, ENDLESS[endless])
                        else:
                            self.run_line(block, command)

    def test_the_tables_are_up_to_date(self) -> None:
        """Nothing stands in them that no page has any more."""
        commands = [command for block in blocks() for command in shell_commands(block)]
        for beginning in (*ELSEWHERE, *ENDLESS, *REFUSED, *GUARDED):
            self.assertTrue(any(c.startswith(beginning) for c in commands), beginning)


class ZshTests(BashTests):
    """The same in zsh, which is stricter."""

    shell = "zsh"


#: Programs that can be run as they stand, by their page and a word in them.
PROGRAMS = (
    ("README.md", "import asyncio, nats"),
    ("docs/client.md", "react"),
    ("docs/operations.md", "nkey(prefix, raw)"),
    ("docs/testing.md", "with start_broker("),
)
#: Tests, with what they need of pytest.
TESTS = (
    ("docs/testing.md", "def test_two(", ()),
    ("docs/testing.md", "asyncio.to_thread", ("-p", "no:twisted")),
    ("docs/testing.md", "pytest_twisted", ("--reactor=default",)),
    ("docs/testing.md", "BrokerMixin", ("--reactor=default",)),
    ("docs/testing.md", "MemoryBroker", ("--reactor=default",)),
)


class BlockTests(unittest.TestCase):
    """What is no shell line."""

    def setUp(self) -> None:
        need(self, list(blocks()), "the pages are no part of what is installed")
        self.broker = shared(everything)

    def check(self, language: str, check: Callable[[Block], object]) -> None:
        for block in blocks():
            if block.language == language:
                with self.subTest(block=str(block)):
                    check(block)

    def one(self, page: str, word: str) -> str:
        (text,) = (b.text for b in blocks() if b.page == page and word in b.text)
        return text

    def run_python(self, text: str, *arguments: str) -> None:
        place = folder(self)
        (place / "test_it.py").write_text(text)
        done = subprocess.run(
            [sys.executable, *arguments, "test_it.py"],
            cwd=place,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_python_is_python(self) -> None:
        await_outside = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.check("python", lambda b: compile(b.text, str(b), "exec", flags=await_outside))

    def test_programs(self) -> None:
        with Running("pub", "greetings.world", "hello", env={"NATS_URL": self.broker.url}) as pub:
            self.assertEqual(pub.wait(), 0)
        for page, word in PROGRAMS:
            with self.subTest(page=page, word=word):
                text = self.one(page, word)
                text = re.sub(r"(localhost|127\.0\.0\.1):4222", rf"\1:{self.broker.port}", text)
                self.run_python(text)

    def test_tests(self) -> None:
        for page, word, arguments in TESTS:
            with self.subTest(page=page, word=word):
                options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)
                self.run_python(self.one(page, word), *options)

    def test_data(self) -> None:
        self.check("json", lambda block: self.assertTrue(json_values(block.text)))
        self.check("toml", lambda block: tomllib.loads(block.text))
        self.check("yaml", lambda block: self.assertTrue(yaml.safe_load(block.text)))


def json_values(text: str) -> list[Any]:
    """JSON values, one behind the other; an ellipsis stands for what a page leaves out."""
    text = text.replace("{…}", "{}").replace(", …", "").replace(": …", ": null").strip()
    values = []
    while text:
        value, end = json.JSONDecoder().raw_decode(text)
        values.append(value)
        text = text[end:].strip()
    return values
