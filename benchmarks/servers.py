"""Starting and stopping the brokers under test, and what the kernel says of their memory."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import nan
from pathlib import Path

from rtmb.cli.bench_load import BenchmarkError, HostAndPort

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent  # not resolved: a virtual environment's python is a link
START_TIMEOUT = 20.0
#: The subject that rtmb is told to keep in its journal.
JOURNALED = "journaled"
STOP_TIMEOUT = 10.0
#: What a user with permissions says in CONNECT. Whoever says nothing is `guest`, who may do all.
LOGIN = {"user": "limited", "pass": "secret"}
#: What that user may publish and subscribe to.
ALLOWED = ("bench.>", "orders.*", "devices.*.state")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    """A broker that accepts connections; `pid` is None if somebody else started it."""

    name: str
    address: HostAndPort
    pid: int | None = None

    def memory(self) -> int | None:
        """Bytes of resident memory now."""
        return self._status("VmRSS")

    def peak_memory(self) -> int | None:
        """Bytes of resident memory at most, since the last `reset_peak`."""
        return self._status("VmHWM")

    def reset_peak(self) -> None:
        if self.pid is not None:
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def cpu_seconds(self) -> float:
        """Seconds of all cores that it has used, in user code and in the kernel."""
        if self.pid is None:
            return nan
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def _status(self, field: str) -> int | None:
        if self.pid is None:
            return None
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        raise BenchmarkError(f"{self.name} (process {self.pid}) is gone")


@dataclass(frozen=True)
class Broker:
    """How to come by a server: the command that starts one, or the address of a running one."""

    name: str
    command: Callable[[int, Path], list[str]] | None = None
    address: HostAndPort | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def running(self) -> Iterator[Server]:
        if self.address is not None:
            yield Server(self.name, self.address)
            return
        assert self.command is not None
        with tempfile.TemporaryDirectory(prefix=f"bench-{self.name}-") as scratch:
            address = ("127.0.0.1", free_port())
            log = Path(scratch, "log")
            with log.open("wb") as output:
                process = subprocess.Popen(
                    self.command(address[1], Path(scratch)),
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": _python_path(), **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            try:
                _wait_until_accepting(self.name, address, process, log)
                yield Server(self.name, address, process.pid)
            finally:
                _stop(process)


def rtmb_command(port: int, scratch: Path) -> list[str]:
    config = scratch / "rtmb.toml"
    allowed = json.dumps(ALLOWED)
    config.write_text(
        f"""\
[auth]
no_auth_user = "guest"
[[auth.users]]
user = "guest"
password = ""
[[auth.users]]
user = "{LOGIN["user"]}"
password = "{LOGIN["pass"]}"
permissions.publish.allow = {allowed}
permissions.subscribe.allow = {allowed}
"""
    )
    twistd = [str(SCRIPTS / "twistd"), "-n", "--pidfile=", "rtmb", "--config", str(config)]
    twistd += ["--http-port", "0", "--msgpack-port", "0", "--journal", JOURNALED]
    return [*twistd, "--port", str(port), "--interface", "127.0.0.1", "--ping-interval", "3600"]


def nats_command(port: int, scratch: Path) -> list[str]:
    # The ping interval has no flag. Like rtmb's, it is set beyond the length of any run.
    config = scratch / "nats.conf"
    allowed = json.dumps(ALLOWED)
    config.write_text(
        f"""\
ping_interval: "1h"
no_auth_user: guest
authorization {{ users = [
  {{ user: guest, password: guest }}
  {{ user: {LOGIN["user"]}, password: {LOGIN["pass"]}
     permissions: {{ publish: {{ allow: {allowed} }}, subscribe: {{ allow: {allowed} }} }} }}
] }}
"""
    )
    server = [str(SCRIPTS / "nats-server"), "--config", str(config)]
    return [*server, "--addr", "127.0.0.1", "--port", str(port)]


RTMB = Broker("rtmb", rtmb_command)
#: The same without what is compiled.
PURE = Broker("rtmb-pure", rtmb_command, environment={"RTMB_PURE": "1"})
NATS = Broker("nats", nats_command)
BROKERS = (RTMB, PURE, NATS)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def _wait_until_accepting(
    name: str, address: HostAndPort, process: subprocess.Popen[bytes], log: Path
) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(address, timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise BenchmarkError(f"{name} does not accept connections; the end of its log:\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
