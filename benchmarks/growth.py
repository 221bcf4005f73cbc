"""`python -m benchmarks.growth`: what a message costs, beside ever more of everything.

Microseconds a message against 10² to 10⁶ subjects and subscriptions, and 10 to 10⁴ connections,
for rtmb and nats-server in turns, each on a server without a past: a table, and a plot of each into
docs/growth-*.svg.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.held import HALF_WILD, Holders, idle_connections
from benchmarks.measure import Client, Reading
from benchmarks.report import Report
from benchmarks.servers import NATS, ROOT, RTMB, Broker
from benchmarks.throughput import ONE_TO_ONE, Flow, throughput
from rtmb.cli.bench_load import BenchmarkError, SubjectAndSize

SERVERS = (RTMB, NATS)
SIZE = 16  # bytes of payload: little, so that what grows is seen


def distinct(count: int) -> list[SubjectAndSize]:
    """Enough of them that each is published once or more, one after the other."""
    return [(f"bench.{n}", SIZE) for n in range(count)] * max(1, 20_000 // count)


def subjects(client: Client, count: int) -> float:
    flow = Flow(f"{count} subjects", partial(distinct, count), pattern="bench.*")
    return throughput(client, flow).per_second


def subscriptions(client: Client, count: int) -> float:
    """Messages to those that are held, on as many subjects as there may be."""
    with closing(Holders(client, count, HALF_WILD)) as holders:
        holders.subscribe()
        return holders.matched()


def connections(client: Client, count: int) -> float:
    with idle_connections(client, count):
        return throughput(client, ONE_TO_ONE).per_second


@dataclass(frozen=True)
class Dimension:
    """What grows, how far, and messages a second beside so many of it."""

    name: str
    counts: Sequence[int]
    rate: Callable[[Client, int], float]
    what: str


MANY = tuple(10**power for power in range(2, 7))
DIMENSIONS = (
    Dimension("subjects", MANY, subjects, "published to in turn, one wildcard subscriber, 16 B"),
    Dimension("subscriptions", MANY, subscriptions, "half with wildcards, one matches, 128 B"),
    Dimension("connections", (10, 100, 1000, 10_000), connections, "idle, beside 1→1, 128 B"),
)


def label(dimension: Dimension, count: int) -> str:
    return f"{count:,} {dimension.name}"


def cost(dimension: Dimension, broker: Broker, count: int, seconds: float) -> Reading:
    with broker.running() as server, closing(Client(server, seconds)) as client:
        rate = dimension.rate(client, count)
    return Reading(label(dimension, count), "µs a message", 1e6 / rate, lower_is_better=True)


def measure(options: argparse.Namespace) -> Iterator[tuple[Dimension, Report]]:
    for dimension in options.dimensions:
        report = Report([broker.name for broker in SERVERS])
        for count in dimension.counts:
            if count > options.most:
                continue
            for turn in range(options.rounds):
                for broker in SERVERS:
                    where = f"{label(dimension, count)}, round {turn + 1}, {broker.name}"
                    print(where, file=sys.stderr)
                    try:
                        reading = cost(dimension, broker, count, options.seconds)
                        report.add(broker.name, turn, [reading])
                    except (BenchmarkError, OSError) as error:
                        report.failures.append(f"{where}: {error}")
        yield dimension, report


def plot(dimension: Dimension, report: Report, folder: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    # The same file for the same numbers.
    matplotlib.rcParams["svg.hashsalt"] = "rtmb"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for broker in SERVERS:
        points = []
        for count in dimension.counts:
            if values := report.values(label(dimension, count), broker.name):
                points.append((count, median(values), min(values), max(values)))
        if points:
            counts, middles, least, most = zip(*points, strict=True)
            axes.plot(counts, middles, marker="o", label=broker.name)
            axes.fill_between(counts, least, most, alpha=0.2)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{dimension.name} ({dimension.what})")
    axes.set_ylabel("µs a message")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / f"growth-{dimension.name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [dimension.name for dimension in DIMENSIONS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth",
        description="Plot what a message costs beside ever more subjects and the like.",
    )
    add = parser.add_argument
    add("dimension", nargs="*", metavar="DIMENSION", help=f"{', '.join(names)} (default: all)")
    add("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    add("--seconds", type=float, default=1.0, metavar="S", help="(default: 1)")
    add("--most", type=int, default=10**6, metavar="N", help="leave larger counts out")
    add("--folder", type=Path, default=ROOT / "docs", help="where the plots go (default: docs)")
    options = parser.parse_args(arguments)
    for name in options.dimension:
        if name not in names:
            parser.error(f"nothing called {name!r} grows; there are {', '.join(names)}")
    wanted = options.dimension or names
    options.dimensions = [dimension for dimension in DIMENSIONS if dimension.name in wanted]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # the servers inherit it
    gc.disable()  # a collection would be taken for the server's
    failed = False
    for dimension, report in measure(options):
        print(f"{report.markdown()}\n", flush=True)
        plot(dimension, report, options.folder)
        failed = failed or bool(report.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
