"""``/metrics``: what Prometheus scrapes.

Counts are kept by the hub, the clients and `rtmb.announcements`, and measured by `rtmb.pulse`:
`Collector` reads them when asked.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector as PrometheusCollector
from twisted.web.server import Request

from rtmb import __version__
from rtmb.announcements import DOOR
from rtmb.doors.http.kit import Endpoint, header
from rtmb.doors.http.operations import operation

if TYPE_CHECKING:
    from rtmb.broker import Broker


def memory() -> int:
    """The memory that this process has, in bytes."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:  # no Linux: the most it ever had is the best there is to know
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


class Collector(PrometheusCollector):
    """Reads the hub when it is scraped."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "rtmb",
            "Which broker this is",
            {
                "version": __version__,
                "name": str(self._broker.name),
                "server_id": self._broker.server_id,
            },
        )
        yield from self._traffic()
        yield from self._clients()
        yield from self._memory()

    def _traffic(self) -> Iterator[Metric]:
        # What the broker publishes of itself is a door of its own.
        doors = {**self._broker.clients.by_door(), DOOR: self._broker.announcements.published}
        for name, attribute, what in (
            ("rtmb_messages_in", "in_msgs", "Messages published"),
            ("rtmb_messages_out", "out_msgs", "Messages delivered"),
            ("rtmb_bytes_in", "in_bytes", "Bytes of payload and headers published"),
            ("rtmb_bytes_out", "out_bytes", "Bytes of payload and headers delivered"),
        ):
            family = CounterMetricFamily(name, what, labels=["door"])
            for door, counters in sorted(doors.items()):
                family.add_metric([door], getattr(counters, attribute))
            yield family

    def _clients(self) -> Iterator[Metric]:
        hub, announced = self._broker.hub, self._broker.announcements
        here: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for client in self._broker.clients:
            here[client.door] += 1
            waiting[client.door] += client.pending
        for name, what, counts in (
            ("rtmb_connections", "Clients connected", here),
            ("rtmb_pending_bytes", "Bytes that wait for clients to read", waiting),
        ):
            gauge = GaugeMetricFamily(name, what, labels=["door"])
            for door in sorted({*counts, *announced.connections}):
                gauge.add_metric([door], counts[door])
            yield gauge
        yield GaugeMetricFamily("rtmb_subscriptions", "Subscriptions", value=len(hub.routing))
        opened = CounterMetricFamily(
            "rtmb_connections_opened", "Clients that came", labels=["door"]
        )
        for door, count in sorted(announced.connections.items()):
            opened.add_metric([door], count)
        yield opened
        slow = CounterMetricFamily(
            "rtmb_slow_consumers",
            "Clients that did not keep up, by what was done about it",
            labels=["door", "policy"],
        )
        for (door, policy), count in sorted(announced.slow_consumers.items()):
            slow.add_metric([door, policy], count)
        yield slow
        drops = CounterMetricFamily(
            "rtmb_dropped_messages",
            "Messages left out for clients that did not keep up",
            labels=["door"],
        )
        for door, count in sorted(announced.drops.items()):
            drops.add_metric([door], count)
        yield drops

    def _memory(self) -> Iterator[Metric]:
        history = self._broker.hub.history
        messages = sum(topic.kept for topic in history)
        for name, what, value in (
            ("topics", "Subjects that are remembered", len(history)),
            ("messages", "Messages that are remembered", messages),
            ("bytes", "Memory they take, about", history.held),
            ("budget_bytes", "Memory they may take", history.budget),
        ):
            yield GaugeMetricFamily(f"rtmb_history_{name}", what, value=value)
        journal = self._broker.hub.journal
        if journal is None:
            return
        stats = journal.stats()
        for name, what in (
            ("messages", "Messages in the journal"),
            ("bytes", "Memory they take"),
            ("max_bytes", "Memory they may take"),
            ("consumers", "Consumers that hold a place in the journal"),
            ("largest_lag", "Messages that the consumer furthest behind has still to read"),
            ("largest_lag_seconds", "Age of the next message of the consumer furthest behind"),
        ):
            yield GaugeMetricFamily(f"rtmb_journal_{name}", what, value=stats[name])
        yield CounterMetricFamily(
            "rtmb_journal_overwritten", "Messages that made room", value=stats["overwritten"]
        )
        for name, what in (
            ("lag", "Messages that a consumer has still to read"),
            ("lag_seconds", "Age of the next message that a consumer will read"),
            ("lost", "Messages overwritten before a consumer read them"),
            ("time_left", "Seconds until a consumer loses messages at the present rates"),
            (
                "dead_letters",
                "Messages that a consumer could not use and published as dead letters",
            ),
        ):
            gauge = GaugeMetricFamily(
                f"rtmb_journal_consumer_{name}", what, labels=["consumer", "user"]
            )
            for lease in stats["leases"]:
                if lease[name] is not None:
                    gauge.add_metric([lease["consumer"], lease["user"]], lease[name])
            yield gauge


class Metrics(Endpoint):
    """``/metrics``, in the form that the scraper asks for."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._registry = CollectorRegistry()
        self._registry.register(Collector(broker))
        self._registry.register(broker.pulse.lag)
        self._registry.register(broker.pulse.latency)
        ProcessCollector(registry=self._registry)

    @operation("What Prometheus scrapes", answer="text/plain")
    def render_GET(self, request: Request) -> bytes:
        encode, kind = choose_encoder(header(request, b"accept") or "")
        request.setHeader(b"content-type", kind.encode())
        return encode(self._registry)
