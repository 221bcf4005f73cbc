"""What is measured, all in one table."""

from __future__ import annotations

from functools import partial

from benchmarks.held import HALF_WILD, connections, memory, subscriptions
from benchmarks.latency import (
    find_half_load,
    latency,
    latency_half_load,
    latency_loaded,
    slow_consumer,
)
from benchmarks.load import HEADERS, Form
from benchmarks.measure import Scenario
from benchmarks.requests import requests
from benchmarks.servers import JOURNALED
from benchmarks.throughput import ONE_TO_ONE, Flow, churn, flow_scenario, in_turn, same, varied

SCENARIOS = (
    flow_scenario("1to1-16", Flow("1→1, 16 B", partial(same, 16))),
    flow_scenario("1to1-128", ONE_TO_ONE, cpu=True),
    flow_scenario("1to1-1k", Flow("1→1, 1 KiB", partial(same, 1024))),
    flow_scenario("1to1-16k", Flow("1→1, 16 KiB", partial(same, 16384))),
    flow_scenario("1to1-256k", Flow("1→1, 256 KiB", partial(same, 256 * 1024))),
    flow_scenario("1to1-sizes", Flow("1→1, 16 to 512 B", partial(varied, 1), pattern="bench.0")),
    flow_scenario(
        "in-turn-128",
        Flow("8 subjects in turn → wildcard, 128 B", partial(in_turn, 8, 128), pattern="bench.*"),
    ),
    flow_scenario("1to8-128", Flow("1→8, 128 B", partial(same, 128), subscribers=8)),
    flow_scenario("1to100-128", Flow("1→100, 128 B", partial(same, 128), subscribers=100)),
    flow_scenario("4to4-128", Flow("4→4, 128 B", partial(same, 128), 4, 4)),
    flow_scenario(
        "16to16-128",
        Flow("16→16, a subject each, 128 B", partial(same, 128), 16, 16, pairs=True),
    ),
    flow_scenario("pub-16", Flow("no subscriber, 16 B", partial(same, 16), subscribers=0)),
    flow_scenario("pub-128", Flow("no subscriber, 128 B", partial(same, 128), subscribers=0)),
    flow_scenario(
        "subjects-1000",
        Flow("1,000 subjects → wildcard, 16 to 512 B", partial(varied, 1000), pattern="bench.*"),
    ),
    *(
        flow_scenario(
            f"subjects-{count}",
            Flow(
                f"{count:,} subjects → wildcard, 16 to 512 B",
                partial(varied, count),
                pattern="bench.*",
            ),
            fresh=True,
        )
        for count in (20_000, 100_000)
    ),
    flow_scenario(
        "headers-128", Flow("1→1, headers, 128 B", partial(same, 128), form=Form(headers=HEADERS))
    ),
    flow_scenario(
        "permissions-128", Flow("1→1, permissions, 128 B", partial(same, 128), user=True)
    ),
    *(
        Scenario(f"request-{in_flight}", partial(requests, in_flight=in_flight))
        for in_flight in (1, 64)
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
        "queue-4-reply",
        Flow(
            "queue group of 4, with reply, 128 B",
            partial(same, 128),
            subscribers=4,
            queue="q",
            form=Form(reply=True),
        ),
    ),
    flow_scenario(
        "journal",
        Flow("1→1, 128 B, journaled", partial(same, 128, JOURNALED), pattern=JOURNALED),
    ),
    Scenario("latency", latency),
    Scenario("latency-loaded", latency_loaded),
    Scenario("latency-half-load", latency_half_load, prepare=find_half_load),
    Scenario("churn", churn),
    Scenario("memory", memory, fresh=True),
    *(
        Scenario(f"subscriptions-{count}", partial(subscriptions, count=count), True, slow)
        for count, slow in ((10, False), (1000, False), (100_000, True))
    ),
    Scenario(
        "subscriptions-1000000",
        partial(subscriptions, count=1_000_000, kind=HALF_WILD),
        fresh=True,
        slow=True,
    ),
    *(
        Scenario(f"connections-{count}", partial(connections, count=count), True, slow)
        for count, slow in ((10, False), (1000, False), (10_000, True))
    ),
    Scenario("slow-consumer", slow_consumer, fresh=True),
)
