"""A broker in a process of its own. Nothing here imports Twisted."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.directory = directory or Path(tempfile.mkdtemp(prefix="rtmb-"))
        self.process = subprocess.Popen(
            command,
            env=environment(env),
            cwd=self.directory,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        self._tail = Tail(self.process.stdout.fileno())

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

    def join_log(self) -> None:
        """Wait for all of the log of one that has ended."""
        self._tail.join()

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


@dataclass(frozen=True)
class PublishedMessage:
    """A message that a broker has seen."""

    subject: str
    payload: bytes
    headers: Mapping[str, list[str]]
    reply: str | None
    #: By which door it came: nats, http, msgpack.
    door: str
    #: Seconds since 1970.
    time: float
    #: How many were published before, and one.
    number: int

    @property
    def text(self) -> str:
        """The payload as text; bytes that are no UTF-8 become U+FFFD."""
        return self.payload.decode("utf-8", "replace")

    def json(self) -> Any:
        """The payload as JSON; ValueError when it is none."""
        return json.loads(self.payload)

    @classmethod
    def from_answer(cls, fields: Mapping[str, Any]) -> PublishedMessage:
        headers: dict[str, list[str]] = {}
        for name, value in fields["headers"]:
            headers.setdefault(name, []).append(value)
        payload = base64.b64decode(fields["payload"])
        return cls(**{**fields, "headers": headers, "payload": payload})


class BrokerProcess(ServerProcess):
    """A broker on free ports, with the given settings: names and values as in a TOML file. It ends
    with `stop`, at the end of a `with`, or when this process ends, however it does.

    It records what is published, unless the settings name a `journal`: then it records that."""

    http_port: int | None = None
    msgpack_port: int | None = None

    def __init__(self, **settings: Any) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            super().__init__([sys.executable, "-m", "rtmb.testing"], stdin=theirs.fileno())
        self._answers = self._control.makefile("rb")
        #: Of each pattern that was waited for: where the next message may be.
        self._waited: dict[str, int] = {}
        try:
            answer = self._ask(settings)
        except BaseException:
            self.stop()
            raise
        self.host = answer["host"]
        ports = answer["ports"]
        self.port = ports["nats"]
        self.http_port = ports.get("http")
        self.msgpack_port = ports.get("msgpack")

    def _ask(self, request: Mapping[str, Any], timeout: float = PATIENCE) -> dict[str, Any]:
        self._control.settimeout(timeout)
        try:
            self._control.sendall(json.dumps(request).encode() + b"\n")
            line = self._answers.readline()
        except ConnectionError:
            line = b""
        if not line:
            self.join_log()
            raise ConnectionError(f"the broker has ended\n{self.log()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def reset(self) -> None:
        """Close all clients and forget all that was published, as if it had just been started. It
        stays where it is: addresses, settings and log go on."""
        self._ask({"do": "reset"})
        self._waited.clear()

    def published(self, pattern: str = ">") -> list[PublishedMessage]:
        """What was published on subjects that match, since the start or `reset`, in order."""
        answer = self._ask({"do": "published", "pattern": pattern})
        return [PublishedMessage.from_answer(fields) for fields in answer["messages"]]

    def wait_for(self, pattern: str, *, within: float = 1.0) -> PublishedMessage:
        """The next message on a subject that matches; waits `within` seconds at most for it. The
        first call gives the first message that was ever published there, and each call with the
        same pattern the one behind that of the last."""
        request = {
            "do": "wait_for",
            "pattern": pattern,
            "start": self._waited.get(pattern, 0),
            "within": within,
        }
        answer = self._ask(request, PATIENCE + within)
        if not answer["messages"]:
            raise AssertionError(f"no message on {pattern} within {within:g} s\n{self.traffic()}")
        message = PublishedMessage.from_answer(answer["messages"][0])
        self._waited[pattern] = message.number + 1
        return message

    def traffic(self, most: int = 50) -> str:
        """The last messages that were published, for people to read."""
        messages = self.published()
        lines = [f"{len(messages)} messages published"]
        if len(messages) > most:
            lines[0] += f", the last {most}"
        for message in messages[-most:]:
            since = message.time - messages[0].time
            text = message.text if len(message.text) <= 200 else message.text[:200] + "…"
            reply = f" → {message.reply}" if message.reply else ""
            lines.append(f"{since:+9.3f} s  {message.subject}{reply}  {text!r}")
        return "\n".join(lines)

    def stop(self) -> None:
        super().stop()
        self._answers.close()
        self._control.close()

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
