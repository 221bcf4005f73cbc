"""The Spark jobs: their arithmetic against plain Python, and the whole of them on a real broker."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self
from unittest import mock
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

import rtmb
from rtmb.cli.pipeline import pipeline
from rtmb.core.subjects import hears
from rtmb.spark.jobs.session import NoSparkError, check
from rtmb.test.support.processes import PATIENCE, BrokerProcess, RawClient, environment, need
from rtmb.test.support.spark_session import JournalBroker, session, until

pytestmark = pytest.mark.slow

#: A time in the past, two minutes before an hour ends: what is archived there is soon in two.
NINE = datetime(2026, 5, 1, 9, 58, tzinfo=UTC)

Rows = list[tuple[str, bytes, dict[str, str] | None, str | None, int, datetime, str]]


def row(
    seq: int,
    subject: str,
    value: Any,
    when: datetime,
    *,
    door: str = "nats",
    reply: str | None = None,
) -> Any:
    """A message as the source gives it."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return (subject, data, {"Seq": str(seq)}, reply, seq, when, door)


class SparkTests(SynchronousTestCase):
    """A session that all share, and a folder of the test's own."""

    def setUp(self) -> None:
        self.spark = session(self)
        self.folder = Path(mkdtemp(prefix="rtmb-jobs-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def frame(self, rows: Rows) -> Any:
        from rtmb.spark.source import SCHEMA

        return self.spark.createDataFrame(rows, SCHEMA)

    def stream(self, *files: Rows) -> Any:
        """A stream whose batches are given: one file of Parquet for each."""
        from rtmb.spark.source import SCHEMA

        place = self.folder / "input"
        for number, rows in enumerate(files, len(list(place.glob("*.parquet")))):
            draft = self.folder / "draft"
            self.frame(rows).coalesce(1).write.mode("overwrite").parquet(str(draft))
            place.mkdir(exist_ok=True)
            (found,) = draft.glob("*.parquet")
            os.utime(found, (1000 + number, 1000 + number))  # Spark takes the oldest first
            found.rename(place / f"{number:04}.parquet")
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(place))

    def archive(self, *files: Rows) -> Any:
        """An archive of what is given, through the stream that writes it; called again, of more."""
        from rtmb.spark.jobs import archive
        from rtmb.spark.jobs.store import Archive

        found = Archive(self.spark, str(self.folder / "archive"))
        found.begin(">")
        archive.watch(found, archive.write(found, self.stream(*files), once=True), compact_every=0)
        return found


def seqs(frame: Any) -> list[int]:
    return sorted(r.seq for r in frame.select("seq").collect())


# Without Spark


class SessionTests(SynchronousTestCase):
    """What is said when there is no Spark to be had."""

    def test_no_java(self) -> None:
        with mock.patch.dict(os.environ, {"PATH": "", "JAVA_HOME": ""}):
            error = self.assertRaises(NoSparkError, check)
        self.assertIn("there is none on the PATH: install Java 17", str(error))
        self.assertNotIn("\n", str(error))

    def test_wrong_java_home(self) -> None:
        with mock.patch.dict(os.environ, {"JAVA_HOME": self.mktemp()}):
            self.assertIn("none in JAVA_HOME", str(self.assertRaises(NoSparkError, check)))

    def test_old_java(self) -> None:
        home = Path(self.mktemp())
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
        program.chmod(0o755)
        with mock.patch.dict(os.environ, {"JAVA_HOME": str(home)}):
            self.assertIn("is Java 11", str(self.assertRaises(NoSparkError, check)))

    def test_no_pyspark(self) -> None:
        with mock.patch("importlib.util.find_spec", return_value=None):
            self.assertIn("pip install 'rtmb[spark]'", str(self.assertRaises(NoSparkError, check)))

    def test_the_command_says_so_in_one_line(self) -> None:
        with mock.patch.dict(os.environ, {"PATH": "", "JAVA_HOME": ""}):
            done = CliRunner().invoke(pipeline, ["archive"])
        self.assertEqual(done.exit_code, 1)
        self.assertRegex(done.output, r"\AError: Spark runs on Java[^\n]*\n\Z")


class CommandTests(SynchronousTestCase):
    def refused(self, *arguments: str) -> str:
        done = CliRunner().invoke(pipeline, arguments)
        self.assertEqual(done.exit_code, 2, done.output)
        return " ".join(done.output.replace("│", " ").split())

    def test_bad_values_are_told(self) -> None:
        self.assertIn("not an interval", self.refused("rollup", "a", "--window", "soon"))
        self.assertIn("neither a time", self.refused("report", "--since", "yesterday"))
        self.assertIn("NAME=VALUE", self.refused("query", "select 1", "-O", "apiKey"))

    def test_moments(self) -> None:
        from rtmb.cli.pipeline import Moment

        moment = Moment()
        self.assertEqual(
            moment.convert("2026-05-01T10:00", None, None), datetime(2026, 5, 1, 10, tzinfo=UTC)
        )
        self.assertEqual(
            moment.convert("2026-05-01T10:00+02:00", None, None),
            datetime(2026, 5, 1, 8, tzinfo=UTC),
        )
        ago = datetime.now(UTC) - moment.convert("2h", None, None)
        self.assertApproximates(ago.total_seconds(), 7200, 60)

    def test_help_needs_no_pyspark(self) -> None:
        program = (
            "import sys; from rtmb.cli.pipeline import pipeline\n"
            "assert 'pyspark' not in sys.modules and 'twisted' not in sys.modules, sys.modules"
        )
        subprocess.run([sys.executable, "-c", program], env=environment(), check=True)

    def test_the_jobs_do_without_twisted(self) -> None:
        names = "archive broker charts files messages page query replay report rollup store streams"
        program = (
            f"import sys; from rtmb.spark.jobs import {', '.join(names.split())}\n"
            "assert 'twisted' not in sys.modules"
        )
        need(self, _has("pyspark"), "there is no pyspark")
        subprocess.run([sys.executable, "-c", program], env=environment(), check=True)


class ChartTests(SynchronousTestCase):
    def test_a_table_becomes_lines(self) -> None:
        from rtmb.spark.jobs.charts import chart_of, svg

        rows = [(NINE + timedelta(seconds=i), i * 2, "x") for i in range(50)]
        chart = chart_of(["time", "n", "word"], rows, "A & B")
        self.assertEqual(list(chart.series), ["n"])
        root = ElementTree.fromstring(svg(chart))
        self.assertIn("A & B", "".join(root.itertext()))
        (path,) = (e.get("d", "") for e in root.iter("{http://www.w3.org/2000/svg}path"))
        self.assertEqual(path.count(","), 50)

    def test_names_become_bars(self) -> None:
        from rtmb.spark.jobs.charts import chart_of, svg

        root = ElementTree.fromstring(svg(chart_of(["s", "n"], [("<a>", 1), ("b", 3)])))
        widths = [float(e.get("width", 0)) for e in root.iter("{http://www.w3.org/2000/svg}rect")]
        self.assertApproximates(widths[1] / widths[0], 3, 0.01)
        self.assertIn("<a>", "".join(root.itertext()))

    def test_gaps_break_the_line(self) -> None:
        from rtmb.spark.jobs.charts import Chart, svg

        root = ElementTree.fromstring(svg(Chart([1, 2, 3, 4, 5], {"a": [1, 2, None, 3, 4]})))
        self.assertEqual(len(list(root.iter("{http://www.w3.org/2000/svg}path"))), 2)

    def test_what_cannot_be_drawn(self) -> None:
        from rtmb.spark.jobs.charts import chart_of, save

        self.assertRaises(ValueError, chart_of, ["a", "b"], [])
        self.assertRaises(ValueError, chart_of, ["a", "b"], [("x", "y")])
        chart = chart_of(["a", "b"], [(1, 2)])
        self.assertRaises(ValueError, save, chart, "picture.gif")

    def test_files(self) -> None:
        from rtmb.spark.jobs.charts import NoPictureError, chart_of, save

        place = Path(self.mktemp())
        place.mkdir()
        chart = chart_of(["a", "b", "c"], [(1, 2, None), (2, 3, 4)])
        save(chart, str(place / "c.svg"))
        ElementTree.parse(place / "c.svg")
        with mock.patch.dict(sys.modules, dict.fromkeys(_MATPLOTLIB)):
            self.assertRaises(NoPictureError, save, chart, str(place / "c.png"))
        need(self, _has("matplotlib"), "there is no matplotlib")
        save(chart, str(place / "c.png"))
        self.assertEqual((place / "c.png").read_bytes()[:4], b"\x89PNG")


#: No import goes past these: one that did would be undone by `patch`, and numpy loads only once.
_MATPLOTLIB = ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg")


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


class PatternTests(SynchronousTestCase):
    def test_the_expression_agrees_with_the_broker(self) -> None:
        need(self, _has("pyspark"), "there is no pyspark")
        from rtmb.spark.jobs.messages import expression

        patterns = [">", "*", "a", "a.*", "a.>", "*.b", "*.*", "!system/x", "a+b.c", "a.b.>"]
        subjects = ["a", "a.b", "a.b.c", "b", "x.b", "!system/x", "!x.b", "a+b.c", "aab.c"]
        for pattern in patterns:
            for subject in subjects:
                found = re.search(expression(pattern), subject) is not None
                self.assertEqual(found, hears(pattern, subject), (pattern, subject))

    def test_several(self) -> None:
        from rtmb.spark.jobs.messages import expression

        self.assertEqual(
            [s for s in ("a", "b", "c") if re.search(expression("a, c"), s)], ["a", "c"]
        )
        self.assertRaises(ValueError, expression, "a..b")


# The archive


class ArchiveTests(SparkTests):
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


# The roll-up


def nearest_rank(values: Sequence[float], quantile: float) -> float:
    """The least value that at least this part of all is not above: what percentile_approx gives."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(len(ordered) * quantile * 1e9) // 10**9) - 1)]


class RollupTests(SparkTests):
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


# The report


class Page(HTMLParser):
    """What a page says, and what it fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.fetched: list[str] = []
        self.words: list[str] = []
        self._ignored = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self._ignored = tag == "style"
        self.fetched += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        self._ignored = False

    def handle_data(self, data: str) -> None:
        if not self._ignored:
            self.words.append(data)


class ReportTests(SparkTests):
    def rows(self) -> Rows:
        rows: Rows = []
        for i in range(400):
            when = NINE + timedelta(seconds=i)
            subject, door = ("busy", "nats") if i % 4 else ("<b>calm</b>", "websocket")
            sent = (when - timedelta(milliseconds=40)).timestamp()
            rows.append(row(len(rows), subject, {"sent": sent}, when, door=door))
        for i in range(20):
            when = NINE + timedelta(seconds=i)
            rows.append(row(len(rows), "ask", b"?", when, reply=f"_INBOX.{i}"))
            rows.append(row(len(rows), f"_INBOX.{i}", b"!", when + timedelta(milliseconds=8)))
        client = {"door": "websocket", "client": "websocket 10.0.0.7:5"}
        slow = {**client, "policy": "close", "subject": "busy", "pending_bytes": 9}
        drop = {**client, "count": 30, "subjects": ["busy", "ask"]}
        for event, facts, count in (("slow_consumer", slow, 1), ("drop", drop, 2)):
            for _ in range(count):
                rows.append(row(len(rows), f"!system/events/{event}", facts, NINE, door="system"))
        gap = {"from": 7, "to": 9, "count": 3, "cause": "overwritten"}
        return [*rows, row(7, "!journal/gap", gap, NINE, door="journal")]

    def test_facts(self) -> None:
        from rtmb.spark.jobs.report import gather

        rows = self.rows()
        facts = gather(self.frame(rows), sent_field="sent")
        mine = [r for r in rows if not r[0].startswith("!")]
        self.assertEqual(facts.messages, len(mine))
        self.assertEqual(facts.bytes, sum(len(r[1]) for r in mine))
        self.assertEqual(
            {t.name: t.messages for t in facts.subjects},
            {"busy": 300, "<b>calm</b>": 100, "ask": 20, "_INBOX.>": 20},
        )
        self.assertEqual({t.name: t.messages for t in facts.doors}, {"nats": 340, "websocket": 100})
        width = facts.bucket.total_seconds()
        self.assertAlmostEqual(sum(facts.by_subject["busy"]) * width, 300)
        self.assertAlmostEqual(sum(facts.by_door["websocket"]) * width, 100)
        (trouble,) = facts.troubles
        self.assertEqual(
            (trouble.client, trouble.slow, trouble.dropped), ("websocket 10.0.0.7:5", 1, 60)
        )
        self.assertEqual(trouble.subjects, {"busy", "ask"})
        self.assertEqual(sum(facts.drops), 60)
        self.assertEqual([gap["count"] for gap in facts.gaps], [3])
        way, answer = facts.latencies
        self.assertEqual((way.count, answer.count), (400, 20))
        self.assertApproximates(way.p50, 40, 0.1)
        self.assertApproximates(answer.p99, 8, 0.1)

    def test_the_page_stands_alone(self) -> None:
        from rtmb.spark.jobs.page import page
        from rtmb.spark.jobs.report import gather

        text = page(gather(self.frame(self.rows()), sent_field="sent"), "A & B")
        found = Page(text)
        self.assertEqual(found.fetched, [])
        self.assertNotIn("script", found.tags)
        self.assertNotRegex(text, r"url\(|@import")
        self.assertGreaterEqual(found.tags["svg"], 5)
        said = " ".join(found.words)
        for words in (
            "A & B", "busy", "<b>calm</b>", "websocket 10.0.0.7:5", "request to answer",
            "publisher to broker", "overwritten", "Top talkers", "Slow consumers and drops",
        ):  # fmt: skip
            self.assertIn(words, said)
        self.assertNotIn("<b>calm", text)

    def test_a_period_with_nothing(self) -> None:
        from rtmb.spark.jobs.page import page
        from rtmb.spark.jobs.report import gather

        facts = gather(self.frame([]), NINE, NINE + timedelta(hours=1))
        self.assertIn("No message was published", page(facts))


# On a real broker


class Publisher(threading.Thread):
    """Publishes numbered messages on some subjects until it is stopped."""

    def __init__(self, port: int, pause: float = 0.002) -> None:
        super().__init__(daemon=True)
        self._client = RawClient(port)
        self._pause = pause
        self._end = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._end.wait(self._pause):
            subject = f"flow.{self.count % 3}"
            payload = json.dumps({"n": self.count}).encode()
            self._client.send(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
            self.count += 1

    def stop(self) -> int:
        """How many were published, and are with the broker."""
        if not self._end.is_set():
            self._end.set()
            self.join()
            self._client.settle()
            self._client.close()
        return self.count


class Driver:
    """A job in a process of its own, as `rtmb pipeline` runs it."""

    def __init__(self, *arguments: str) -> None:
        self._output = Path(mkdtemp(prefix="rtmb-driver-"))
        with (self._output / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rtmb.spark.jobs", *arguments, "--master", "local[2]"],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self._output)

    def log(self) -> str:
        return (self._output / "log").read_text()

    def kill(self) -> None:
        """As a power cut would: Python and Java at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self, timeout: float = 90.0) -> str:
        self.process.wait(timeout)
        if self.process.returncode:
            raise AssertionError(self.log())
        return self.log()


class BrokerTests(SparkTests):
    def setUp(self) -> None:
        super().setUp()
        self.broker = self.start_broker()

    def start_broker(self, *arguments: str) -> JournalBroker:
        from rtmb.spark.jobs.broker import Broker

        broker = JournalBroker(*arguments)
        self.addCleanup(broker.stop)
        self.there = Broker(broker.server)
        return broker

    def publish(self, count: int, first: int = 0, subject: str = "flow.a") -> None:
        numbers = range(first, first + count)
        self.broker.publish(subject, [json.dumps({"n": n}) for n in numbers])

    def numbers(self, frame: Any) -> list[int]:
        """The numbers in the payloads, in order."""
        return sorted(json.loads(bytes(r.data))["n"] for r in frame.select("data").collect())

    def run_archive(self, subject: str = "flow.>") -> Any:
        from rtmb.spark.jobs import archive
        from rtmb.spark.jobs.store import Archive

        found = Archive(self.spark, str(self.folder / "archive"))
        archive.watch(found, archive.start(found, self.there, subject, once=True))
        return found

    def test_archive_and_journal_are_one_table(self) -> None:
        from rtmb.spark.jobs import query

        self.publish(100)
        archive = self.run_archive()
        self.publish(50, 100)
        self.publish(5, 0, "elsewhere")
        both = query.messages(self.spark, archive, self.there)
        self.assertEqual(self.numbers(both), list(range(150)))
        self.assertEqual(self.numbers(archive.messages()), list(range(100)))
        # The archive catches up; nothing is twice.
        archive = self.run_archive()
        both = query.messages(self.spark, archive, self.there)
        self.assertEqual(self.numbers(both), list(range(150)))
        self.assertEqual(self.numbers(archive.messages()), list(range(150)))
        # A new life of the broker counts from 1 again.
        self.broker.stop()
        self.broker = self.start_broker("--http-port", str(self.broker.http_port))
        self.publish(20, 150)
        both = query.messages(self.spark, archive, self.there)
        self.assertEqual(self.numbers(both), list(range(170)))
        archive = self.run_archive()
        found = archive.messages()
        self.assertEqual(found.where("subject = '!journal/gap'").count(), 1)
        self.assertEqual(self.numbers(found.where("door != 'journal'")), list(range(170)))
        self.assertEqual(
            self.numbers(
                query.messages(self.spark, archive, self.there).where("door != 'journal'")
            ),
            list(range(170)),
        )

    def test_the_answer_as_files(self) -> None:
        from rtmb.spark.jobs import query

        self.publish(30)
        query.messages(self.spark, None, self.there).createOrReplaceTempView(query.TABLE)
        answer = self.spark.sql(
            "select subject, count(*) as n, max(text) as t, max(data) as d from messages group by 1"
        )
        query.to_csv(answer, str(self.folder / "a.csv"))
        self.assertEqual(
            (self.folder / "a.csv").read_text().splitlines(),
            ["subject,n,t,d", 'flow.a,30,"{""n"": 9}","{""n"": 9}"'],
        )
        query.to_parquet(answer, str(self.folder / "p"))
        (back,) = self.spark.read.parquet(str(self.folder / "p")).collect()
        self.assertEqual(back.n, 30)
        query.to_chart(answer, str(self.folder / "c.svg"))
        self.assertIn("flow.a", (self.folder / "c.svg").read_text())

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

    def test_replay_in_order_and_at_its_pace(self) -> None:
        from rtmb.spark.jobs.replay import replay

        rows = [
            row(i, f"flow.{i % 3}", {"n": i}, NINE + timedelta(seconds=i * 0.1)) for i in range(30)
        ]
        rows += [
            row(90, "other", {"n": 90}, NINE),
            row(91, "flow.0", {"n": 91}, NINE - timedelta(1)),
        ]
        archive = self.archive(rows[10:20] + rows[:10], rows[20:])
        arrived: list[tuple[float, str, int]] = []

        def listen(client: RawClient) -> None:
            while len(arrived) < 30:
                head = client.read_until(b"\r\n").split()
                if head == [b"PING"]:
                    client.send(b"PONG\r\n")
                    continue
                size, whole = int(head[-2]), int(head[-1])
                body = b""
                while len(body) < whole + 2:
                    body += client.read_until(b"\n")
                number = json.loads(body[size:])["n"]
                arrived.append((time.time(), head[1].decode(), number))

        with RawClient(self.broker.port) as client:
            client.connect()
            client.subscribe("again.>")
            listener = threading.Thread(target=listen, args=[client], daemon=True)
            listener.start()
            count = replay(
                archive, self.there, subject="flow.*", since=NINE, prefix="again", speed=2.0
            )
            listener.join(PATIENCE)
        self.assertEqual((count, len(arrived)), (30, 30))
        for lane in range(3):
            found = [n for _, subject, n in arrived if subject == f"again.flow.{lane}"]
            self.assertEqual(found, list(range(lane, 30, 3)))
        begin = min(at - n * 0.05 for at, _, n in arrived)
        for at, _, n in arrived:
            self.assertLess(at - begin - n * 0.05, 1.0)  # the machine may be busy
        self.assertGreater(arrived[-1][0] - arrived[0][0], 29 * 0.05 - 0.02 - 0.5)

    def test_replay_as_fast_as_it_goes(self) -> None:
        from rtmb.spark.jobs.replay import replay

        rows = [row(i, f"flow.{i % 5}", {"n": i}, NINE + timedelta(minutes=i)) for i in range(500)]
        archive = self.archive(rows)
        began = time.monotonic()
        self.assertEqual(replay(archive, self.there, speed=0), 500)
        self.assertLess(time.monotonic() - began, 60)
        found = self.there.read(self.spark, subject="replay.>").orderBy("seq").collect()
        by_subject: defaultdict[str, list[int]] = defaultdict(list)
        for r in found:
            by_subject[r.subject].append(json.loads(bytes(r.data))["n"])
            self.assertEqual(r.headers["Seq"], str(by_subject[r.subject][-1]))
        for lane in range(5):
            self.assertEqual(by_subject[f"replay.flow.{lane}"], list(range(lane, 500, 5)))

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


class ExampleTests(SynchronousTestCase):
    def test_stations_publish_through_three_doors(self) -> None:
        program = Path(rtmb.__file__).parent.parent / "examples" / "weather" / "stations.py"
        need(self, program.exists(), "the examples are not installed")
        with BrokerProcess() as broker, RawClient(broker.port) as client:
            client.connect()
            client.subscribe("weather.*")
            msgpack_port = broker.expect_log(r"msgpack door: [\d.]+:(\d+)")[1].decode()
            ports = ["--text", str(broker.port), "--http", str(broker.http_port)]
            stations = subprocess.Popen(
                [sys.executable, program, *ports, "--msgpack", msgpack_port], env=environment()
            )
            try:
                missing = {"oslo", "bergen", "rome", "naples", "lima", "cusco"}
                while missing:
                    line = client.read_until(b"\r\n").decode()
                    if line == "PING\r\n":
                        client.send(b"PONG\r\n")
                    elif line.startswith("{"):
                        self.assertEqual(set(json.loads(line)), {"temperature", "wind", "sent"})
                    elif line.startswith("MSG weather."):
                        missing.discard(line.split()[1].removeprefix("weather."))
            finally:
                stations.kill()
                stations.wait()
