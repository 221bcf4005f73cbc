"""Tests for `rtmb.cli.top`: frames and numbers."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rtmb.cli.monitoring import Frame, MonitoringReading
from rtmb.cli.top import _bytes, _number


class FrameTests(SynchronousTestCase):
    def reading(self, time: float, messages: int, *clients: dict[str, Any]) -> MonitoringReading:
        topic = {"name": "a", "messages": messages}
        return MonitoringReading(time, {"in_msgs": messages}, list(clients), [topic])

    def test_rates_are_differences(self) -> None:
        before = self.reading(10.0, 100, {"cid": 1, "out_msgs": 50})
        now = self.reading(12.0, 300, {"cid": 1, "out_msgs": 60}, {"cid": 2, "out_msgs": 40})
        frame = Frame(now, before)
        self.assertEqual(frame.server_rate("in_msgs"), 100)
        self.assertEqual(frame.topic_rate({"name": "a", "messages": 300}), 100)
        # A newcomer began since: all that it has is new.
        self.assertEqual(frame.topic_rate({"name": "new", "messages": 8}), 4)
        self.assertEqual([c["cid"] for c in frame.clients("out")], [2, 1])
        self.assertEqual([c["cid"] for c in frame.clients("cid")], [1, 2])

    def test_a_restarted_server_counts_from_nothing(self) -> None:
        frame = Frame(self.reading(12.0, 3), self.reading(10.0, 300))
        self.assertEqual(frame.server_rate("in_msgs"), 0)

    def test_one_reading_has_no_rates(self) -> None:
        self.assertIsNone(Frame(self.reading(1.0, 3)).server_rate("in_msgs"))

    def test_numbers(self) -> None:
        shown = [_number(n) for n in (None, 0, 0.25, 12.3, 9999, 12345, 1.5e6, 2e9)]
        self.assertEqual(shown, ["-", "0", "0.2", "12", "9999", "12.3k", "1.5M", "2G"])
        self.assertEqual([_bytes(n) for n in (0, 2048, 3 << 20)], ["0 B", "2 KiB", "3 MiB"])
