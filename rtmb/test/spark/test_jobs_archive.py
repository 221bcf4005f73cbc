"""The archive job: each message once and whole, whoever is killed when."""

from __future__ import annotations

import random
import shutil
import time
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest

from rtmb.test.support.spark_jobs import (
    NINE,
    BrokerJobCase,
    Driver,
    JobCase,
    Publisher,
    Rows,
    row,
    seqs,
)
from rtmb.test.support.spark_session import until

pytestmark = pytest.mark.slow


class ArchiveTests(JobCase):
    def rows(self, count: int, first: int = 1, start: datetime = NINE) -> Rows:
        tokens = ["weather.oslo", "007.x", "!system/events/drop", "é.1"]
        return [
            row(first + i, tokens[i % 4], {"n": i}, start + timedelta(seconds=i))
            for i in range(count)
        ]

    def test_each_message_once_and_whole(self) -> None:
        rows = self.rows(200)
        archive = self.archive(rows[:80], rows[80:])
        found = archive.messages().orderBy("seq").collect()
        self.assertEqual(
            [tuple(r[:5]) for r in found],
            [(s, bytearray(d), h, p, n) for s, d, h, p, n, *_ in rows],
        )
        self.assertEqual([r.timestamp.astimezone(UTC) for r in found], [r[5] for r in rows])
        self.assertEqual({r.token for r in found}, {"weather", "007", "!system/events/drop", "é"})
        self.assertEqual(
            {(r.date, r.hour) for r in found}, {("2026-05-01", "09"), ("2026-05-01", "10")}
        )

    def test_hours_are_of_utc(self) -> None:
        from rtmb.spark.jobs.messages import placed

        zone = str(self.spark.conf.get("spark.sql.session.timeZone"))
        self.spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
        self.addCleanup(self.spark.conf.set, "spark.sql.session.timeZone", zone)
        before = datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
        found = placed(self.frame([row(1, "a.b", 1, NINE), row(2, "a", 1, before)])).collect()
        self.assertEqual(
            [(r.date, r.hour) for r in found], [("2026-05-01", "09"), ("1969-12-31", "23")]
        )

    def test_a_period(self) -> None:
        rows = self.rows(300)
        archive = self.archive(rows)
        since, until = NINE + timedelta(seconds=100), NINE + timedelta(seconds=140)
        self.assertEqual(seqs(archive.messages(since, until)), list(range(101, 141)))
        self.assertEqual(seqs(archive.messages(until=since)), list(range(1, 101)))
        archive.compact()
        self.assertEqual(seqs(archive.messages(since, until)), list(range(101, 141)))

    def test_compacting(self) -> None:
        """Fewer files, the same messages: before, after, and for one who reads meanwhile."""
        rows = self.rows(200)
        archive = self.archive(rows[:70], rows[70:140], rows[140:])
        before, reading = archive.snapshot(), archive.messages()
        self.assertEqual(archive.compact(), len(before.live))
        after = archive.snapshot()
        self.assertEqual(after.live, [])
        self.assertEqual(len(after.compact), 8)  # two hours, four tokens
        self.assertLess(len(after.compact), len(before.live))
        self.assertEqual(seqs(reading), list(range(1, 201)))
        self.assertEqual(seqs(archive.messages()), list(range(1, 201)))
        self.assertEqual(archive.compact(), 0)
        self.assertEqual(archive.clean(), 0)  # not yet: someone may be reading
        self.assertEqual(archive.clean(timedelta(0)), len(before.live))
        self.assertEqual(seqs(archive.messages()), list(range(1, 201)))

    def test_an_open_hour_is_left_alone(self) -> None:
        archive = self.archive(self.rows(200))
        at_ten = datetime(2026, 5, 1, 10, 6, tzinfo=UTC).timestamp()
        archive.compact(now=at_ten)
        found = archive.snapshot()
        self.assertEqual({name.split("/")[2] for name in found.live}, {"hour=10"})
        self.assertEqual({name.split("/")[2] for name in found.compact}, {"hour=09"})
        self.assertEqual(seqs(archive.messages()), list(range(1, 201)))

    def test_late_messages_of_a_compacted_hour(self) -> None:
        archive = self.archive(self.rows(100))
        archive.compact()
        archive.clean(timedelta(0))
        archive = self.archive(self.rows(50, first=101))
        self.assertEqual(seqs(archive.messages()), list(range(1, 151)))
        archive.compact()
        self.assertEqual(seqs(archive.messages()), list(range(1, 151)))
        self.assertEqual(archive.snapshot().live, [])

    def test_killed_while_compacting(self) -> None:
        """Files were written, but the word that they count was not."""
        archive = self.archive(self.rows(100))
        with mock.patch.object(type(archive.folder), "write", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, archive.compact)
        self.assertNotEqual(archive.folder.walk("compact"), [])
        self.assertEqual(seqs(archive.messages()), list(range(1, 101)))
        archive.compact()
        self.assertEqual(seqs(archive.messages()), list(range(1, 101)))
        names = [n for n in archive.folder.walk("compact") if n.endswith(".parquet")]
        self.assertEqual(sorted(names), sorted(archive.snapshot().compact))

    def test_what_a_killed_driver_left(self) -> None:
        archive = self.archive(self.rows(100))
        live = self.folder / "archive" / "live"
        some = next(live.glob("date=*/hour=*/token=*/*.parquet"))
        shutil.copy(some, some.with_name("part-orphan.parquet"))
        self.assertEqual(seqs(archive.messages()), list(range(1, 101)))

    def test_other_subjects_need_another_archive(self) -> None:
        from rtmb.spark.jobs.store import Archive, NoArchiveError

        archive = Archive(self.spark, str(self.folder / "other"))
        self.assertRaises(NoArchiveError, archive.messages)
        self.assertRaises(ValueError, archive.begin, "a b")
        archive.begin("a.>")
        archive.begin("a.>")
        self.assertIn("is of a.>, not of b", str(self.assertRaises(ValueError, archive.begin, "b")))


class LiveArchiveTests(BrokerJobCase):
    def test_killed_again_and_again(self) -> None:
        """The driver dies at any moment while messages flow: each is in the archive once."""
        place = self.folder / "archive"
        job = ["archive", "flow.>", "--archive", str(place), "--servers", self.broker.server]
        dice = random.Random()
        publisher = Publisher(self.broker.port)
        publisher.start()
        self.addCleanup(publisher.stop)
        batches = place / "checkpoint" / "offsets"

        def newest() -> int:
            return max((int(p.name) for p in batches.glob("*") if p.name.isdigit()), default=-1)

        for _ in range(3):
            with Driver(*job, "--every", "0.2 seconds") as driver:
                goal = newest() + dice.randint(1, 4)

                def there(driver: Driver = driver, goal: int = goal) -> bool:
                    self.assertIsNone(driver.process.poll(), driver.log())
                    return newest() >= goal

                until(there, f"batch {goal}")
                time.sleep(dice.uniform(0, 0.4))  # in whatever part of a batch
                driver.kill()
        count = publisher.stop()
        archive = self.run_archive()
        self.assertEqual(self.numbers(archive.messages()), list(range(count)))
        sql = "select count(*) c, count(distinct seq) d from messages"
        with Driver(
            "query", sql, "--archive", str(place), "--servers", self.broker.server, "--csv", "-"
        ) as q:
            self.assertIn(f"c,d\n{count},{count}\n", q.finish().replace("\r", ""))
