"""Starting and stopping the brokers under test, and what the kernel says of their memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rtmb.cli.bench_load import BenchmarkError, HostAndPort

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent  # not resolved: a virtual environment's python is a link
START_TIMEOUT = 20.0
#: The subject that rtmb is told to keep in its journal.
JOURNALED = "journaled"
STOP_TIMEOUT = 10.0


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
                    env={**os.environ, "PYTHONPATH": _python_path()},
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
    twistd = [str(SCRIPTS / "twistd"), "-n", "--pidfile=", "rtmb"]
    twistd += ["--http-port", "0", "--msgpack-port", "0", "--journal", JOURNALED]
    return [*twistd, "--port", str(port), "--interface", "127.0.0.1", "--ping-interval", "3600"]


def nats_command(port: int, scratch: Path) -> list[str]:
    # The ping interval has no flag. Like rtmb's, it is set beyond the length of any run.
    config = scratch / "nats.conf"
    config.write_text('ping_interval: "1h"\n')
    server = [str(SCRIPTS / "nats-server"), "--config", str(config)]
    return [*server, "--addr", "127.0.0.1", "--port", str(port)]


BROKERS = (Broker("rtmb", rtmb_command), Broker("nats", nats_command))


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
