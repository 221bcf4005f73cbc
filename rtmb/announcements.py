"""What the broker says of itself: in the log, in counts, and on subjects that anyone may follow.

Doors tell it who comes and goes and who cannot keep up. Each of these is logged, counted and
published as JSON on ``!system/events/…``; how much passes is published on ``!system/metrics/…``
every so often. docs/operations.md lists the subjects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from twisted.application.service import Service
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from rtmb.clients import Clients
from rtmb.core.counters import Counters
from rtmb.core.hub import Hub
from rtmb.core.journal import Journal
from rtmb.core.leases import Lease
from rtmb.core.message import Message
from rtmb.interfaces import IClient

EVENTS = "!system/events/"
METRICS = "!system/metrics/"
#: The door that these messages come by.
DOOR = "system"
#: Events that may wait to be published: they go out a moment after they happen, many at once.
_MOST_WAITING = 10_000
#: Of the subjects that messages were dropped on, this many are told.
SHOWN = 10


class Announcements(Service):
    """The broker's own log, counts and subjects."""

    log = Logger()

    def __init__(self, hub: Hub, clients: Clients, reactor: IReactorTime, interval: float) -> None:
        self.hub = hub
        self._clients = clients
        self._reactor = reactor
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        #: How many clients came since the start, by door.
        self.connections: Counter[str] = Counter()
        #: Clients that could not keep up, by door and by what was done about it.
        self.slow_consumers: Counter[tuple[str, str]] = Counter()
        #: Messages that a door left out for clients that could not keep up, by door.
        self.drops: Counter[str] = Counter()
        self._interval = interval
        self._measuring = LoopingCall(self.measure)
        self._measuring.clock = reactor
        #: What was published here: it counts apart from what users publish.
        self.published = Counters()
        self._before: dict[str, tuple[int, int]] = {}
        self._measured = 0.0

    # What doors tell

    def connected(self, client: IClient) -> None:
        self.log.info("{name} connected", name=client.name)
        self.connections[client.door] += 1
        self.tell("connect", client)

    def disconnected(self, client: IClient, reason: str) -> None:
        self.log.info("{name} disconnected: {reason}", name=client.name, reason=reason)
        self.tell("disconnect", client, reason=reason)

    def slow(self, client: IClient, policy: str, subject: str, pending: int) -> None:
        """A client does not keep up, and `policy` ("close", "skip", …) is what is done about it."""
        self.slow_consumers[client.door, policy] += 1
        self.log.warn(
            "slow consumer: {name}: {pending} bytes waiting, at {subject}: {policy}",
            name=client.name,
            pending=pending,
            subject=subject,
            policy=policy,
        )
        self.tell("slow_consumer", client, policy=policy, subject=subject, pending_bytes=pending)

    def dropped(self, client: IClient, count: int, subjects: Iterable[str]) -> None:
        """Messages were left out for a client that does not keep up. Doors sum up: once a burst,
        not once a message."""
        self.count_drops(client, count)
        self.tell_drops(client, count, subjects)

    def count_drops(self, client: IClient, count: int) -> None:
        """The half of `dropped` that may be called often: while a burst lasts."""
        self.drops[client.door] += count

    def tell_drops(self, client: IClient, count: int, subjects: Iterable[str]) -> None:
        """The other half, for when the burst is over."""
        names = sorted(subjects)[:SHOWN]
        self.log.warn(
            "dropped {count} messages for {name}, on {subjects}",
            count=count,
            name=client.name,
            subjects=", ".join(names),
        )
        self.tell("drop", client, count=count, subjects=names)

    def tell(self, event: str, client: IClient | None = None, **facts: Any) -> None:
        """Publish an event. Not at once: doors call this from the middle of a delivery."""
        if client is not None:
            facts = {"door": client.door, "client": client.name, **facts}
        if not self._waiting:
            self._reactor.callLater(0, self._publish_events)
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((event, facts))

    def about_to_be_lost(self, journal: Journal, lease: Lease) -> None:
        """A consumer of the journal is about to lose messages that it has not read."""
        lag = journal.lag(lease)
        when = "" if lag.time_left is None else f" in {lag.time_left:.0f} s at this rate"
        self.log.warn(
            "journal: {consumer} is {lag} messages ({lag_seconds} s) behind, and what it has not "
            "read is about to be overwritten{when}; see --journal-bytes and --journal-messages",
            consumer=lease.consumer,
            when=when,
            **lag._asdict(),
        )
        self.tell(
            "journal_lag",
            consumer=lease.consumer,
            position=lease.position,
            first=journal.first,
            next=journal.next,
            **lag._asdict(),
        )

    def _publish_events(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event, facts in waiting:
            self._publish(EVENTS + event, {"event": event, "time": self.hub.clock(), **facts})
        self.hub.flush()

    def _publish(self, subject: str, value: Any) -> None:
        message = Message(subject, value=value, door=DOOR)
        self.published.in_msgs += 1
        self.published.in_bytes += message.size
        self.hub.deliver(message)

    # What it measures

    def startService(self) -> None:
        super().startService()
        self._before, self._measured = self._now(), self.hub.clock()
        self._measuring.start(self._interval, now=False)

    def stopService(self) -> None:
        super().stopService()
        if self._measuring.running:
            self._measuring.stop()

    def _now(self) -> dict[str, tuple[int, int]]:
        """Commands taken and messages sent so far, by door, and of all under an empty name."""
        doors = {d: c for d, c in self._clients.by_door().items() if d != DOOR}
        total = Counters()
        for counters in doors.values():
            total.add(counters)
        return {
            door: (c.in_msgs + c.changes, c.out_msgs) for door, c in {**doors, "": total}.items()
        }

    def measure(self) -> None:
        """Publish how much passed since the last time."""
        here = Counter(client.door for client in self._clients)
        slow: Counter[str] = Counter()
        for (door, _), count in self.slow_consumers.items():
            slow[door] += count
        time = self.hub.clock()
        elapsed = max(time - self._measured, 1e-9)  # the interval, or more on a busy day
        now, before = self._now(), self._before
        self._before, self._measured = now, time
        for door, (commands, sent) in now.items():
            old_commands, old_sent = before.get(door, (0, 0))

            def of(counts: Counter[str], door: str = door) -> int:
                return counts[door] if door else counts.total()

            values: dict[str, float] = {
                "connections": of(here),
                "connections_total": of(self.connections),
                "commands_per_second": (commands - old_commands) / elapsed,
                "commands_total": commands,
                "messages_sent_per_second": (sent - old_sent) / elapsed,
                "messages_sent_total": sent,
                "slow_consumers_total": of(slow),
                "drops_total": of(self.drops),
            }
            if not door:
                values["subscriptions"] = len(self.hub.routing)
            prefix = f"{METRICS}{door}/" if door else METRICS
            for name, value in values.items():
                self._publish(prefix + name, value)
        self.hub.flush()
