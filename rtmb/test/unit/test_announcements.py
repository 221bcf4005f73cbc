"""What the broker says of itself: events and metrics, on subjects that every door can follow."""

from __future__ import annotations

import json
from typing import Any

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from rtmb import announcements as system
from rtmb.test.support.memory import MemoryBroker, Peer


def messages(data: bytes) -> list[tuple[str, Any]]:
    """The subjects and values of ``MSG`` frames whose payloads are JSON."""
    found = []
    while data:
        line, _, data = data.partition(b"\r\n")
        subject, size = line.split()[1], int(line.split()[-1])
        found.append((subject.decode(), json.loads(data[:size])))
        data = data[size + 2 :]
    return found


class SystemTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.memory = MemoryBroker(metrics_interval=10.0)
        self.clock, self.system = self.memory.clock, self.memory.broker.announcements
        self.watcher = self.memory.library()
        self.clock.advance(0)

    def watch(self, *subjects: str) -> None:
        for sid, subject in enumerate(subjects):
            self.watcher.send(f"SUB {subject} {sid}\r\n".encode())

    def told(self) -> list[tuple[str, Any]]:
        self.clock.advance(0)
        return messages(self.watcher.heard())


class EventTests(SystemTestCase):
    def test_connects_and_disconnects(self) -> None:
        self.watch("!system/events/connect", "!system/events/disconnect")
        peer = self.memory.connect()
        ((subject, event),) = self.told()
        self.assertEqual(subject, "!system/events/connect")
        self.assertEqual((event["event"], event["door"]), ("connect", "nats"))
        self.assertEqual(event["client"], peer.protocol.name)
        self.assertEqual(event["time"], self.clock.seconds())
        peer.leave()
        ((subject, event),) = self.told()
        self.assertEqual(subject, "!system/events/disconnect")
        self.assertEqual(event["reason"], "client closed")

    def test_slow_consumers_and_drops(self) -> None:
        self.watch("!system/events/slow_consumer", "!system/events/drop")
        client = self.watcher.protocol
        self.system.slow(client, "skip", "orders", 1234)
        self.system.dropped(client, 70, {f"orders.{i:02}" for i in range(70)})
        (_, slow), (_, drop) = self.told()
        self.assertEqual(
            (slow["policy"], slow["subject"], slow["pending_bytes"]), ("skip", "orders", 1234)
        )
        self.assertEqual(drop["count"], 70)
        self.assertEqual(drop["subjects"], [f"orders.{i:02}" for i in range(system.SHOWN)])
        self.assertEqual(self.system.slow_consumers, {("nats", "skip"): 1})
        self.assertEqual(self.system.drops, {"nats": 70})

    def test_a_burst_is_counted_at_once_and_told_at_its_end(self) -> None:
        self.watch("!system/events/drop")
        client = self.watcher.protocol
        with capturedLogs() as logs:
            self.system.count_drops(client, 3)
            self.system.count_drops(client, 4)
        self.assertEqual((self.system.drops["nats"], logs, self.told()), (7, [], []))
        with capturedLogs() as logs:
            self.system.tell_drops(client, 7, ["a", "b"])
        self.assertEqual(self.system.drops["nats"], 7)
        self.assertEqual(formatEvent(logs[0]), f"dropped 7 messages for {client.name}, on a, b")
        self.assertEqual([event["count"] for _, event in self.told()], [7])

    def test_not_in_the_middle_of_a_delivery(self) -> None:
        """Doors tell of events while they deliver: what they tell is published afterwards."""
        self.watch("!system/events/connect")
        self.memory.connect()
        self.assertEqual(self.watcher.heard(), b"")
        self.assertEqual(len(self.told()), 1)

    def test_waiting_events_are_bounded(self) -> None:
        self.patch(system, "_MOST_WAITING", 3)
        self.watch("!system/events/x")
        for _ in range(10):
            self.system.tell("x")
        self.assertEqual(len(self.told()), 3)
        self.system.tell("x", more=1)
        self.assertEqual(self.told()[0][1]["more"], 1)

    def test_not_for_a_wildcard_that_means_all(self) -> None:
        self.watch(">", "*")
        self.memory.connect()
        self.assertEqual(self.told(), [])


class MetricTests(SystemTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.system.startService()
        self.addCleanup(self.system.stopService)

    def measured(self, seconds: float = 10.0) -> dict[str, Any]:
        """All metrics after a while, without their prefix."""
        self.clock.advance(seconds)
        start = system.METRICS
        topics = [t for t in self.memory.hub.history if t.name.startswith(start)]
        return {t.name.removeprefix(start): t.newest(1)[0].value for t in topics}

    def test_by_door_and_in_all(self) -> None:
        """Connections, commands and messages a second, totals; of each door and of all."""
        other: Peer = self.memory.library()
        self.watch("a")
        other.send(b"PUB a 1\r\n1\r\n" * 30)
        self.system.slow(other.protocol, "close", "a", 1)
        self.system.count_drops(other.protocol, 5)
        found = self.measured()
        expected = {
            "connections": 2,
            "connections_total": 2,
            "commands_per_second": 3.1,
            "commands_total": 31,
            "messages_sent_per_second": 3.0,
            "messages_sent_total": 30,
            "slow_consumers_total": 1,
            "drops_total": 5,
        }
        by_door = {f"nats/{name}": value for name, value in expected.items()}
        self.assertEqual(found, expected | by_door | {"subscriptions": 1})

    def test_a_second_time(self) -> None:
        """Rates are of the time since the last; totals go on; who left still counts in them."""
        other = self.memory.library()
        other.send(b"PUB a 1\r\n1\r\n" * 30)
        self.measured()
        other.leave()
        found = self.measured()
        self.assertEqual(found["nats/commands_per_second"], 0)
        self.assertEqual(found["nats/commands_total"], 30)
        self.assertEqual((found["connections"], found["connections_total"]), (1, 2))

    def test_a_late_measurement(self) -> None:
        """When the broker was too busy to measure in time, rates are still a second's."""
        self.measured()
        self.memory.library().send(b"PUB a 1\r\n1\r\n" * 60)
        self.assertEqual(self.measured(20.0)["nats/commands_per_second"], 3.0)

    def test_for_clients_of_the_text_door(self) -> None:
        """Followed by name, and asked for when they were published long ago."""
        self.watch("!system/metrics/connections")
        self.clock.advance(10)
        self.assertEqual(messages(self.watcher.heard()), [("!system/metrics/connections", 1)])
        late = self.memory.connect()
        said = late.send(b"SUB $LAST.!system/metrics/connections 9\r\n")
        self.assertEqual(said, b"MSG !system/metrics/connections 9 1\r\n1\r\n")

    def test_stops(self) -> None:
        self.system.stopService()
        self.assertEqual(self.measured(), {})
        self.system.startService()
        self.assertNotEqual(self.measured(), {})
