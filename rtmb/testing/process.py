"""A broker in a process of its own. Nothing here imports Twisted."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import rtmb

#: How long to wait for what should come at once; long, because a busy machine may be slow.
PATIENCE = 20.0
_PACKAGES = Path(rtmb.__file__).resolve().parent.parent


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment without RTMB_ variables, with the rtmb of this process in it: the same
    source, compiled or not as it is here."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RTMB_") or k == "RTMB_PURE"}
    paths = [str(_PACKAGES), *filter(None, [kept.get("PYTHONPATH")])]
    kept["PYTHONPATH"] = os.pathsep.join(paths)
    return kept | dict(extra or {})


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
        match: re.Match[bytes] | None = None

        def there() -> bool:
            nonlocal match
            match = wanted.search(self._data, start)
            return match is not None or self._ended

        with self._news:
            self._news.wait_for(there, timeout)
        if match is None:
            raise AssertionError(f"no {pattern!r} in {self._data[start:]!r}")
        return match

    def join(self) -> None:
        self._thread.join(PATIENCE)


class ServerProcess:
    """Some server in a process and a directory of its own, and what it prints."""

    host = "127.0.0.1"
    port = 0

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        directory: Path | None = None,
        env: Mapping[str, str] | None = None,
        said: bytes | None = None,
    ) -> None:
        self.directory = directory or Path(tempfile.mkdtemp(prefix="rtmb-"))
        self.process = subprocess.Popen(
            command,
            env=environment(env),
            cwd=self.directory,
            stdin=subprocess.PIPE if said is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        self._tail = Tail(self.process.stdout.fileno())
        if said is not None and self.process.stdin is not None:
            self.process.stdin.write(said)
            self.process.stdin.flush()

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
        """All that it printed so far."""
        return self._tail.data.decode(errors="replace")

    def expect_log(self, pattern: str, timeout: float = PATIENCE) -> re.Match[bytes]:
        """Wait for it to print what a regular expression matches; without it, stop and fail."""
        try:
            return self._tail.expect(pattern.encode(), timeout=timeout)
        except AssertionError:
            if self.port == 0:  # it did not even start
                self.stop()
            raise

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
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class BrokerProcess(ServerProcess):
    """A broker on free ports, with the given settings: names and values as in a TOML file. It ends
    with `stop`, at the end of a `with`, or when this process ends, however it does."""

    http_port: int | None = None
    msgpack_port: int | None = None

    def __init__(self, **settings: Any) -> None:
        said = json.dumps(settings).encode() + b"\n"
        super().__init__([sys.executable, "-m", "rtmb.testing"], said=said)
        match = self.expect_log(r'(?m)^(\{"nats": .*\})$|^rtmb: (.*)$')
        if match[2] is not None:
            self.stop()
            raise ValueError(match[2].decode())
        ports = json.loads(match[1])
        self.host = ports["host"]
        self.port = ports["nats"]
        self.http_port = ports.get("http")
        self.msgpack_port = ports.get("msgpack")

    @property
    def http_url(self) -> str:
        """The HTTP door, without a slash at the end."""
        if self.http_port is None:
            raise ValueError("this broker has no HTTP door")
        return f"http://{self.host}:{self.http_port}"

    @property
    def ws_url(self) -> str:
        """Where WebSocket clients connect."""
        return f"ws{self.http_url.removeprefix('http')}/ws"


def start_broker(**settings: Any) -> BrokerProcess:
    """A running broker; use it in a `with`, or `stop` it."""
    return BrokerProcess(**settings)
