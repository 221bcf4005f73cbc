"""The archive as a folder: what is in it, who wrote it, and how to read each message once.

    live/batch=17/   what batch 17 of the stream wrote: Parquet by date, hour and first token
    batches/17.json  the files of batch 17, and its place in the journal
    compact/         closed hours of it, rewritten as few files
    days/DATE/3.json what compact/ has of a day, and which batches it stands for
    checkpoint/      how far the stream is
    about.json       the subjects it was made of

A batch counts from the moment at which its entry is there, so what a killed driver left is not
read. A day's entry replaces the one before it; an hour of a batch that it names is read from
compact/. Entries are written whole, after the files that they name, so each message is read from
one place, whoever was killed when.

Batches that are rewritten are deleted with their entries: what is looked at by a start, a batch or
a compaction is as much as a few hours made, however old the archive is, and a query looks at the
days that it asks for.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from rtmb.spark.jobs.files import Folder
from rtmb.spark.jobs.messages import PARTITIONS, between, patterns
from rtmb.spark.reading import SCHEMA

LIVE = "live"
COMPACT = "compact"
CHECKPOINT = "checkpoint"
_BATCHES = "batches"
_DAYS = "days"
_ABOUT = "about.json"
#: Of the layout above; another one cannot be read.
_LAYOUT = 2

#: The source's columns and those that folders are named by, which are text: Spark would guess
#: otherwise, and make a 7 of the token 007.
ARCHIVED = ", ".join([SCHEMA, *(f"{name} string" for name in PARTITIONS)])

#: A compacted hour is split into files of this many messages.
MOST_IN_FILE = 2_000_000


class NoArchiveError(ValueError):
    """There is no archive at a path."""


@dataclass
class Snapshot:
    """What an archive holds at one moment: files, and the position in the journal they reach."""

    live: list[str] = field(default_factory=list)
    compact: list[str] = field(default_factory=list)
    position: dict[str, Any] | None = None


@dataclass
class Day:
    """The newest entry of a day."""

    number: int = 0
    files: list[str] = field(default_factory=list)
    #: For each hour: when it was rewritten last, and of which batches, as far as those are still
    #: there.
    hours: dict[str, dict[str, Any]] = field(default_factory=dict)

    def stands_for(self, hour: str, batch: int) -> bool:
        return hour in self.hours and batch in self.hours[hour]["batches"]


class Archive:
    """An archive at a path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.folder = Folder(spark, path)

    # What it is

    @property
    def kind(self) -> dict[str, Any]:
        """What else is to be known of it: nothing of one that is plain Parquet."""
        return {}

    def about(self) -> dict[str, Any]:
        """What it was made as."""
        if not self.folder.exists(_ABOUT):
            raise NoArchiveError(f"no archive at {self.folder.path}")
        found: dict[str, Any] = json.loads(self.folder.read(_ABOUT))
        if found.get("layout") != _LAYOUT:
            raise ValueError(
                f"the archive at {self.folder.path} was made by another version of rtmb, which"
                " keeps it in another way: begin a new one at another path"
            )
        return found

    @property
    def subject(self) -> str:
        """The pattern that it was made with."""
        return str(self.about()["subject"])

    def begin(self, subject: str) -> None:
        """Make it, or make sure that it is of the same subjects: its offsets mean those."""
        patterns(subject)
        wanted = {"subject": subject, "layout": _LAYOUT, **self.kind}
        if not self.folder.exists(_ABOUT):
            self.folder.write(_ABOUT, json.dumps(wanted))
            return
        found = self.about()
        for name in {*found, *wanted}:
            is_now, is_wanted = (d.get(name, "Parquet") for d in (found, wanted))
            if is_now != is_wanted:
                raise ValueError(
                    f"the archive at {self.folder.path} is of {is_now}, not of {is_wanted}:"
                    " give another path"
                )

    @property
    def name(self) -> str:
        """What its consumer is called among the journal's."""
        return self.folder.name

    def full(self, name: str) -> str:
        return self.folder.full(name)

    # Writing

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Begin a stream of placed messages into it."""
        return writer.foreachBatch(self.write).start()

    def write(self, messages: DataFrame, batch: int) -> None:
        """Take in a batch of the stream, which has `PARTITIONS`; done again, it is known."""
        entry = f"{_BATCHES}/{batch}.json"
        query = json.loads(self.folder.read(f"{CHECKPOINT}/metadata"))["id"]
        if self.folder.exists(entry):
            if json.loads(self.folder.read(entry))["query"] != query:
                raise ValueError(
                    f"{self.full(CHECKPOINT)} is not the one that wrote this archive: the two go"
                    " together; begin a new archive at another path"
                )
            return
        place = f"{LIVE}/batch={batch}"
        (
            messages.write.partitionBy(*PARTITIONS)
            # What is not named in an entry is not read, so files need not appear all at once.
            .option("mapreduce.fileoutputcommitter.algorithm.version", "2")
            .mode("overwrite")
            .parquet(self.full(place))
        )
        files = [name for name in self.folder.walk(place) if "/token=" in name]
        told = {"query": query, "position": self._offset(batch), "files": files}
        self.folder.write(entry, json.dumps({"time": time.time(), **told}))

    def _offset(self, batch: int) -> dict[str, Any] | None:
        """Where in the journal a batch ends; Spark writes it before the batch runs. A stream that
        is not of the journal has no such place."""
        found = json.loads(self.folder.read(f"{CHECKPOINT}/offsets/{batch}").splitlines()[2])
        return found if isinstance(found, dict) and "epoch" in found else None

    # Reading

    def snapshot(self, since: datetime | None = None, until: datetime | None = None) -> Snapshot:
        """What there is, or may be, of a period."""
        # Days first: a batch that is taken in and rewritten meanwhile would be there twice.
        days = {
            date: self._day(date)
            for date in self.folder.names(_DAYS)
            if _within(_day_of(date), timedelta(days=1), since, until)
        }
        entries = self._batches()
        found = Snapshot()
        for day in days.values():
            found.compact += _of_period(day.files, since, until)
        for batch, entry in entries.items():
            found.live += [
                name
                for name in _of_period(entry["files"], since, until)
                if not days.get(_date(name), Day()).stands_for(_hour(name), batch)
            ]
        if entries:
            found.position = entries[max(entries)]["position"]
        return found

    def messages(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        snapshot: Snapshot | None = None,
    ) -> DataFrame:
        """All messages, or those of a period, each once."""
        self.about()
        if snapshot is None:
            snapshot = self.snapshot(since, until)
        parts = ((LIVE, snapshot.live), (COMPACT, snapshot.compact))
        frames = [self._read(base, names) for base, names in parts if names]
        if not frames:
            frames = [self.spark.createDataFrame([], ARCHIVED)]
        return between(reduce(DataFrame.unionByName, frames), since, until)

    def _read(self, base: str, names: list[str]) -> DataFrame:
        # With a type of its own `batch` is not guessed; nobody but the entries needs it.
        columns = ARCHIVED + (", batch int" if base == LIVE else "")
        reader = self.spark.read.schema(columns).option("basePath", self.full(base))
        return reader.parquet(*(self.full(name) for name in names)).drop("batch")

    def _batches(self) -> dict[int, dict[str, Any]]:
        """The entries of the batches that are there, by number."""
        names = [name for name in self.folder.names(_BATCHES) if name.endswith(".json")]
        return {
            int(name.removesuffix(".json")): json.loads(self.folder.read(f"{_BATCHES}/{name}"))
            for name in names
        }

    def _day(self, date: str) -> Day:
        numbers = [
            int(name.removesuffix(".json"))
            for name in self.folder.names(f"{_DAYS}/{date}")
            if name.endswith(".json")
        ]
        if not numbers:
            return Day()
        found = json.loads(self.folder.read(f"{_DAYS}/{date}/{max(numbers)}.json"))
        return Day(max(numbers), found["files"], found["hours"])

    # Rewriting

    def compact(self, margin: timedelta = timedelta(minutes=5), now: float | None = None) -> int:
        """Rewrite the hours that ended `margin` ago; how many small files became fewer.

        Messages that reach an hour later than that stay right: they are rewritten the next time.
        One process at a time may do this, beside the stream and any number of readers.
        """
        now = time.time() if now is None else now
        closed = datetime.fromtimestamp(now, UTC) - margin
        batches = self._batches()
        found: dict[str, dict[str, dict[int, list[str]]]] = defaultdict(lambda: defaultdict(dict))
        for batch, entry in batches.items():
            for name in entry["files"]:
                if _hour_of(name) + timedelta(hours=1) <= closed:
                    found[_date(name)][_hour(name)].setdefault(batch, []).append(name)
        rewritten = 0
        for date, hours in sorted(found.items()):
            for hour, files in sorted(hours.items()):
                day = self._day(date)
                new = {b: names for b, names in files.items() if not day.stands_for(hour, b)}
                if new:
                    self._rewrite(date, hour, day, new, now, set(batches))
                    rewritten += sum(map(len, new.values()))
        return rewritten

    def _rewrite(
        self, date: str, hour: str, day: Day, files: dict[int, list[str]], now: float,
        there: set[int],
    ) -> None:  # fmt: skip
        place = f"{COMPACT}/date={date}/hour={hour}"
        known = set(day.files)
        for name in self.folder.walk(place):
            if name not in known:  # someone was killed in the middle of this
                self.folder.delete(name)
        (
            self._read(LIVE, [name for names in files.values() for name in names])
            .repartition("token")
            .sortWithinPartitions("token", "timestamp", "seq")
            .write.partitionBy(*PARTITIONS)
            .option("maxRecordsPerFile", MOST_IN_FILE)
            .mode("append")
            .parquet(self.full(COMPACT))
        )
        more = [n for n in self.folder.walk(place) if n not in known and n.endswith(".parquet")]
        before = day.hours.get(hour, {"batches": []})["batches"]
        batches = sorted({batch for batch in before if batch in there} | set(files))
        told = {
            "files": day.files + more,
            "hours": {**day.hours, hour: {"time": now, "batches": batches}},
        }
        self.folder.write(f"{_DAYS}/{date}/{day.number + 1}.json", json.dumps(told))

    def clean(self, keep: timedelta = timedelta(hours=1), now: float | None = None) -> int:
        """Delete small files that were rewritten longer than `keep` ago, and entries that others
        replaced: whoever began to read before is done with them. How many files."""
        now = time.time() if now is None else now
        before = now - keep.total_seconds()
        batches, deleted = self._batches(), 0
        days: dict[str, Day] = {}
        for batch, entry in batches.items():
            if batch == max(batches):  # it says how far the archive reaches
                continue
            for date in set(map(_date, entry["files"])) - set(days):
                days[date] = self._day(date)
            if entry["time"] <= before and all(
                days[_date(name)].stands_for(_hour(name), batch)
                and days[_date(name)].hours[_hour(name)]["time"] <= before
                for name in entry["files"]
            ):
                self.folder.delete(f"{LIVE}/batch={batch}")
                self.folder.delete(f"{_BATCHES}/{batch}.json")
                deleted += len(entry["files"])
        for date, day in days.items():
            for number in range(day.number - 1, 0, -1):
                name = f"{_DAYS}/{date}/{number}.json"
                if not self.folder.exists(name):
                    break
                if self.folder.modified(f"{_DAYS}/{date}/{number + 1}.json") <= before:
                    self.folder.delete(name)
        return deleted


def _day_of(date: str) -> datetime:
    return datetime.fromisoformat(date).replace(tzinfo=UTC)


def _date(name: str) -> str:
    """The date in a file's name: `…/date=2026-05-01/hour=07/token=a/….parquet`."""
    return name.split("/")[-4].removeprefix("date=")


def _hour(name: str) -> str:
    return name.split("/")[-3].removeprefix("hour=")


def _hour_of(name: str) -> datetime:
    """The hour that a file's folders name."""
    return _day_of(_date(name)) + timedelta(hours=int(_hour(name)))


def _within(
    start: datetime, length: timedelta, since: datetime | None, until: datetime | None
) -> bool:
    """Whether something from `start` on may hold messages of a period."""
    return (since is None or start + length > since) and (until is None or start < until)


def _of_period(names: Iterable[str], since: datetime | None, until: datetime | None) -> list[str]:
    """The files that may hold messages of a period."""
    hour = timedelta(hours=1)
    return [name for name in names if _within(_hour_of(name), hour, since, until)]
