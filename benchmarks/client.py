"""`python -m benchmarks.client`: rtmb.client beside nats-py, on the same server, in turns.

Each measurement is a process of its own that runs one client; this process feeds those that
receive. What is timed is what a program does: a loop of publishes and a flush, or all messages from
the first to the last in a callback or an ``async for``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import version
from typing import Any

import nats
from twisted.internet.defer import Deferred
from twisted.internet.task import react

import rtmb
from benchmarks.measure import Reading
from benchmarks.report import Report
from benchmarks.servers import BROKERS, ROOT, Server
from rtmb.cli.bench_load import BenchmarkError
from rtmb.client import Message, connect

#: How long one measurement may take.
TIMEOUT = 120.0
#: Messages that are published before a publisher lets the rest of its program run.
BURST = 1000


class Stopwatch:
    """Counts messages, and times them from the first to the last."""

    def __init__(self, count: int, done: Callable[[], object]) -> None:
        self._left = count
        self._done = done
        self._first = self.seconds = 0.0

    def count(self) -> None:
        if not self._first:
            self._first = time.perf_counter()
        self._left -= 1
        if not self._left:
            self.seconds = time.perf_counter() - self._first
            self._done()


def ready() -> None:
    """Tell the feeder to begin."""
    print("ready", flush=True)


# rtmb.client


async def rtmb_publish(url: str, count: int, payload: bytes) -> float:
    client = await connect(url)
    start = time.perf_counter()
    for i in range(count):
        client.publish("bench", payload)
        if not i % BURST:
            await client.ready()
    await client.flush(TIMEOUT)
    seconds = time.perf_counter() - start
    await client.close()
    return seconds


async def rtmb_callback(url: str, count: int, payload: bytes) -> float:
    client = await connect(url)
    done: Deferred[None] = Deferred()
    watch = Stopwatch(count, lambda: done.callback(None))

    def receive(message: Message) -> None:
        watch.count()

    client.subscribe("bench", callback=receive)
    await client.flush()
    ready()
    await done
    await client.close()
    return watch.seconds


async def rtmb_loop(url: str, count: int, payload: bytes) -> float:
    client = await connect(url)
    subscription = client.subscribe("bench", pending_messages=count)
    subscription.unsubscribe(max=count)
    watch = Stopwatch(count, lambda: None)
    await client.flush()
    ready()
    async for _ in subscription:
        watch.count()
    await client.close()
    return watch.seconds


async def rtmb_request(url: str, count: int, payload: bytes) -> float:
    client = await connect(url)
    client.subscribe("echo", callback=lambda message: message.respond(message.payload))
    await client.flush()
    start = time.perf_counter()
    for _ in range(count):
        await client.request("echo", payload, timeout=TIMEOUT)
    seconds = time.perf_counter() - start
    await client.close()
    return seconds


# nats-py

#: It drops what comes while it is behind, unless it is told not to.
NO_LIMITS: dict[str, Any] = {"pending_msgs_limit": 0, "pending_bytes_limit": 0}


async def nats_publish(url: str, count: int, payload: bytes) -> float:
    client = await nats.connect(url)
    start = time.perf_counter()
    for _ in range(count):
        await client.publish("bench", payload)
    await client.flush(int(TIMEOUT))
    seconds = time.perf_counter() - start
    await client.close()
    return seconds


async def nats_callback(url: str, count: int, payload: bytes) -> float:
    client = await nats.connect(url)
    done = asyncio.Event()
    watch = Stopwatch(count, done.set)

    async def receive(message: Any) -> None:
        watch.count()

    await client.subscribe("bench", cb=receive, **NO_LIMITS)
    await client.flush()
    ready()
    await done.wait()
    await client.close()
    return watch.seconds


async def nats_loop(url: str, count: int, payload: bytes) -> float:
    client = await nats.connect(url)
    subscription = await client.subscribe("bench", **NO_LIMITS)
    watch = Stopwatch(count, lambda: None)
    await client.flush()
    ready()
    async for _ in subscription.messages:
        watch.count()
        if watch.seconds:
            break
    await client.close()
    return watch.seconds


async def nats_request(url: str, count: int, payload: bytes) -> float:
    client = await nats.connect(url)

    async def answer(message: Any) -> None:
        await message.respond(message.data)

    await client.subscribe("echo", cb=answer)
    await client.flush()
    start = time.perf_counter()
    for _ in range(count):
        await client.request("echo", payload, timeout=TIMEOUT)
    seconds = time.perf_counter() - start
    await client.close()
    return seconds


Measure = Callable[[str, int, bytes], Coroutine[Any, Any, float]]

CLIENTS: dict[str, dict[str, Measure]] = {
    "rtmb.client": {
        "publish": rtmb_publish,
        "callback": rtmb_callback,
        "async for": rtmb_loop,
        "request": rtmb_request,
    },
    "nats-py": {
        "publish": nats_publish,
        "callback": nats_callback,
        "async for": nats_loop,
        "request": nats_request,
    },
}
#: Those that somebody must publish for.
FED = ("callback", "async for")


def work(client: str, scenario: str, url: str, count: int, size: int) -> None:
    """One measurement, in a process of its own: prints the seconds it took."""
    measure, payload = CLIENTS[client][scenario], b"x" * size
    if client == "nats-py":
        print(asyncio.run(measure(url, count, payload)), flush=True)
        return

    async def whole(reactor: Any) -> None:
        print(await measure(url, count, payload), flush=True)

    react(whole)


# This process


def feed(server: Server, count: int, size: int) -> None:
    frame = b"PUB bench %d\r\n%b\r\n" % (size, b"x" * size)
    with socket.create_connection(server.address, timeout=TIMEOUT) as link:
        link.sendall(b'CONNECT {"verbose": false, "lang": "bench"}\r\n')
        per_write = max(1, 65536 // len(frame))
        for sent in range(0, count, per_write):
            link.sendall(frame * min(per_write, count - sent))
        link.sendall(b"PING\r\n")
        heard = b""
        while b"PONG\r\n" not in heard:
            data = link.recv(65536)
            if not data:
                raise BenchmarkError(f"{server.name} closed the connection: {heard[-100:]!r}")
            heard = heard[-8:] + data


def rate(server: Server, client: str, scenario: str, count: int, size: int) -> float:
    """Messages a second."""
    host, port = server.address
    job = json.dumps([client, scenario, f"nats://{host}:{port}", count, size])
    command = [sys.executable, "-m", "benchmarks.client", "--work", job]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if scenario in FED:
                if process.stdout.readline() != "ready\n":
                    raise BenchmarkError(f"{client} did not start")
                feed(server, count, size)
            said = process.communicate(timeout=TIMEOUT)[0]
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise BenchmarkError(f"{client}, {scenario}: exit status {process.returncode}")
    return count / float(said)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=5, metavar="N", help="rounds of each (default: 5)")
    add("--count", type=int, default=200_000, metavar="N", help="messages (default: 200000)")
    add("--sizes", default="16,1024", help="bytes of a payload (default: 16,1024)")
    add("--server", choices=[b.name for b in BROKERS], default="nats", help="(default: nats)")
    add("--work", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(*json.loads(options.work))
        return 0
    (broker,) = [b for b in BROKERS if b.name == options.server]
    report = Report(list(CLIENTS), {"rtmb.client": rtmb.__version__, "nats-py": version("nats-py")})
    with broker.running() as server:
        for size in map(int, options.sizes.split(",")):
            for scenario in CLIENTS["nats-py"]:
                count = options.count if scenario != "request" else options.count // 50
                for turn in range(options.rounds):
                    for client in CLIENTS:
                        label = f"{scenario}, {size} B"
                        print(f"{label}, round {turn + 1}, {client}", file=sys.stderr)
                        value = rate(server, client, scenario, count, size)
                        report.add(client, turn, [Reading(label, "msg/s", value)])
    print(report.markdown())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BenchmarkError, OSError) as error:
        sys.exit(f"benchmarks: {error}")
