"""Help for tests that use the broker as its users do: as a process, from outside.

`BrokerProcess` is a broker under twistd, `RawClient` a plain socket that speaks the protocol byte
by byte, and `Typist` a program such as telnet with someone at its keyboard.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import rtmb

#: How long a test waits for what should come at once; long, because a busy machine may be slow.
PATIENCE = 20.0
TWISTD = Path(sys.executable).with_name("twistd")
_PACKAGES = Path(rtmb.__file__).resolve().parent.parent


def need(test: unittest.TestCase, there: object, reason: str) -> None:
    """Skip the test without something it needs; with REQUIRE_ALL_TESTS=1, fail it."""
    if there:
        return
    if os.environ.get("REQUIRE_ALL_TESTS") == "1":
        test.fail(reason)
    test.skipTest(reason)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment without RTMB_ variables, with the package under test in it."""
    found = {k: v for k, v in os.environ.items() if not k.startswith("RTMB_")}
    paths = [str(_PACKAGES), *filter(None, [found.get("PYTHONPATH")])]
    found["PYTHONPATH"] = os.pathsep.join(paths)
    return found | dict(extra or {})


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


class Tail:
    """Reads a descriptor in a thread, so that a test can wait for what comes out of it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = b""
        self._ended = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._descriptor, 65536)
            except OSError:  # a pty whose other end has gone
                data = b""
            with self._news:
                self._data += data
                self._ended = not data
                self._news.notify_all()
            if not data:
                return

    @property
    def data(self) -> bytes:
        with self._news:
            return self._data

    def expect(self, pattern: bytes, start: int = 0, timeout: float = PATIENCE) -> re.Match[bytes]:
        """Wait for a regular expression, from `start` on."""
        wanted = re.compile(pattern)
        found: re.Match[bytes] | None = None

        def there() -> bool:
            nonlocal found
            found = wanted.search(self._data, start)
            return found is not None or self._ended

        with self._news:
            self._news.wait_for(there, timeout)
        if found is None:
            raise AssertionError(f"no {pattern!r} in {self._data[start:]!r}")
        return found

    def join(self) -> None:
        self._thread.join(PATIENCE)


class BrokerProcess:
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
        self.directory = Path(tempfile.mkdtemp(prefix="rtmb-"))
        self.config = self.directory / "rtmb.toml"
        command = [str(TWISTD), "-n", "--pidfile=", "rtmb", "--port", str(port), *arguments]
        if config is not None:
            self.config.write_text(config)
            command += ["--config", str(self.config)]
        if soft_descriptors is not None:
            limited = f'ulimit -S -n {soft_descriptors}; exec "$@"'
            command = ["sh", "-c", limited, "sh", *command]
        self.process = subprocess.Popen(
            command,
            env=environment(env),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        self._tail = Tail(self.process.stdout.fileno())
        try:
            found = self.expect_log(
                r'text door: nats://[^\s{]+:(\d+)|"port": (\d+), .*"text door: '
            )
        except BaseException:
            self.stop()
            raise
        self.host, self.port = host, int(found[1] or found[2])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self._tail.data.decode()

    def expect_log(self, pattern: str, timeout: float = PATIENCE) -> re.Match[bytes]:
        return self._tail.expect(pattern.encode(), timeout=timeout)

    def rss(self) -> int:
        """The memory that the process has, in bytes."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end and for all of the log; the exit status."""
        status = self.process.wait(timeout)
        self._tail.join()
        return status

    def kill(self) -> None:
        """End it as a power cut would."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.kill()
        self._tail.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)


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
