"""Tests for `rtmb.doors.http.metrics`: what Prometheus reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from rtmb.pulse import BEAT
from rtmb.test.support.monitoring import MonitorCase, Plain


class MetricsTests(MonitorCase):
    def scrape(self) -> dict[tuple[str, ...], float]:
        """Samples by name and the values of their labels."""
        text = self.ask("/metrics").body.decode()
        return {
            (s.name, *(v for _, v in sorted(s.labels.items()))): s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
        }

    def test_all_that_is_promised(self) -> None:
        reader, writer = self.memory.connect(b"SUB a 1\r\n"), self.memory.connect()
        self.pub(writer, "a", b"12345", times=4)
        system = self.memory.broker.announcements
        system.slow(reader.protocol, "close", "a", 1)
        system.dropped(reader.protocol, 3, ["a"])
        found = self.scrape()
        self.assertEqual(found["rtmb_messages_in_total", "nats"], 4)
        self.assertEqual(found["rtmb_messages_out_total", "nats"], 4)
        self.assertEqual(found["rtmb_bytes_in_total", "nats"], 20)
        self.assertEqual(found["rtmb_bytes_out_total", "nats"], 20)
        self.assertEqual(found["rtmb_connections", "nats"], 2)
        self.assertEqual(found["rtmb_connections_opened_total", "nats"], 2)
        self.assertEqual(found["rtmb_subscriptions",], 1)
        self.assertEqual(found["rtmb_slow_consumers_total", "nats", "close"], 1)
        self.assertEqual(found["rtmb_dropped_messages_total", "nats"], 3)
        self.assertEqual((found["rtmb_history_topics",], found["rtmb_history_messages",]), (1, 4))
        self.assertGreater(found["rtmb_history_bytes",], 20)
        self.assertGreater(found["process_resident_memory_bytes",], 1 << 20)
        self.assertIn(("process_cpu_seconds_total",), found)

    def test_what_the_broker_says_itself_is_a_door(self) -> None:
        """What it says is not in the totals of /varz: those are of what users publish."""
        self.memory.connect(b"SUB !system/events/connect 1\r\n")
        self.memory.connect()
        self.memory.clock.advance(0)
        found = self.scrape()
        self.assertEqual(found["rtmb_messages_in_total", "system"], 2)
        self.pub(self.memory.connect(), "a", times=3)
        self.assertEqual(self.get("/varz")["in_msgs"], 3)

    def test_event_loop_lag(self) -> None:
        self.memory.clock.advance(BEAT)
        self.memory.clock.advance(BEAT + 0.04)
        found = self.scrape()
        self.assertEqual(found["rtmb_event_loop_lag_seconds_count",], 2)
        self.assertAlmostEqual(found["rtmb_event_loop_lag_seconds_sum",], 0.04, 6)
        self.assertEqual(found["rtmb_event_loop_lag_seconds_bucket", "0.0001"], 1)
        self.assertEqual(found["rtmb_event_loop_lag_seconds_bucket", "0.05"], 2)

    def test_delivery_latency(self) -> None:
        """The probe waits for its turn and for what is sent before it."""
        slow = Plain(self.broker)
        slow.flush = self.three_milliseconds  # type: ignore[method-assign]
        self.hub.wake(slow)
        self.memory.clock.advance(BEAT)
        found = self.scrape()
        self.assertEqual(found["rtmb_delivery_latency_seconds_count",], 1)
        self.assertAlmostEqual(found["rtmb_delivery_latency_seconds_sum",], 0.003, 6)
        self.assertEqual(self.get("/varz")["in_msgs"], 0, "a probe is no message")

    def three_milliseconds(self) -> bool:
        self.memory.clock.rightNow += 0.003
        return False

    def test_the_pulse_ends_with_the_broker(self) -> None:
        pulse = self.memory.broker.getServiceNamed("pulse")
        before = len(self.memory.clock.getDelayedCalls())
        pulse.stopService()
        self.assertEqual(len(self.memory.clock.getDelayedCalls()), before - 1)
        pulse.startService()

    def test_forms(self) -> None:
        plain = self.ask("/metrics")
        self.assertTrue(plain.headers["content-type"].startswith("text/plain; version="))
        modern = self.ask("/metrics", headers="Accept: application/openmetrics-text\r\n")
        self.assertTrue(modern.headers["content-type"].startswith("application/openmetrics-text"))
        self.assertTrue(modern.body.endswith(b"# EOF\n"))

    def test_journal(self) -> None:
        self.start(journal=("a.>",))
        self.pub(self.memory.connect(), "a.b", times=3)
        assert self.memory.broker.journal is not None
        self.memory.broker.journal.lease("q", 2, 60.0)
        found = self.scrape()
        self.assertEqual(found["rtmb_journal_messages",], 3)
        self.assertEqual(found["rtmb_journal_overwritten_total",], 0)
        self.assertGreater(found["rtmb_journal_bytes",], 0)
        self.assertEqual(found["rtmb_journal_consumer_lag", "q", ""], 2)
        self.assertIn(("rtmb_journal_consumer_lag_seconds", "q", ""), found)
