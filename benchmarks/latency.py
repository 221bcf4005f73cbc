"""How long a message is on its way: alone, beside others, and beside one that never reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.load import SubjectRoute, paced_latencies, ping_pong_latencies
from benchmarks.measure import Client, Reading
from benchmarks.throughput import ONE_TO_ONE, throughput

BACKGROUND_RATE = 10_000  # messages a second
WARM_UP = 0.1  # seconds


def percentile(latencies: Sequence[float], percent: float) -> float:
    return sorted(latencies)[int(len(latencies) * percent / 100)] * 1e6


def percentiles(label: str, latencies: Sequence[float]) -> Iterator[Reading]:
    for percent in (50, 99, 99.9):
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


def find_half_load(clients: Sequence[Client]) -> None:
    """All get the same: half of what the slowest can do."""
    half = min(throughput(client, ONE_TO_ONE).per_second for client in clients) / 2
    for client in clients:
        client.half_load = round(half)


def latency_half_load(client: Client) -> Iterator[Reading]:
    a, b, c, d = client.connections(4)
    probe = SubjectRoute(a, b, "bench.probe", 16).open()
    background = SubjectRoute(c, d, "bench.background", 128).open()
    run = partial(paced_latencies, probe, background, client.half_load)
    run(WARM_UP)
    # A probe a millisecond: a second of them would have only one above p99.9.
    yield from percentiles("latency at half load", run(3 * client.seconds))
    background.close()
    probe.close()


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
