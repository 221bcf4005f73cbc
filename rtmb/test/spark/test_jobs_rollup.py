"""The roll-up job: its arithmetic against plain Python, and what subscribers see."""

from __future__ import annotations

import json
import random
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, timedelta
from typing import Any

import pytest

from rtmb.test.support.processes import RawClient
from rtmb.test.support.spark_jobs import (
    NINE,
    BrokerJobCase,
    JobCase,
    row,
)

pytestmark = pytest.mark.slow


def nearest_rank(values: Sequence[float], quantile: float) -> float:
    """The least value that at least this part of all is not above: what percentile_approx gives."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(len(ordered) * quantile * 1e9) // 10**9) - 1)]


class RollupTests(JobCase):
    def test_numbers(self) -> None:
        from rtmb.spark.jobs.rollup import Rollup, windows

        dice = random.Random(5)
        rows, expected = [], defaultdict(list)
        for i in range(600):
            when = NINE + timedelta(seconds=i * 0.7)
            subject = dice.choice(["weather.oslo", "weather.rome"])
            value = dice.gauss(10, 4)
            rows.append(row(i, subject, {"t": value, "wind": {"speed": i}}, when))
            minute = when.replace(second=0, microsecond=0)
            expected[subject, minute].append((value, i))
        noise: list[Any] = [b"\xff\xfe", b"no json", {"t": None}, {"t": "warm"}, {"other": 1}]
        rows += [row(0, "weather.oslo", value, NINE) for value in noise]
        wanted = Rollup(("t", "wind.speed"), quantiles=(0.5, 0.99))
        found = windows(self.frame(rows), wanted).collect()
        self.assertEqual(len(found), len(expected))
        for r in found:
            minute = r.start.astimezone(UTC)
            self.assertEqual(r.end - r.start, timedelta(minutes=1))
            ts, speeds = zip(*expected[r.key, minute], strict=True)
            others = len(noise) if (r.key, minute) == ("weather.oslo", NINE) else 0
            self.assertEqual(r["count"], len(ts) + others)
            self.assertAlmostEqual(r.rate, (len(ts) + others) / 60)
            self.assertEqual((r.t["count"], r.t.min, r.t.max), (len(ts), min(ts), max(ts)))
            self.assertAlmostEqual(r.t.mean, statistics.fmean(ts))
            self.assertEqual(r.t.p50, nearest_rank(ts, 0.5))
            self.assertEqual(r.t.p99, nearest_rank(ts, 0.99))
            self.assertEqual((r.wind_speed.min, r.wind_speed.max), (min(speeds), max(speeds)))

    def test_by_field_time_of_the_payload_and_sliding(self) -> None:
        from rtmb.spark.jobs.rollup import Rollup, windows

        rows = [
            row(i, "s", {"who": "ab"[i % 2], "at": NINE.timestamp() + i, "v": i}, NINE)
            for i in range(60)
        ]
        wanted = Rollup(("v",), "who", "20 seconds", "10 seconds", time_field="at")
        found = {
            (r.key, int(r.start.timestamp() - NINE.timestamp())): (r["count"], r.v.max)
            for r in windows(self.frame(rows), wanted).collect()
        }
        self.assertEqual(found["a", 10], (10, 28.0))
        self.assertEqual(found["b", 10], (10, 29.0))
        self.assertEqual(found["a", -10], (5, 8.0))
        self.assertEqual(len(found), 14)

    def test_what_cannot_be(self) -> None:
        from rtmb.spark.jobs.rollup import Rollup

        self.assertRaises(ValueError, Rollup, ("a",), window="1 month")
        self.assertRaises(ValueError, Rollup, ("a",), window="0 seconds")
        self.assertRaises(ValueError, Rollup, ("a",), window="1 second", slide="2 seconds")
        self.assertRaises(ValueError, Rollup, ("a.b", "a_b"))
        self.assertRaises(ValueError, Rollup, ("count",))
        self.assertRaises(ValueError, Rollup, ("a",), quantiles=(50.0,))

    def test_late_data(self) -> None:
        """A message within the bound is counted, one beyond it is not; each window is told once."""
        from rtmb.spark.jobs import rollup

        def at(seq: int, second: float) -> Any:
            return row(seq, "s", {"v": seq}, NINE + timedelta(seconds=second))

        stream = self.stream(
            [at(1, 5), at(2, 65)],
            [at(3, 50)],  # 15 s behind the newest: in time
            [at(4, 200)],
            [at(6, 190)],
            [at(5, 55)],  # the first minute was closed a batch ago
            [at(7, 1000)],
        )
        wanted = rollup.Rollup(("v",), late="30 seconds")
        path = str(self.folder / "rollup")
        rollup.to_parquet(self.spark, stream, wanted, path, once=True).awaitTermination()
        found = self.spark.read.parquet(path + "/windows").collect()
        counts = {int(r.start.timestamp() - NINE.timestamp()): (r["count"], r.v.max) for r in found}
        self.assertEqual(counts, {0: (2, 3.0), 60: (1, 2.0), 180: (2, 6.0)})
        self.assertEqual(len(found), 3)

    def test_subjects_of_any_key(self) -> None:
        from rtmb.spark.jobs.rollup import as_messages

        frame = self.spark.createDataFrame(
            [(NINE, k, 1) for k in ("a.b", "new york", "", "a..b", ".x.", "a*", "!system/e")],
            "start timestamp, key string, count long",
        )
        found = as_messages(frame, "r").collect()
        self.assertEqual(
            [r.subject for r in found],
            ["r.a.b", "r.new_york", "r._", "r.a._.b", "r._.x._", "r.a_", "r.!system/e"],
        )
        self.assertEqual(len({r.id for r in found}), 7)
        told = json.loads(bytes(found[0].data))
        self.assertEqual(told, {"start": "2026-05-01T09:58:00.000Z", "key": "a.b", "count": 1})


class LiveRollupTests(BrokerJobCase):
    def test_rollup_is_seen_by_subscribers(self) -> None:
        from rtmb.spark.jobs import rollup

        with RawClient(self.broker.port) as client:
            client.connect()
            client.subscribe("rollup.>")
            self.publish(60)
            wanted = rollup.Rollup(("n",), window="1 hour")
            for _ in range(2):  # the second run has nothing new to tell
                for query in rollup.start(
                    self.spark, self.there, "flow.>", wanted, str(self.folder / "r"), once=True
                ):
                    query.awaitTermination()
            came = client.settle().decode()
        told = [json.loads(t) for t in re.findall(r"^\{.*\}$", came.replace("\r", ""), re.M)]
        self.assertIn("HMSG rollup.flow.a 1 ", came)
        self.assertEqual(sum(t["count"] for t in told), 60)
        self.assertEqual(max(t["n"]["max"] for t in told), 59)
        self.assertEqual({t["key"] for t in told}, {"flow.a"})

    def test_rollup_never_of_itself(self) -> None:
        from rtmb.spark.jobs import rollup

        for subject in (">", "flow.a,rollup.*"):
            with self.assertRaisesRegex(ValueError, "would roll up itself"):
                rollup.start(self.spark, self.there, subject, rollup.Rollup(), "nowhere")
