"""The command line: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import gc
import resource
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.measure import Client, Reading, Scenario
from benchmarks.report import Report
from benchmarks.scenarios import SCENARIOS
from benchmarks.servers import BROKERS, PURE, Broker
from rtmb.cli.bench_load import BenchmarkError

EXAMPLES = """\
examples:
  python -m benchmarks                            everything, about twenty minutes
  python -m benchmarks --quick                    everything but the largest, one short round
  python -m benchmarks '1to1-*' latency           these only; names may hold * and ?
  python -m benchmarks --only rtmb 1to1-16        one broker, while you tune it
  python -m benchmarks --rounds 9 --seconds 2 --json result.json
  python -m benchmarks --server rtmb=127.0.0.1:4222 latency
                                                  one that runs already (no memory figures)

scenarios:
"""


def running_server(text: str) -> Broker:
    name, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=HOST:PORT")
    return Broker(name, address=(host, int(port)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure rtmb beside nats-server, round by round, and print the ratios.",
        epilog=EXAMPLES + "\n".join(f"  {scenario.name}" for scenario in SCENARIOS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("scenario", nargs="*", help="which to run (default: all)")
    add("--rounds", type=int, metavar="N", help="rounds of each (default: 5)")
    add("--seconds", type=float, metavar="S", help="time for one measurement (default: 1)")
    add("--quick", action="store_true", help="1 round of 0.3 s, without the largest sizes")
    add("--only", choices=[broker.name for broker in BROKERS], help="leave the others out")
    add("--pure", action="store_true", help="measure rtmb as pure Python too")
    add(
        "--server",
        type=running_server,
        action="append",
        default=[],
        metavar="NAME=HOST:PORT",
        help="measure a running server, in place of the one of that name if there is one",
    )
    add("--json", type=Path, metavar="FILE", help="write every reading there too")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.seconds = options.seconds or (0.3 if options.quick else 1.0)
    for pattern in options.scenario:
        if not any(fnmatchcase(scenario.name, pattern) for scenario in SCENARIOS):
            parser.error(f"no scenario is called {pattern!r}; --help lists them")
    return options


def selected_scenarios(options: argparse.Namespace) -> list[Scenario]:
    patterns = options.scenario or ["*"]
    return [
        scenario
        for scenario in SCENARIOS
        if scenario.name in patterns
        or (
            any(fnmatchcase(scenario.name, pattern) for pattern in patterns)
            and not (options.quick and scenario.slow)
        )
    ]


def selected_brokers(options: argparse.Namespace) -> list[Broker]:
    given = {broker.name: broker for broker in options.server}
    wanted = [options.only] if options.only else [broker.name for broker in BROKERS]
    if not (options.pure or options.only):
        wanted.remove(PURE.name)
    usual = [broker for broker in BROKERS if broker.name in wanted]
    chosen = [given.pop(broker.name, broker) for broker in usual]
    return [*given.values(), *chosen]  # nats-server stays last: it is the measure


def measure(scenario: Scenario, broker: Broker, shared: Client, seconds: float) -> list[Reading]:
    if not scenario.fresh:
        return list(scenario.run(shared))
    with broker.running() as server, ExitStack() as stack:
        client = Client(server, seconds)
        stack.callback(client.close)
        return list(scenario.run(client))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # the servers inherit it
    gc.disable()  # a collection would be taken for the server's latency
    brokers = selected_brokers(options)
    report = Report([broker.name for broker in brokers])
    with ExitStack() as stack:
        clients: dict[str, Client] = {}
        for broker in brokers:
            server = stack.enter_context(broker.running())
            clients[broker.name] = client = Client(server, options.seconds)
            stack.callback(client.close)
            report.versions[broker.name] = client.connections(1)[0].info["version"]
        for scenario in selected_scenarios(options):
            try:
                scenario.prepare(list(clients.values()))
            except (BenchmarkError, OSError) as error:
                report.failures.append(f"{scenario.name}, before its first round: {error}")
                for client in clients.values():
                    client.close()
                continue
            for turn in range(options.rounds):
                for broker in brokers:
                    where = f"{scenario.name}, round {turn + 1}, {broker.name}"
                    print(where, file=sys.stderr)
                    client = clients[broker.name]
                    try:
                        readings = measure(scenario, broker, client, options.seconds)
                        report.add(broker.name, turn, readings)
                    except (BenchmarkError, OSError) as error:
                        report.failures.append(f"{where}: {error}")
                        client.close()  # whatever is still on its way would spoil the next count
    print(report.markdown())
    if options.json:
        options.json.write_text(report.json())
    return 1 if report.failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BenchmarkError, OSError) as error:
        sys.exit(f"benchmarks: {error}")
