"""The alert job: told once when a condition begins to hold and once when it ends."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.support.processes import need
from rtmb.test.support.spark_jobs import NINE, BrokerJobCase, has_module, row

pytestmark = pytest.mark.slow


class ChangesTests(SynchronousTestCase):
    """What is told, without Spark at work."""

    def setUp(self) -> None:
        need(self, has_module("pyspark"), "there is no pyspark")

    def told(self, text: str, active: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """Of windows such as ``a1``: key and whether the condition is met."""
        from rtmb.spark.jobs.alert import changes

        rows = [
            (word[1] == "1", {"key": word[0], "start": str(number)})
            for number, word in enumerate(text.split())
        ]
        told, now = changes(rows, active)
        return [f"{one.key} {one.state} {one.began}" for one in told], now

    def test_once_each(self) -> None:
        self.assertEqual(
            self.told("a0 a1 a1 a1 a0 a0 a1", {}),
            (["a begins 1", "a ends 1", "a begins 6"], {"a": "6"}),
        )

    def test_keys_are_on_their_own(self) -> None:
        self.assertEqual(
            self.told("a1 b0 b1 a0", {}), (["a begins 0", "b begins 2", "a ends 0"], {"b": "2"})
        )

    def test_it_goes_on_where_it_was(self) -> None:
        self.assertEqual(self.told("a1 b0", {"a": "x", "b": "y"}), (["b ends y"], {"a": "x"}))


class AlertTests(BrokerJobCase):
    def alert(self, when: str = "t.mean > 30") -> Any:
        from rtmb.spark.jobs.alert import Alert
        from rtmb.spark.jobs.rollup import Rollup

        return Alert("heat", when, Rollup(("t",), late="1 second"))

    def watch(self, *files: Any) -> None:
        """Let the job see some messages, each list as a batch, and end."""
        from rtmb.spark.jobs import alert
        from rtmb.spark.jobs.files import Folder

        folder = Folder(self.spark, str(self.folder / "alert"))
        stream = self.stream(*files)
        alert.write(
            self.spark, stream, self.alert(), self.there, folder, once=True
        ).awaitTermination()

    def heard(self) -> list[tuple[str, str, str]]:
        """Subject, state and beginning of each message, in order."""
        found = self.there.read(self.spark, subject="alert.>").orderBy("seq").collect()
        told = [(r.subject, json.loads(bytes(r.data))) for r in found]
        return [(subject, said["state"], said["began"][11:16]) for subject, said in told]

    def minutes(self, *values: float, first: int = 0, subject: str = "room.1") -> Any:
        """A message in each minute."""
        return [
            row(first + i, subject, {"t": value}, NINE + timedelta(minutes=first + i))
            for i, value in enumerate(values)
        ]

    def test_once_when_it_begins_and_once_when_it_ends(self) -> None:
        self.watch(self.minutes(20, 40, 41), self.minutes(42, 20, 20, 20, first=3))
        subject = "alert.heat.room.1"
        self.assertEqual(self.heard(), [(subject, "begins", "09:59"), (subject, "ends", "09:59")])
        # Another run goes on: what was told is not told again.
        self.watch(self.minutes(50, 51, 52, first=7))
        self.assertEqual(self.heard()[2:], [(subject, "begins", "10:05")])
        self.watch(self.minutes(53, 54, first=10))
        self.assertEqual(len(self.heard()), 3)

    def test_a_batch_done_again_tells_nothing_twice(self) -> None:
        """The driver was killed after it had published, before it had written that down."""
        self.watch(self.minutes(20, 40, 41, 42))
        self.assertEqual(len(self.heard()), 1)
        place = self.folder / "alert"
        newest = max(int(p.name) for p in (place / "checkpoint" / "commits").glob("[0-9]*"))
        for file in (
            place / "checkpoint" / "commits" / str(newest),
            place / "checkpoint" / "commits" / f".{newest}.crc",
            place / "state" / f"{newest}.json",
            place / "state" / f".{newest}.json.crc",
        ):
            file.unlink(missing_ok=True)
        self.watch(self.minutes(43, 44, first=4))
        self.assertEqual(len(self.heard()), 1)

    def test_a_condition_that_cannot_be(self) -> None:
        from pyspark.errors import AnalysisException

        from rtmb.spark.jobs import alert
        from rtmb.spark.jobs.files import Folder

        folder = Folder(self.spark, str(self.folder))
        stream = self.stream(self.minutes(1))
        error = self.assertRaises(
            AnalysisException, alert.write, self.spark, stream, self.alert("pressure > 1"),
            self.there, folder,
        )  # fmt: skip
        self.assertIn("pressure", str(error))

    def test_never_of_itself(self) -> None:
        from rtmb.spark.jobs import alert

        with self.assertRaisesRegex(ValueError, "would hear itself"):
            alert.start(self.spark, self.there, ">", self.alert(), "nowhere")
        self.assertRaises(ValueError, alert.Alert, "two tokens", "true")
