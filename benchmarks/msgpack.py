"""`python -m benchmarks.msgpack`: the glob tree and the msgpack door, each beside what else one
would use.

The tree is measured beside a loop over `fnmatch`, which also finds every pattern that matches, and
beside one regular expression of all patterns, which only says whether any does. The door is
measured beside nats-server, with the same values of 16 bytes, and here as there the load client is
`benchmarks.load`. All ratios are of one round: neighbours in time.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from fnmatch import translate
from functools import partial
from pathlib import Path

import msgpack

from benchmarks.measure import Client, Reading
from benchmarks.report import Report
from benchmarks.servers import SCRIPTS, Broker, nats_command
from benchmarks.throughput import CHUNK, Flow, same, throughput
from rtmb import __version__
from rtmb.cli.bench_load import BenchmarkError, HostAndPort, LoadConnection, Sender, pump
from rtmb.doors.msgpack.globs import GlobTree

PATTERNS = (1, 100, 10_000)
SIZE = 16  # bytes of a value
TOPIC = "bench.same"
SUBSCRIBERS = (1, 30)
#: So large that nothing is skipped: every message is counted.
BUFFER = ("--msgpack-buffer", "100000000", "--msgpack-buffer-bytes", "8GiB")


# ---- the glob tree ----


def pattern_set(count: int) -> list[str]:
    """What clients of a building's sensors may ask for: mostly prefixes, some names, some ends."""
    kinds = ("site/{}/*", "site/{}/temperature", "site/?{}/*/alarm", "*/{}/battery")
    return [kinds[i % 4 if count > 1 else 0].format(i) for i in range(count)]


def topic_set(count: int) -> list[str]:
    chance = random.Random(1)
    kinds = ("site/{}/temperature", "site/{}/room/7/alarm", "hall/{}/battery", "other/{}")
    return [kinds[i % 4].format(chance.randrange(count)) for i in range(1000)]


def with_tree(patterns: Sequence[str]) -> Callable[[str], object]:
    tree: GlobTree[str] = GlobTree()
    for pattern in patterns:
        tree.add(pattern, pattern)
    return tree.match


def with_fnmatch(patterns: Sequence[str]) -> Callable[[str], object]:
    """What `fnmatch` does, with its own cache out of the way."""
    compiled = [(pattern, re.compile(translate(pattern)).match) for pattern in patterns]
    return lambda topic: {pattern for pattern, match in compiled if match(topic)}


def with_alternation(patterns: Sequence[str]) -> Callable[[str], object]:
    return re.compile("|".join(map(translate, patterns))).match


MATCHERS = {"GlobTree": with_tree, "one re": with_alternation, "fnmatch": with_fnmatch}


def match_rate(match: Callable[[str], object], topics: Sequence[str], seconds: float) -> float:
    """Topics a second."""
    done = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or not done:
        for topic in topics[done % 1000 : done % 1000 + 50]:
            match(topic)
        done += 50
    return done / elapsed


def measure_globs(rounds: int, seconds: float) -> Report:
    report = Report(list(MATCHERS), versions={"rtmb": __version__})
    for count in PATTERNS:
        topics = topic_set(count)
        matchers = {name: make(pattern_set(count)) for name, make in MATCHERS.items()}
        for turn in range(rounds):
            for name, match in matchers.items():
                print(f"{count} patterns, round {turn + 1}, {name}", file=sys.stderr)
                rate = match_rate(match, topics, seconds)
                label = f"{count:,} pattern{'s' * (count > 1)}"
                report.add(name, turn, [Reading(label, "topics/s", rate)])
    return report


# ---- the door ----

_numbers = itertools.count()


class MsgpackConnection(LoadConnection):
    """A connection to the msgpack door. It has no greeting and no PING, but what a connection
    publishes to itself comes back behind everything else."""

    def __init__(self, address: HostAndPort) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 20, 0))
        self._own = f"flush.{next(_numbers)}"
        self._subscribe(self._own)

    def _subscribe(self, pattern: str) -> None:
        self.send(msgpack.packb({"Subscribe": [pattern]}))

    def subscribe(self, pattern: str, queue: str = "") -> None:
        self._subscribe(pattern)
        self.flush()

    def unsubscribe(self) -> None:
        self.send(msgpack.packb({"Unsubscribe": [TOPIC]}))
        self.flush()

    def flush(self) -> int:
        self.send(msgpack.packb({"Publish": [[self._own, time.time()]]}))
        end = len(msgpack.packb([self._own, time.time()]))
        data = bytearray()
        while self._own.encode() not in data[-end:]:
            data += self.read()
        return len(data) - end


def msgpack_rate(client: Client, subscribers: int) -> float:
    """Deliveries a second."""
    publisher, *others = [MsgpackConnection(client.server.address) for _ in range(subscribers + 1)]
    frame: bytes = msgpack.packb({"Publish": [[TOPIC, b"x" * SIZE]]})
    delivered = len(msgpack.packb([TOPIC, b"x" * SIZE]))
    count = CHUNK // len(frame)

    def run(repeats: int) -> float:
        expected = repeats * count * delivered * subscribers
        senders = [Sender(publisher, frame * count, repeats)]
        return pump(senders, others, expected, timeout=20 + 10 * client.seconds)

    try:
        for other in others:
            other.subscribe(TOPIC)
            other.flush()  # the retained value came before this
        return count * subscribers / client.seconds_each(f"1→{subscribers}", run)
    finally:
        for connection in (publisher, *others):
            connection.close()


def nats_rate(client: Client, subscribers: int) -> float:
    return throughput(
        client, Flow(f"1→{subscribers}", partial(same, SIZE), 1, subscribers, TOPIC)
    ).per_second


def door_command(port: int, scratch: Path) -> list[str]:
    command = [str(SCRIPTS / "twistd"), "-n", "--pidfile=", "rtmb", "--port", "0", "--no-http"]
    return [*command, "--msgpack-port", str(port), *BUFFER]


SERVERS = (
    (Broker("rtmb msgpack", door_command), msgpack_rate),
    (Broker("nats", nats_command), nats_rate),
)


def measure_door(rounds: int, seconds: float) -> Report:
    report = Report([broker.name for broker, _ in SERVERS], versions={"rtmb": __version__})
    with ExitStack() as stack:
        clients = [Client(stack.enter_context(broker.running()), seconds) for broker, _ in SERVERS]
        for subscribers in SUBSCRIBERS:
            for turn in range(rounds):
                for client, (broker, rate) in zip(clients, SERVERS, strict=True):
                    where = f"1→{subscribers}, round {turn + 1}, {broker.name}"
                    print(where, file=sys.stderr)
                    try:
                        value = rate(client, subscribers)
                    except (BenchmarkError, OSError) as error:
                        report.failures.append(f"{where}: {error}")
                        client.close()
                        continue
                    label = f"1→{subscribers}, {SIZE} B"
                    report.add(broker.name, turn, [Reading(label, "msg/s", value)])
        for client in clients:
            client.close()
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.msgpack",
        description="Measure the glob tree beside re and fnmatch, the door beside nats-server.",
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="(default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="(default: 1)")
    parser.add_argument("--quick", action="store_true", help="1 round of 0.3 s")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds = 1, 0.3
    gc.disable()
    reports = [
        measure(options.rounds, options.seconds) for measure in (measure_globs, measure_door)
    ]
    print("\n\n".join(report.markdown() for report in reports))
    return 1 if any(report.failures for report in reports) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BenchmarkError, OSError) as error:
        sys.exit(f"benchmarks: {error}")
