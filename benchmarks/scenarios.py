"""What is measured: each scenario a function of a client, all of them in one table."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from benchmarks.load import SubjectRoute, paced_latencies, ping_pong_latencies
from benchmarks.servers import JOURNALED, Server
from rtmb.cli.bench_load import (
    PING,
    PONG,
    LoadConnection,
    Sender,
    SubjectAndSize,
    delivered_bytes,
    publish_frames,
    pump,
)

CHUNK = 256 * 1024  # bytes of frames prepared for a publisher; more no longer makes it cheaper
VARIED = 20_000  # messages of a varied chunk: too many to be remembered line by line
FIRST_PING = 2.5  # seconds after which a server has sent its first PING to a library client
HOLDERS = 4  # connections that hold the other subscriptions
BACKGROUND_RATE = 10_000  # messages a second
WARM_UP = 0.1  # seconds


@dataclass(frozen=True)
class Reading:
    """One number of one round."""

    label: str
    unit: str
    value: float
    lower_is_better: bool = False


@dataclass
class Client:
    """The connections to one server, and how much load has turned out to fill the time."""

    server: Server
    seconds: float
    _pool: list[LoadConnection] = field(default_factory=list)
    _repeats: dict[str, int] = field(default_factory=dict)

    def connections(self, count: int) -> list[LoadConnection]:
        """The first `count` connections of the pool: opened once, used by every scenario."""
        while len(self._pool) < count:
            self._pool.append(LoadConnection(self.server.address))
        return self._pool[:count]

    def close(self) -> None:
        while self._pool:
            self._pool.pop().close()

    def seconds_each(self, key: str, run: Callable[[int], float]) -> float:
        """Seconds for one repeat, over as many as take about `self.seconds` in all."""
        if key not in self._repeats:
            repeats = 1
            while (elapsed := run(repeats)) < min(0.2, self.seconds / 2):
                repeats *= 4
            self._repeats[key] = max(1, round(repeats * self.seconds / elapsed))
        return run(self._repeats[key]) / self._repeats[key]


Run = Callable[[Client], Iterator[Reading]]


@dataclass(frozen=True)
class Scenario:
    """A name to select it by, and what to run; `fresh` asks for a server without a past."""

    name: str
    run: Run
    fresh: bool = False
    slow: bool = False  # left out of --quick


# ---- throughput ----


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
    while len(messages) < VARIED:
        chance.shuffle(names)
        messages += [(name, chance.randint(16, 512)) for name in names]
    return tuple(messages)


@dataclass(frozen=True)
class Flow:
    """Who sends what to whom."""

    label: str
    messages: Callable[[], Sequence[SubjectAndSize]]
    publishers: int = 1
    subscribers: int = 1
    pattern: str = "bench.same"
    queue: str = ""


def throughput(client: Client, flow: Flow) -> float:
    """Deliveries a second; without a subscriber, publications a second up to the PONG."""
    connections = client.connections(flow.publishers + flow.subscribers)
    publishers, subscribers = connections[: flow.publishers], connections[flow.publishers :]
    messages = flow.messages()
    chunk = publish_frames(messages)
    copies = flow.publishers * (1 if flow.queue else flow.subscribers)
    each = copies * delivered_bytes(messages)

    def run(repeats: int) -> float:
        tail = b"" if subscribers else PING
        senders = [Sender(publisher, chunk, repeats, tail) for publisher in publishers]
        expected = repeats * each if subscribers else len(PONG) * len(publishers)
        return pump(senders, subscribers, expected, timeout=20 + 10 * client.seconds)

    for subscriber in subscribers:
        subscriber.subscribe(flow.pattern, flow.queue)
    seconds_each = client.seconds_each(flow.label, run)
    for subscriber in subscribers:
        subscriber.unsubscribe()
    for publisher in publishers:
        publisher.flush()
    return len(messages) * (copies or flow.publishers) / seconds_each


def flow_scenario(name: str, flow: Flow) -> Scenario:
    def run(client: Client) -> Iterator[Reading]:
        yield Reading(flow.label, "msg/s", throughput(client, flow))

    return Scenario(name, run)


ONE_TO_ONE = Flow("1→1, 128 B", partial(same, 128))


# ---- latency ----


def percentile(latencies: Sequence[float], percent: int) -> float:
    return sorted(latencies)[len(latencies) * percent // 100] * 1e6


def percentiles(label: str, latencies: Sequence[float]) -> Iterator[Reading]:
    for percent in (50, 99):
        value = percentile(latencies, percent)
        yield Reading(f"{label}, p{percent}", "µs", value, lower_is_better=True)


def latency(client: Client) -> Iterator[Reading]:
    publisher, subscriber = client.connections(2)
    route = SubjectRoute(publisher, subscriber, "bench.probe", 16).open()
    ping_pong_latencies(route, WARM_UP)
    yield from percentiles("latency, 16 B", ping_pong_latencies(route, client.seconds))
    route.close()


def latency_loaded(client: Client) -> Iterator[Reading]:
    a, b, c, d = client.connections(4)
    probe = SubjectRoute(a, b, "bench.probe", 16).open()
    background = SubjectRoute(c, d, "bench.background", 128).open()
    run = partial(paced_latencies, probe, background, BACKGROUND_RATE)
    run(WARM_UP)
    yield from percentiles(f"latency at {BACKGROUND_RATE:,} msg/s", run(client.seconds))
    background.close()
    probe.close()


# ---- growth ----


def subscription_lines(count: int, holder: int) -> bytes:
    """Distinct subjects, nine in ten literal, the others with one or the other wildcard."""
    last = {0: "*", 10: ">"}
    return b"".join(
        b"SUB held.%d.%d.%b %d\r\n" % (holder, sid, last.get(sid % 20, "value").encode(), sid)
        for sid in range(count)
    )


def memory_each(client: Client, before: int | None, count: int, what: str) -> Iterator[Reading]:
    after = client.server.memory()
    # The memory of ten of anything is lost among the pages that come and go by themselves.
    if before is not None and after is not None and count >= 1000:
        yield Reading(what, "B", (after - before) / count, lower_is_better=True)


def subscriptions(client: Client, count: int) -> Iterator[Reading]:
    throughput(client, ONE_TO_ONE)  # so that what traffic needs is not counted below
    holders = [LoadConnection(client.server.address) for _ in range(HOLDERS)]
    shares = [len(range(index, count, HOLDERS)) for index in range(HOLDERS)]
    lines = [subscription_lines(share, index) for index, share in enumerate(shares)]
    before = client.server.memory()
    started = time.perf_counter()
    for holder, chunk in zip(holders, lines, strict=True):
        holder.send(chunk)
    for holder in holders:
        holder.flush()
    elapsed = time.perf_counter() - started
    held = f"{count:,} subscriptions"
    if count >= 1000:  # fewer time the round trip, not the subscriptions
        yield Reading(f"{held}: made", "SUB/s", count / elapsed)
    yield from memory_each(client, before, count, f"{held}: memory for each")
    yield Reading(f"{held} held: 1→1, 128 B", "msg/s", throughput(client, ONE_TO_ONE))
    for holder in holders:
        holder.close()


def connections(client: Client, count: int) -> Iterator[Reading]:
    throughput(client, ONE_TO_ONE)
    before = client.server.memory()
    idle: list[LoadConnection] = []
    try:
        started = time.perf_counter()
        for _ in range(count):
            idle.append(LoadConnection(client.server.address))
        elapsed = time.perf_counter() - started
        time.sleep(FIRST_PING)  # thousands of first PINGs would disturb the throughput
        held = f"{count:,} connections"
        if count >= 1000:
            yield Reading(f"{held}: opened", "conn/s", count / elapsed)
        yield from memory_each(client, before, count, f"{held}: memory for each")
        yield Reading(f"{held} held: 1→1, 128 B", "msg/s", throughput(client, ONE_TO_ONE))
    finally:
        for connection in idle:
            connection.close()


# ---- a subscriber that never reads ----


def slow_consumer(client: Client) -> Iterator[Reading]:
    """The same publisher at the same rate, first to a subscriber that reads, then to one that
    does not: the difference is what the slow one costs its neighbours.
    """
    a, b, c, d = client.connections(4)
    probe = SubjectRoute(a, b, "bench.probe", 16).open()
    # 40 MB/s for at least 4 s: more than twice what a broker is to hold for one client (64 MiB).
    flood = SubjectRoute(c, d, "bench.flood", 4096).open()
    seconds = max(4.0, client.seconds)
    run = partial(paced_latencies, probe, flood, BACKGROUND_RATE)
    run(WARM_UP)
    before = percentile(run(seconds), 99)
    client.server.reset_peak()
    memory = client.server.memory()
    during = percentile(run(seconds, background_reads=False), 99)
    peak = client.server.peak_memory()
    for label, value in (("before", before), ("during", during)):
        yield Reading(f"slow consumer: neighbour's p99 {label}", "µs", value, lower_is_better=True)
    yield Reading(
        "slow consumer: p99 during/before", "ratio", during / before, lower_is_better=True
    )
    if memory is not None and peak is not None:
        growth = (peak - memory) / 2**20
        yield Reading("slow consumer: memory growth", "MiB", growth, lower_is_better=True)
    client.close()  # the pool holds the slow one


SCENARIOS = (
    flow_scenario("1to1-16", Flow("1→1, 16 B", partial(same, 16))),
    flow_scenario("1to1-128", ONE_TO_ONE),
    flow_scenario("1to1-1k", Flow("1→1, 1 KiB", partial(same, 1024))),
    flow_scenario("1to1-16k", Flow("1→1, 16 KiB", partial(same, 16384))),
    flow_scenario("1to1-sizes", Flow("1→1, 16 to 512 B", partial(varied, 1), pattern="bench.0")),
    flow_scenario(
        "in-turn-128",
        Flow("8 subjects in turn → wildcard, 128 B", partial(in_turn, 8, 128), pattern="bench.*"),
    ),
    flow_scenario("1to8-128", Flow("1→8, 128 B", partial(same, 128), subscribers=8)),
    flow_scenario("4to4-128", Flow("4→4, 128 B", partial(same, 128), 4, 4)),
    flow_scenario("pub-16", Flow("no subscriber, 16 B", partial(same, 16), subscribers=0)),
    flow_scenario("pub-128", Flow("no subscriber, 128 B", partial(same, 128), subscribers=0)),
    flow_scenario(
        "subjects-1000",
        Flow("1,000 subjects → wildcard, 16 to 512 B", partial(varied, 1000), pattern="bench.*"),
    ),
    flow_scenario(
        "queue-4", Flow("queue group of 4, 128 B", partial(same, 128), subscribers=4, queue="q")
    ),
    flow_scenario(
        "queue-4-in-turn",
        Flow(
            "queue group of 4, 8 subjects in turn, 128 B",
            partial(in_turn, 8, 128),
            subscribers=4,
            pattern="bench.*",
            queue="q",
        ),
    ),
    flow_scenario(
        "journal",
        Flow("1→1, 128 B, journaled", partial(same, 128, JOURNALED), pattern=JOURNALED),
    ),
    Scenario("latency", latency),
    Scenario("latency-loaded", latency_loaded),
    *(
        Scenario(f"subscriptions-{count}", partial(subscriptions, count=count), True, slow)
        for count, slow in ((10, False), (1000, False), (100_000, True))
    ),
    *(
        Scenario(f"connections-{count}", partial(connections, count=count), True, slow)
        for count, slow in ((10, False), (1000, False), (10_000, True))
    ),
    Scenario("slow-consumer", slow_consumer, fresh=True),
)
