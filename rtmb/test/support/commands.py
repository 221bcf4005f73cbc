"""Help for tests of the `rtmb` command: run to its end, left running, or at a terminal."""

from __future__ import annotations

import atexit
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import pyte
from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.support.processes import (
    PATIENCE,
    BrokerProcess,
    NatsServerProcess,
    RawClient,
    ServerProcess,
    Tail,
    environment,
)

RTMB = [sys.executable, "-m", "rtmb"]
_Server = TypeVar("_Server", bound=ServerProcess)
_shared: dict[Callable[[], ServerProcess], Any] = {}


def shared(start: Callable[[], _Server]) -> _Server:
    """A server that the first test to ask starts, and that stays to the end of all tests: trial
    knows no setUpClass."""
    if start not in _shared:
        server = _shared[start] = start()
        atexit.register(server.stop)
    found: _Server = _shared[start]
    return found


def rtmb(
    *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end."""
    return subprocess.run(
        [*RTMB, *arguments],
        input=stdin,
        env=environment(env),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


class Running:
    """A command that is left running, with what it has said so far."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*RTMB, *arguments],
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out = Tail(self.process.stdout.fileno())
        self.err = Tail(self.process.stderr.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def wait(self) -> int:
        status = self.process.wait(PATIENCE)
        self.out.join()
        self.err.join()
        return status

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.wait()


class Terminal:
    """A command at a terminal of so many columns and lines, and what a person sees there."""

    def __init__(self, *arguments: str, columns: int = 100, lines: int = 30) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._fed = 0
        self.keyboard, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.modes = self._modes()
        self.process = subprocess.Popen(
            [*RTMB, *arguments],
            env=environment({"TERM": "xterm-256color"}),
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            # A session with this as its terminal, so that Ctrl+C becomes SIGINT.
            preexec_fn=self._become_theirs,
        )
        self._tail = Tail(self.keyboard)

    def _become_theirs(self) -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        self._tail.join()
        os.close(self.keyboard)

    def _modes(self) -> list[Any]:
        return termios.tcgetattr(self._theirs)[:4]

    @property
    def restored(self) -> bool:
        """Whether the terminal is as it was before."""
        return self._modes() == self.modes

    @property
    def text(self) -> str:
        """The screen as it is now."""
        data = self._tail.data
        self._stream.feed(data[self._fed :])
        self._fed = len(data)
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def colour(self, text: str) -> str:
        """The colour that a text has on the screen."""
        for y, line in enumerate(self.text.split("\n")):
            if (x := line.find(text)) >= 0:
                return str(self._screen.buffer[y][x].fg)
        raise AssertionError(f"no {text!r} in\n{self.text}")

    def sees(self, pattern: str) -> re.Match[str]:
        """Wait until the screen holds a regular expression."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if (found := re.search(pattern, self.text, re.MULTILINE)) is not None:
                return found
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in\n{self.text}")

    def said(self, pattern: bytes) -> None:
        """Wait for bytes that the terminal was sent: what no screen shows."""
        self._tail.expect(pattern)

    def types(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    def wait(self) -> int:
        return self.process.wait(PATIENCE)


class WithServer(SynchronousTestCase):
    """One server for all tests of a class."""

    def start(self) -> BrokerProcess | NatsServerProcess:
        return shared(BrokerProcess)

    def setUp(self) -> None:
        self.server = self.start()
        self.env = {"NATS_URL": self.server.url}

    def rtmb(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return rtmb(*arguments, stdin=stdin, env=self.env)

    def running(self, *arguments: str) -> Running:
        return Running(*arguments, env=self.env)

    def subscribed(self, *arguments: str) -> Running:
        found = self.running("sub", *arguments)
        found.err.expect(b"subscribed to")
        return found

    def client(self) -> RawClient:
        found = RawClient(self.server.port)
        self.addCleanup(found.close)
        found.connect(no_responders=True)
        return found

    def check(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """The output of a command that must work and have nothing to say beside it."""
        found = self.rtmb(*arguments, stdin=stdin)
        self.assertEqual((found.returncode, found.stderr), (0, b""), arguments)
        return found.stdout

    def fails(self, status: int, line: str, *arguments: str) -> None:
        """A command must fail with this status and one line that matches."""
        found = self.rtmb(*arguments)
        self.assertEqual(found.returncode, status, found)
        self.assertRegex(found.stderr.decode(), rf"\Artmb: {line}\n\Z")
