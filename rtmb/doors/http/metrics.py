"""What Prometheus scrapes, and what has to be measured for it while the broker runs.

Counts are kept by the hub and by `rtmb.announcements`: `Collector` reads them when asked. Only what
nobody counts is measured here, by `Pulse`, a few times a second: how late the event loop is, how
long a message waits for its turn, the share of a processor that is used, and the totals of the last
minutes. No message costs anything more for it.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector as PrometheusCollector
from twisted.application.service import Service
from twisted.internet.interfaces import IDelayedCall

from rtmb import __version__
from rtmb.announcements import DOOR, EVENTS
from rtmb.core.history import MESSAGE_COST, TOPIC_COST, History
from rtmb.core.subjects import Counters

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: Seconds between two measurements.
BEAT = 0.5
#: Totals of so many seconds are kept: what the page's charts show when it is opened.
PAST = 180
#: From what an idle event loop takes to what people call broken.
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
#: What a probe asks the hub to match. Nobody can have subscribed to it: it has a wildcard.
_PROBE = EVENTS + "probe.*"


def memory() -> int:
    """The memory that this process has, in bytes."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:  # no Linux: the most it ever had is the best there is to know
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def pending(client: Any) -> int:
    """Bytes that wait for a client to read, where its door knows."""
    holder = client if hasattr(client, "pending") else getattr(client, "outbox", None)
    return int(getattr(holder, "pending", 0))


def by_door(broker: Broker) -> dict[str, Counters]:
    """Counts of each door. What no client published, the broker did: that is the door `system`."""
    found = broker.hub.by_door()
    rest = Counters()
    rest.add(broker.hub.totals)
    for counters in found.values():
        rest.in_msgs -= counters.in_msgs
        rest.in_bytes -= counters.in_bytes
    rest.out_msgs = rest.out_bytes = 0
    found.setdefault(DOOR, Counters()).add(rest)
    return found


def held(history: History) -> tuple[int, int]:
    """Messages kept and about how many bytes they take: of each topic the mean size is known."""
    messages = size = 0
    for topic in history:
        kept = len(topic.ring)
        messages += kept
        size += TOPIC_COST + kept * MESSAGE_COST
        if topic.messages:
            size += kept * topic.bytes // topic.messages
    return messages, size


class Pulse(Service):
    """Measures the event loop while the broker runs."""

    def __init__(self, broker: Broker, registry: CollectorRegistry) -> None:
        self._reactor = broker.reactor
        self._hub = broker.hub
        #: When the broker started.
        self.started = self._hub.clock()
        #: Percent of one processor, of late.
        self.cpu = 0.0
        self._busy = (self.started, time.process_time())
        #: When, and messages in, messages out, bytes in, bytes out, about once a second.
        self.past: deque[tuple[float, int, int, int, int]] = deque(maxlen=PAST + 1)
        self._lag = Histogram(
            "rtmb_event_loop_lag_seconds",
            "How much later than asked for the event loop ran a timer",
            registry=registry,
            buckets=BUCKETS,
        )
        self._latency = Histogram(
            "rtmb_delivery_latency_seconds",
            "From a probe being ready to be read to its being matched and the output flushed",
            registry=registry,
            buckets=BUCKETS,
        )
        self._due = 0.0
        self._calls: list[IDelayedCall] = []

    def startService(self) -> None:
        super().startService()
        self.started = self._hub.clock()
        self._wait()

    def stopService(self) -> None:
        super().stopService()
        for call in self._calls:
            if call.active():
                call.cancel()
        self._calls = []

    def _wait(self) -> None:
        self._due = self._hub.clock() + BEAT
        self._calls = [self._reactor.callLater(BEAT, self._beat)]

    def _beat(self) -> None:
        now = self._hub.clock()
        self._lag.observe(max(0.0, now - self._due))
        self._measure(now)
        self._wait()
        self._calls.append(self._reactor.callLater(0, self._probe, now))

    def _measure(self, now: float) -> None:
        (then, before), busy = self._busy, time.process_time()
        if now - then < 1.0:
            return
        self.cpu = round(100 * (busy - before) / (now - then), 1)
        self._busy = (now, busy)
        total = self._hub.totals
        self.past.append((now, total.in_msgs, total.out_msgs, total.in_bytes, total.out_bytes))

    def _probe(self, ready: float) -> None:
        """Do what is done for a message: it waited one turn of the loop, as bytes on a socket
        do, it is matched, and whatever is collected is sent. It is not counted nor kept."""
        self._hub.trie.search(_PROBE)
        self._hub.flush()
        self._latency.observe(max(0.0, self._hub.clock() - ready))


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
        doors = by_door(self._broker)
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
        hub, system = self._broker.hub, self._broker.system
        here: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for client in hub.clients.values():
            here[client.door] += 1
            waiting[client.door] += pending(client)
        for name, what, counts in (
            ("rtmb_connections", "Clients connected", here),
            ("rtmb_pending_bytes", "Bytes that wait for clients to read", waiting),
        ):
            gauge = GaugeMetricFamily(name, what, labels=["door"])
            for door in sorted({*counts, *system.connections}):
                gauge.add_metric([door], counts[door])
            yield gauge
        yield GaugeMetricFamily("rtmb_subscriptions", "Subscriptions", value=len(hub.trie))
        opened = CounterMetricFamily(
            "rtmb_connections_opened", "Clients that came", labels=["door"]
        )
        for door, count in sorted(system.connections.items()):
            opened.add_metric([door], count)
        yield opened
        slow = CounterMetricFamily(
            "rtmb_slow_consumers",
            "Clients that did not keep up, by what was done about it",
            labels=["door", "policy"],
        )
        for (door, policy), count in sorted(system.slow_consumers.items()):
            slow.add_metric([door, policy], count)
        yield slow
        drops = CounterMetricFamily(
            "rtmb_dropped_messages",
            "Messages left out for clients that did not keep up",
            labels=["door"],
        )
        for door, count in sorted(system.drops.items()):
            drops.add_metric([door], count)
        yield drops

    def _memory(self) -> Iterator[Metric]:
        history = self._broker.hub.history
        messages, size = held(history)
        for name, what, value in (
            ("topics", "Subjects that are remembered", len(history)),
            ("messages", "Messages that are remembered", messages),
            ("bytes", "Memory they take, about", size),
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


def start(broker: Broker) -> tuple[CollectorRegistry, Pulse]:
    """Everything to scrape, and what measures as long as the broker runs."""
    registry = CollectorRegistry()
    registry.register(Collector(broker))
    ProcessCollector(registry=registry)
    pulse = Pulse(broker, registry)
    pulse.setName("pulse")
    pulse.setServiceParent(broker)
    return registry, pulse
