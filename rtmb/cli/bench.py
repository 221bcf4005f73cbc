"""`rtmb bench`: rates and latencies of a server, or of two side by side.

`rtmb.cli.bench_worker` makes the load, in a process of its own; here is what a person sees of it.
"""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from rtmb.cli import bench_worker
from rtmb.cli.bench_worker import NUMBER, PERCENTILES, BenchPlan, BenchServer, RoundResult
from rtmb.cli.options import (
    COUNT,
    COUNT_OR_NONE,
    SECONDS,
    Command,
    Size,
    Target,
    connection_options,
)
from rtmb.cli.runner import FAILED, NO_CONNECTION, CommandFailed
from rtmb.cli.tls_files import check_pair
from rtmb.client.address import parse_url

MOST_PAYLOADS = 64 << 20  # bytes of --payload-file


class Metric(msgspec.Struct, frozen=True):
    """A line of the table."""

    label: str
    key: str  # in JSON and CSV
    value: Callable[[RoundResult], float | None]
    lower_is_better: bool = False


def _latency(name: str) -> Callable[[RoundResult], float | None]:
    return lambda result: result.latency[name] if result.latency else None


METRICS = [
    Metric("published, msg/s", "published_per_second", lambda r: r.published / r.seconds),
    Metric(
        "delivered, msg/s",
        "delivered_per_second",
        lambda r: r.delivered / r.seconds if r.delivered else None,
    ),
    Metric("payload, MB/s", "megabytes_per_second", lambda r: r.payload_bytes / r.seconds / 1e6),
    *(
        Metric(f"latency {name}, µs", f"latency_us_{name}", _latency(name), lower_is_better=True)
        for name in PERCENTILES
    ),
    Metric("load late at most, µs", "load_late_us", lambda r: r.late, lower_is_better=True),
]


@click.command(
    cls=Command,
    examples="""
rtmb bench                                   1 publisher, 1 subscriber, 128 B, 3 s
rtmb bench --pub 4 --sub 4 --size 1KiB
rtmb bench --sub 0 --messages 1000000        publishing alone
rtmb bench --subjects 1000                   1,000 subjects, one wildcard subscription
rtmb bench --sub 4 --queue workers           a queue group
rtmb bench --rate 10000 --duration 30s       latencies at 10,000 messages a second
rtmb bench --payload-file orders.jsonl       each line is a payload
rtmb bench --compare nats://127.0.0.1:4333   the same on another server, and ratios
rtmb bench --json | jq .rounds
rtmb bench --csv bench.csv --rounds 5
""",
)
@connection_options
@click.option("--pub", default=1, type=COUNT, show_default=True, help="Publishers.")
@click.option("--sub", default=1, type=COUNT_OR_NONE, show_default=True, help="Subscribers.")
@click.option("--size", type=Size(), default="128", show_default=True, help="Bytes of a payload.")
@click.option("--subjects", default=1, type=COUNT, show_default=True, help="Subjects, in turn.")
@click.option("--queue", default="", help="The subscribers are a queue group of this name.")
@click.option("--messages", type=COUNT, help="Messages of a round, in place of --duration.")
@click.option("--duration", type=SECONDS, help="Time of a round.  [default: 3]")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Messages a second, at even times; shows latencies, counted from those times.",
)
@click.option("--rounds", type=COUNT, help="Rounds.  [default: 1; with --compare 3]")
@click.option(
    "--payload-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Payloads, one a line, in turn.",
)
@click.option("--compare", metavar="URL", help="Another server, in turn with the first.")
@click.option("--csv", "csv_file", type=click.Path(dir_okay=False), help="Write the rounds there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
def bench(
    target: Target,
    pub: int,
    sub: int,
    size: int,
    subjects: int,
    queue: str,
    messages: int | None,
    duration: float | None,
    rate: float | None,
    rounds: int | None,
    payload_file: str | None,
    compare: str | None,
    csv_file: str | None,
    as_json: bool,
) -> None:
    """Measure how fast a server delivers, or how soon at a given rate.

    The load is made by one process with prepared bytes, and costs little. With --rate each message
    has a time at which it is to be sent, and its latency is counted from then: what waits because
    the server stalls is not hidden. The payload then begins with the message's number.
    """
    if messages and duration:
        raise click.UsageError("--messages and --duration exclude each other")
    if rate and size < NUMBER and not payload_file:
        raise click.UsageError(f"--rate needs a --size of at least {NUMBER}")
    if any(c in queue for c in " \t\r\n"):
        raise click.BadParameter("a queue's name has no spaces", param_hint="--queue")
    targets = [target, *([Target(compare)] if compare else [])]
    plan = BenchPlan(
        servers=[_server(each) for each in targets],
        publishers=pub,
        subscribers=sub,
        size=size,
        subjects=subjects,
        queue=queue,
        rounds=rounds or (3 if compare else 1),
        seconds=duration or 3.0,
        messages=messages,
        rate=rate,
        payloads=_payloads(payload_file) if payload_file else [],
    )
    names = [each.shown.partition("://")[2] for each in targets]
    results = _measure(plan, names)
    if csv_file:
        _write_csv(csv_file, names, results)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_report(plan, names, results))))
    else:
        _print_table(plan, names, results)


def _server(target: Target) -> BenchServer:
    try:
        address = parse_url(target.url)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if address.websocket or "," in target.url:
        raise click.BadParameter(f"bench needs one nats:// or tls:// server, not {target.shown}")
    check_pair(target.tls_cert, target.tls_key)
    return BenchServer(**dataclasses.asdict(target))


def _payloads(path: str) -> list[bytes]:
    data = Path(path).read_bytes()
    lines = [line for line in data.splitlines() if line]
    if not lines:
        raise click.BadParameter(f"{path} is empty", param_hint="--payload-file")
    if len(data) > MOST_PAYLOADS:
        text = f"{path} has more than {MOST_PAYLOADS >> 20} MiB"
        raise click.BadParameter(text, param_hint="--payload-file")
    return lines


def _measure(plan: BenchPlan, names: Sequence[str]) -> list[RoundResult]:
    """Let the worker work, and show how far it is."""
    results: list[RoundResult] = []
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    with _worker(plan) as events, bar:
        task = bar.add_task(names[0], total=plan.rounds * len(plan.servers))
        for event in events:
            if isinstance(event, bench_worker.BenchProblem):
                status = NO_CONNECTION if event.no_connection else FAILED
                raise CommandFailed(f"{names[event.server]}: {event.text}", status)
            if isinstance(event, RoundResult):
                results.append(event)
                bar.update(task, completed=len(results))
            else:
                label = f"{names[event.server]}, round {event.turn + 1} of {plan.rounds}"
                bar.update(task, description=label, completed=len(results) + event.part)
    if len(results) < plan.rounds * len(plan.servers):
        raise CommandFailed("the process that makes the load ended early")
    return results


@contextmanager
def _worker(plan: BenchPlan) -> Iterator[Iterator[bench_worker.Event]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "rtmb.cli.bench_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(plan))
        process.stdin.close()
        decoder = msgspec.json.Decoder(bench_worker.Event)
        yield (decoder.decode(line) for line in process.stdout)
    finally:
        process.kill()
        process.wait()


# What comes of it


def _values(metric: Metric, results: Sequence[RoundResult], server: int) -> list[float]:
    values = (metric.value(result) for result in results if result.server == server)
    return [value for value in values if value is not None]


def _ratios(metric: Metric, results: Sequence[RoundResult]) -> list[float]:
    """One a round: neighbours in time share whatever else the machine was doing."""
    pairs = zip(_values(metric, results, 0), _values(metric, results, 1), strict=False)
    return [first / second for first, second in pairs if second]


def _report(
    plan: BenchPlan, names: Sequence[str], results: Sequence[RoundResult]
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "publishers": plan.publishers,
        "subscribers": plan.subscribers,
        "subjects": plan.subjects,
        "size": None if plan.payloads else plan.size,
        "queue": plan.queue or None,
        "rate": plan.rate,
        "servers": [
            {
                "server": name,
                "version": next(r.version for r in results if r.server == index),
                **{
                    metric.key: median(values)
                    for metric in METRICS
                    if (values := _values(metric, results, index))
                },
            }
            for index, name in enumerate(names)
        ],
        "rounds": [_row(names, result) for result in results],
    }
    if len(names) == 2:
        report["ratios"] = {
            metric.key: median(ratios) for metric in METRICS if (ratios := _ratios(metric, results))
        }
    return report


def _row(names: Sequence[str], result: RoundResult) -> dict[str, Any]:
    return {
        "server": names[result.server],
        "version": result.version,
        "round": result.turn + 1,
        "seconds": result.seconds,
        "published": result.published,
        "delivered": result.delivered,
        **{metric.key: metric.value(result) for metric in METRICS},
    }


def _write_csv(path: str, names: Sequence[str], results: Sequence[RoundResult]) -> None:
    rows = [_row(names, result) for result in results]
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def _print_table(plan: BenchPlan, names: Sequence[str], results: Sequence[RoundResult]) -> None:
    payload = "payloads from a file" if plan.payloads else f"{plan.size:,} B"
    title = f"{plan.publishers} → {plan.subscribers}, {payload}"
    if plan.subjects > 1:
        title += f", {plan.subjects:,} subjects"
    if plan.queue:
        title += f", queue {plan.queue}"
    if plan.rate:
        title += f", {plan.rate:,.10g} msg/s"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for index, name in enumerate(names):
        version = next(result.version for result in results if result.server == index)
        table.add_column(f"{name}\n{version}", justify="right")
    if len(names) == 2:
        table.add_column("ratio", justify="right")
    for metric in METRICS:
        columns = [_values(metric, results, index) for index in range(len(names))]
        if not all(columns):
            continue
        cells = [_spread(values) for values in columns]
        if len(names) == 2:
            ratios = _ratios(metric, results)
            good = ratios and (median(ratios) < 1) == metric.lower_is_better
            style = "green" if good else "yellow"
            cells.append(f"[{style}]{_spread(ratios, '.2f')}[/]" if ratios else "-")
        table.add_row(metric.label, *cells)
    console = Console()
    console.print(table)
    if plan.rounds > 1:
        console.print("median (least…most)", style="dim")


def _spread(values: Sequence[float], form: str = "") -> str:
    def shown(value: float) -> str:
        return format(value, form or (",.0f" if value >= 100 else ".3g"))

    if len(values) == 1:
        return shown(values[0])
    return f"{shown(median(values))} ({shown(min(values))}…{shown(max(values))})"
