"""The archive job: each message once and whole, whoever is killed when."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
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


def some(count: int, first: int = 1, start: datetime = NINE) -> Rows:
    tokens = ["weather.oslo", "007.x", "!system/events/drop", "é.1"]
    return [
        row(first + i, tokens[i % 4], {"n": i}, start + timedelta(seconds=i)) for i in range(count)
    ]


class ArchiveTests(JobCase):
    def test_each_message_once_and_whole(self) -> None:
        rows = some(200)
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
        rows = some(300)
        archive = self.archive(rows)
        since, until = NINE + timedelta(seconds=100), NINE + timedelta(seconds=140)
        self.assertEqual(seqs(archive.messages(since, until)), list(range(101, 141)))
        self.assertEqual(seqs(archive.messages(until=since)), list(range(1, 101)))
        archive.compact()
        self.assertEqual(seqs(archive.messages(since, until)), list(range(101, 141)))

    def test_compacting(self) -> None:
        """Fewer files, the same messages: before, after, and for one who reads meanwhile."""
        rows = some(200)
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
        newest = [name for name in before.live if name.startswith("live/batch=2/")]
        # The newest batch stays, since its entry says how far the archive reaches.
        self.assertEqual(archive.clean(timedelta(0)), len(before.live) - len(newest))
        self.assertEqual(archive.clean(timedelta(0)), 0)
        kept = [name for name in archive.folder.walk("live") if "/token=" in name]
        self.assertEqual(kept, sorted(newest))
        self.assertEqual(len(archive.folder.names("days/2026-05-01")), 1)
        self.assertEqual(seqs(archive.messages()), list(range(1, 201)))

    def test_an_open_hour_is_left_alone(self) -> None:
        archive = self.archive(some(200))
        at_ten = datetime(2026, 5, 1, 10, 6, tzinfo=UTC).timestamp()
        archive.compact(now=at_ten)
        found = archive.snapshot()
        self.assertEqual({name.split("/")[3] for name in found.live}, {"hour=10"})
        self.assertEqual({name.split("/")[2] for name in found.compact}, {"hour=09"})
        self.assertEqual(seqs(archive.messages()), list(range(1, 201)))

    def test_late_messages_of_a_compacted_hour(self) -> None:
        archive = self.archive(some(100))
        archive.compact()
        archive.clean(timedelta(0))
        archive = self.archive(some(50, first=101))
        self.assertEqual(seqs(archive.messages()), list(range(1, 151)))
        archive.compact()
        self.assertEqual(seqs(archive.messages()), list(range(1, 151)))
        self.assertEqual(archive.snapshot().live, [])

    def test_killed_while_compacting(self) -> None:
        """Files were written, but the word that they count was not."""
        archive = self.archive(some(100))
        with mock.patch.object(type(archive.folder), "write", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, archive.compact)
        self.assertNotEqual(archive.folder.walk("compact"), [])
        self.assertEqual(seqs(archive.messages()), list(range(1, 101)))
        archive.compact()
        self.assertEqual(seqs(archive.messages()), list(range(1, 101)))
        names = [n for n in archive.folder.walk("compact") if n.endswith(".parquet")]
        self.assertEqual(sorted(names), sorted(archive.snapshot().compact))

    def test_what_a_killed_driver_left(self) -> None:
        archive = self.archive(some(100))
        live = self.folder / "archive" / "live"
        one = next(live.glob("batch=*/date=*/hour=*/token=*/*.parquet"))
        shutil.copy(one, one.with_name("part-orphan.parquet"))
        self.assertEqual(seqs(archive.messages()), list(range(1, 101)))

    def test_a_batch_is_taken_in_once(self) -> None:
        """Spark repeats a batch whose end it has not written down."""
        archive = self.archive(some(100))
        commits = self.folder / "archive" / "checkpoint" / "commits"
        (commits / "0").unlink()
        (commits / ".0.crc").unlink()
        archive = self.archive(some(100, first=101))
        self.assertEqual(seqs(archive.messages()), list(range(1, 201)))

    def test_another_checkpoint_is_refused(self) -> None:
        """Its batches have the same numbers, and would be taken for those that are there."""
        from pyspark.errors import StreamingQueryException

        self.archive(some(100))
        shutil.rmtree(self.folder / "archive" / "checkpoint")
        error = self.assertRaises(StreamingQueryException, self.archive, some(10, first=101))
        self.assertIn("begin a new archive at another path", str(error))

    def test_another_layout_is_refused(self) -> None:
        archive = self.archive(some(10))
        about = self.folder / "archive" / "about.json"
        about.write_text('{"subject": ">"}')
        (about.parent / ".about.json.crc").unlink()
        self.assertRaisesRegex(ValueError, "another version of rtmb", archive.messages)

    def test_other_subjects_need_another_archive(self) -> None:
        from rtmb.spark.jobs.store import Archive, NoArchiveError

        archive = Archive(self.spark, str(self.folder / "other"))
        self.assertRaises(NoArchiveError, archive.messages)
        self.assertRaises(ValueError, archive.begin, "a b")
        archive.begin("a.>")
        archive.begin("a.>")
        self.assertIn("is of a.>, not of b", str(self.assertRaises(ValueError, archive.begin, "b")))


class LakeTests(JobCase):
    def test_a_format_that_is_not_there(self) -> None:
        """Neither of the two comes with Spark: what to do is said."""
        from rtmb.spark.jobs.lake import LakeArchive

        for form in ("delta", "iceberg"):
            with self.assertRaisesRegex(ValueError, f"has no {form}: run it with spark-submit"):
                LakeArchive(self.spark, str(self.folder), form, "t")

    def test_a_table(self) -> None:
        """Written by the format's own sink: here that of a format which Spark itself has."""
        from rtmb.spark.jobs import archive
        from rtmb.spark.jobs.lake import LakeArchive, opened
        from rtmb.spark.jobs.store import Archive
        from rtmb.spark.jobs.streams import watch

        rows = some(200)
        place = (self.folder / "warehouse").as_uri()
        self.spark.sql(f"create database lake_test location '{place}'")
        self.addCleanup(self.spark.sql, "drop database lake_test cascade")
        table = "lake_test.messages"
        lake = LakeArchive(self.spark, str(self.folder / "lake"), "parquet", table)
        lake.begin(">")
        for _ in range(2):
            query = archive.write(lake, self.stream(rows[:120], rows[120:]), once=True)
            watch([archive.job(lake, query)])
            rows = []
        found = opened(self.spark, str(self.folder / "lake"))
        self.assertEqual(seqs(found.messages()), list(range(1, 201)))
        self.assertEqual(found.subject, ">")
        plain = Archive(self.spark, str(self.folder / "lake"))
        self.assertRaises(ValueError, plain.begin, ">")


class AgeTests(JobCase):
    """An archive of a year is looked at as often as one of a day."""

    #: The newest moment of the archives here.
    NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
    TOKENS = 10

    def aged(self, days: int) -> Any:
        """An archive as `days` of batches every ten seconds leave it: entries whose files are not
        there, but for those of the last minute, which are."""
        from rtmb.spark.jobs.store import Archive

        folder = self.folder / f"{days} days"
        archive = Archive(self.spark, str(folder))
        archive.begin(">")
        newest = days * 8640
        for back in range(days):
            date = (self.NOW - timedelta(days=back)).date().isoformat()
            hours = {f"{h:02}": {"time": 0.0, "batches": []} for h in range(24 if back else 10)}
            files = [
                f"compact/date={date}/hour={hour}/token=t{token}/part.parquet"
                for hour in hours
                for token in range(self.TOKENS)
            ]
            place = folder / "days" / date
            place.mkdir(parents=True)
            (place / "24.json").write_text(json.dumps({"files": files, "hours": hours}))
        place = folder / "batches"
        place.mkdir()
        for number in range(newest - 720, newest):
            moment = self.NOW - timedelta(seconds=10 * (newest - number))
            at = f"live/batch={number}/date={moment:%Y-%m-%d}/hour={moment:%H}"
            entry = {
                "time": moment.timestamp(),
                "query": "q",
                "position": {"epoch": "e", "seq": number},
                "files": [f"{at}/token=t{t}/part.parquet" for t in range(self.TOKENS)],
            }
            (place / f"{number}.json").write_text(json.dumps(entry))
        return archive

    def looks(self, archive: Any, call: Callable[[], object]) -> int:
        """How often something looks at the file system, in whatever way."""
        counts: Counter[str] = Counter()

        def counted(name: str) -> Any:
            real = getattr(archive.folder, name)

            def method(*args: Any) -> Any:
                counts[name] += 1
                return real(*args)

            return method

        names = ("exists", "names", "walk", "read", "write", "delete", "modified")
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(mock.patch.object(archive.folder, name, counted(name)))
            stack.enter_context(mock.patch.object(archive, "_rewrite"))
            call()
        return counts.total()

    def test_a_year_is_looked_at_as_often_as_a_day(self) -> None:
        since, now = self.NOW - timedelta(hours=1), self.NOW.timestamp()
        day, year = self.aged(1), self.aged(365)
        for name in ("snapshot", "compact", "clean"):
            found = []
            for archive in (day, year):
                call = {
                    "snapshot": lambda archive=archive: archive.snapshot(since),
                    "compact": lambda archive=archive: archive.compact(now=now),
                    "clean": lambda archive=archive: archive.clean(now=now),
                }[name]
                found.append(self.looks(archive, call))
            self.assertGreater(found[0], 720, "each entry is read")
            self.assertEqual(found[0], found[1], name)
        self.assertEqual(len(year.snapshot(since).live), len(day.snapshot(since).live))


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
