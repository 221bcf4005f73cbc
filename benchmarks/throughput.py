"""Deliveries a second: who sends what to whom, and what that costs the server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import Thread
from typing import NamedTuple

from benchmarks.load import Form
from benchmarks.measure import Client, Reading, Scenario
from rtmb.cli.bench_load import (
    PING,
    PONG,
    BenchmarkError,
    LoadConnection,
    Sender,
    SubjectAndSize,
    publish_frames,
    pump,
)

CHUNK = 256 * 1024  # bytes of frames prepared for a publisher; more no longer makes it cheaper
VARIED = 20_000  # messages of a varied chunk: too many to be remembered line by line
CHURN = 1000  # subscriptions that are made and ended in one chunk


@cache
def same(size: int, subject: str = "bench.same") -> tuple[SubjectAndSize, ...]:
    message = (subject, size)
    return (message,) * max(1, CHUNK // len(publish_frames([message])))


@cache
def in_turn(subjects: int, size: int) -> tuple[SubjectAndSize, ...]:
    """No two messages in a row alike, for a broker that is faster when they are."""
    messages = tuple((f"bench.{index}", size) for index in range(subjects))
    return messages * max(1, CHUNK // len(publish_frames(messages)))


@cache
def varied(subjects: int) -> tuple[SubjectAndSize, ...]:
    chance = random.Random(1)
    names = [f"bench.{index}" for index in range(subjects)]
    messages: list[SubjectAndSize] = []
    while len(messages) < max(VARIED, subjects):
        chance.shuffle(names)
        messages += [(name, chance.randint(16, 512)) for name in names]
    return tuple(messages)


PLAIN = Form()


@dataclass(frozen=True)
class Flow:
    """Who sends what to whom."""

    label: str
    messages: Callable[[], Sequence[SubjectAndSize]]
    publishers: int = 1
    subscribers: int = 1
    pattern: str = "bench.same"
    queue: str = ""
    form: Form = PLAIN
    #: As many subscribers as publishers, and each pair has a subject of its own.
    pairs: bool = False
    #: All of them log in as the user with permissions.
    user: bool = False

    def pair(self, index: int) -> str:
        return f".{index:02}" if self.pairs else ""

    def chunk(self, publisher: int) -> Sequence[SubjectAndSize]:
        """What one publisher sends, again and again."""
        pair = self.pair(publisher)
        return [(subject + pair, size) for subject, size in self.messages()]

    @property
    def copies(self) -> int:
        """How often what the publishers send is delivered, all together."""
        each = 1 if self.queue or self.pairs else self.subscribers
        return self.publishers * each


class Rate(NamedTuple):
    per_second: float
    #: CPU seconds of the server for a million of them.
    cpu: float


def throughput(client: Client, flow: Flow) -> Rate:
    """Deliveries a second; without a subscriber, publications a second up to the PONG."""
    connections = client.connections(flow.publishers + flow.subscribers, flow.user)
    publishers, subscribers = connections[: flow.publishers], connections[flow.publishers :]
    messages = [flow.chunk(index) for index in range(flow.publishers)]
    chunks = [flow.form.frames(each) for each in messages]
    each = flow.copies * flow.form.delivered(messages[0])

    def run(repeats: int) -> float:
        tail = b"" if subscribers else PING
        senders = [
            Sender(publisher, chunk, repeats, tail)
            for publisher, chunk in zip(publishers, chunks, strict=True)
        ]
        expected = repeats * each if subscribers else len(PONG) * len(publishers)
        return pump(senders, subscribers, expected, timeout=20 + 10 * client.seconds)

    for index, subscriber in enumerate(subscribers):
        subscriber.subscribe(flow.pattern + flow.pair(index), flow.queue)
    seconds_each = client.seconds_each(flow.label, run)
    for subscriber in subscribers:
        subscriber.unsubscribe()
    for publisher in publishers:
        publisher.flush()
    count = len(messages[0]) * (flow.copies or flow.publishers)
    return Rate(count / seconds_each, client.cpu_each / count * 1e6)


def flow_scenario(name: str, flow: Flow, fresh: bool = False, cpu: bool = False) -> Scenario:
    def run(client: Client) -> Iterator[Reading]:
        rate = throughput(client, flow)
        yield Reading(flow.label, "msg/s", rate.per_second)
        if cpu and client.server.pid is not None:
            label = f"{flow.label}: CPU for a million messages"
            yield Reading(label, "s", rate.cpu, lower_is_better=True)

    return Scenario(name, run, fresh)


ONE_TO_ONE = Flow("1→1, 128 B", partial(same, 128))


# ---- beside subscriptions that come and go ----


class Churn:
    """Subscribes and unsubscribes as fast as the server does it, until it is stopped."""

    def __init__(self, connection: LoadConnection) -> None:
        self.connection = connection
        subjects = [f"churn.{i}.*" if i % 10 == 0 else f"churn.{i}.x" for i in range(CHURN)]
        lines = [f"SUB {name} {i + 2}\r\n" for i, name in enumerate(subjects)]
        lines += [f"UNSUB {i + 2}\r\n" for i in range(CHURN)]
        self._chunk = "".join(lines).encode() + PING
        self._stopped = self._failed = False
        self._answered = 0
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._started = time.perf_counter()
        self._thread.start()

    def stop(self) -> float:
        """Subscriptions made, and ended, a second."""
        self._stopped = True
        self._thread.join()
        if self._failed:
            raise BenchmarkError("the server closed the connection of the churn, or went quiet")
        return self._answered * CHURN / (time.perf_counter() - self._started)

    def _run(self) -> None:
        """Keep two chunks on their way: the server need not wait for the next.

        It reads by itself, as the load client's buffer belongs to the other thread.
        """
        link = self.connection.socket
        try:
            link.sendall(self._chunk * 2)
            owed = 2
            while owed:
                data = link.recv(1 << 16)
                if not data or b"-ERR" in data:
                    raise ConnectionError
                answered = data.count(PONG)
                self._answered += answered
                owed -= answered
                if not self._stopped:
                    link.sendall(self._chunk * answered)
                    owed += answered
        except OSError:
            self._failed = True


def churn(client: Client) -> Iterator[Reading]:
    other = Churn(LoadConnection(client.server.address))
    with closing(other.connection):
        other.start()
        try:
            rate = throughput(client, replace(ONE_TO_ONE, label="1→1, 128 B, beside churn"))
        finally:
            made = other.stop()
    yield Reading("1→1, 128 B, beside SUB and UNSUB", "msg/s", rate.per_second)
    yield Reading("SUB and UNSUB beside 1→1, 128 B", "pairs/s", made)
