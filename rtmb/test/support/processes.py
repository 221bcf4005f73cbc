"""Help for tests that use the broker as its users do: as a process, from outside.

`BrokerProcess` is a broker under twistd, `NatsServerProcess` the real nats-server, `RawClient` a
plain socket that speaks the protocol byte by byte, and `Typist` a program such as telnet with
someone at its keyboard. `WithProcesses` is a test case that ends what it started.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rtmb.testing.process import PATIENCE, ServerProcess, Tail, environment

__all__ = [
    "PATIENCE",
    "BrokerProcess",
    "NatsServerProcess",
    "RawClient",
    "ServerProcess",
    "Tail",
    "Typist",
    "WithBroker",
    "WithProcesses",
    "environment",
    "need",
    "slow",
    "twistd",
]

TWISTD = Path(sys.executable).with_name("twistd")
NATS_SERVER = Path(sys.executable).with_name("nats-server")


def need(test: unittest.TestCase, there: object, reason: str) -> None:
    """Skip the test without something it needs; with REQUIRE_ALL_TESTS=1, fail it."""
    if there:
        return
    if os.environ.get("REQUIRE_ALL_TESTS") == "1":
        test.fail(reason)
    test.skipTest(reason)


def slow(test: unittest.TestCase) -> None:
    """The test needs a browser, Spark or minutes: it is skipped with SKIP_SLOW_TESTS=1."""
    if os.environ.get("SKIP_SLOW_TESTS") == "1":
        test.skipTest("slow")


def twistd(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: str | Path
) -> subprocess.CompletedProcess[str]:
    """Run `twistd -n rtmb` to its end: for starts that fail."""
    return subprocess.run(
        [TWISTD, "-n", "--pidfile=", "rtmb", *arguments],
        env=environment(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class BrokerProcess(ServerProcess):
    """`twistd -n rtmb` in a directory of its own, on a free port unless one is given."""

    def __init__(
        self,
        *arguments: str,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        config: str | None = None,
        soft_descriptors: int | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        directory = Path(tempfile.mkdtemp(prefix="rtmb-"))
        self.config = directory / "rtmb.toml"
        command = [str(TWISTD), "-n", "--pidfile=", "rtmb", "--port", str(port)]
        command += ["--http-port", "0", "--msgpack-port", "0", *arguments]
        if config is not None:
            self.config.write_text(config)
            command += ["--config", str(self.config)]
        if soft_descriptors is not None:
            limited = f'ulimit -S -n {soft_descriptors}; exec "$@"'
            command = ["sh", "-c", limited, "sh", *command]
        super().__init__(command, directory=directory, env=env)
        found = self.expect_log(r'text door: nats://[^\s{]+:(\d+)|"port": (\d+), .*"text door: ')
        self.host, self.port = host, int(found[1] or found[2])

    @property
    def http_port(self) -> int:
        """The port of the HTTP door, whose line comes after the text door's."""
        found = self.expect_log(r"http door: https?://[^\s{]+:(\d+)")
        return int(found[1])

    def rss(self) -> int:
        """The memory that the process has, in bytes."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024


class NatsServerProcess(ServerProcess):
    """The real nats-server, on a free port unless one is given; `config` is in its own language."""

    def __init__(self, *, port: int = 0, config: str = "") -> None:
        directory = Path(tempfile.mkdtemp(prefix="rtmb-"))
        (directory / "nats.conf").write_text(config)
        super().__init__(
            [NATS_SERVER, "--addr", self.host, "--port", str(port or -1), "--config", "nats.conf"],
            directory=directory,
        )
        found = self.expect_log(r"Listening for client connections on [^ ]+:(\d+)")
        self.expect_log("Server is ready")
        self.port = int(found[1])


class RawClient:
    """A socket, its INFO, and what was read but not asked for yet."""

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        info: bool = True,
        receive_buffer: int | None = None,
        tls_first: ssl.SSLContext | None = None,
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self._data = b""
        self.info: dict[str, Any] = {}
        try:
            self.socket.connect((host, port))
            if tls_first is not None:
                self.start_tls(tls_first)
            if info:
                self.info = self.read_info()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def start_tls(self, context: ssl.SSLContext) -> None:
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_info(self) -> dict[str, Any]:
        line = self.read_until(b"\r\n")
        if not line.startswith(b"INFO "):
            raise AssertionError(f"no INFO: {line!r}")
        found: dict[str, Any] = json.loads(line[5:])
        return found

    def _receive(self, deadline: float) -> bytes:
        self.socket.settimeout(max(0.01, deadline - time.monotonic()))
        return self.socket.recv(1 << 16)

    def read_until(self, end: bytes, timeout: float = PATIENCE) -> bytes:
        """All up to and with `end`."""
        deadline = time.monotonic() + timeout
        while end not in self._data:
            try:
                data = self._receive(deadline)
            except TimeoutError:
                data = b""
            if not data:
                raise AssertionError(f"no {end!r} in {self._data!r}")
            self._data += data
        at = self._data.index(end) + len(end)
        found, self._data = self._data[:at], self._data[at:]
        return found

    def read_to_end(self, timeout: float = PATIENCE) -> bytes:
        """All that comes before the broker closes."""
        deadline = time.monotonic() + timeout
        pieces = [self._data]
        while True:
            try:
                data = self._receive(deadline)
            except ConnectionResetError:
                data = b""
            if not data:
                break
            pieces.append(data)
        self._data = b""
        return b"".join(pieces)

    def settle(self) -> bytes:
        """PING; what came before its PONG. After it, all that was sent has been dealt with."""
        self.send(b"PING\r\n")
        return self.read_until(b"PONG\r\n").removesuffix(b"PONG\r\n")

    def connect(self, **options: Any) -> bytes:
        """CONNECT as a library, and wait for the answer; what came before it."""
        options = {"lang": "test", "verbose": False, "protocol": 1, "headers": True} | options
        self.send(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
        return self.settle()

    def subscribe(self, subject: str, sid: str = "1") -> bytes:
        self.send(f"SUB {subject} {sid}\r\n".encode())
        return self.settle()

    def publish(self, subject: str, payload: bytes = b"") -> bytes:
        self.send(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
        return self.settle()


class Typist:
    """Someone at a keyboard, before a program that talks to the broker. At a terminal, what is
    typed stands in the output too."""

    def __init__(self, command: Sequence[str], *, terminal: bool) -> None:
        self._seen = 0
        if terminal:
            ours, theirs = pty.openpty()
            self._process = subprocess.Popen(
                command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
            )
            os.close(theirs)
            self._keyboard = ours
            self._open = [ours]
            self._tail = Tail(ours)
        else:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._keyboard = self._process.stdin.fileno()
            self._open = []
            self._tail = Tail(self._process.stdout.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._tail.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        for descriptor in self._open:
            os.close(descriptor)

    def types(self, *lines: str) -> None:
        for line in lines:
            select.select([], [self._keyboard], [], PATIENCE)
            os.write(self._keyboard, line.encode() + b"\n")

    def sees(self, text: str) -> None:
        """Wait for lines, after those seen before; line ends and terminal returns are as one."""
        pattern = rb"\r*\n".join(re.escape(line).encode() for line in text.split("\n"))
        self._seen = self._tail.expect(pattern, self._seen).end()

    def output(self) -> str:
        return self._tail.data.decode().replace("\r", "")


class WithProcesses(unittest.TestCase):
    """Ends what it started."""

    def start(self, *arguments: str, **options: Any) -> BrokerProcess:
        broker = BrokerProcess(*arguments, **options)
        self.addCleanup(broker.stop)
        return broker

    def client(self, broker: BrokerProcess, **options: Any) -> RawClient:
        client = RawClient(broker.port, **options)
        self.addCleanup(client.close)
        return client

    def assert_ends_with(self, client: RawClient, last: bytes) -> None:
        """The broker says this last, and closes."""
        got = client.read_to_end()
        self.assertTrue(got.endswith(last), got)


class WithBroker(unittest.TestCase):
    """A broker for each test."""

    def setUp(self) -> None:
        self.broker = BrokerProcess()
        self.addCleanup(self.broker.stop)
