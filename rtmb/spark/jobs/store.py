"""The archive as a folder: what is in it, who wrote it, and how to read each message once.

    live/        what the stream writes: Parquet by date, hour and first token, small files
    compact/     closed hours of it, rewritten as few files
    compacted/   one small JSON file for each rewriting: which files of live/ became which of
                 compact/
    checkpoint/  how far the stream is
    about.json   the subjects it was made of

The stream's output is what Spark's own log (`live/_spark_metadata`) names; a killed driver leaves
files that it does not name. A file of live/ counts until an entry of compacted/ says that others
hold the same rows, and those count from that moment on. So each message is read from one place,
whoever was killed when.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from rtmb.spark.jobs.files import Folder
from rtmb.spark.jobs.messages import PARTITIONS, between, patterns
from rtmb.spark.source import SCHEMA

LIVE = "live"
COMPACT = "compact"
_ENTRIES = "compacted"
CHECKPOINT = "checkpoint"
_ABOUT = "about.json"
_LOG = "live/_spark_metadata"

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


class Archive:
    """An archive at a path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.folder = Folder(spark, path)

    # What it is

    @property
    def subject(self) -> str:
        """The pattern that it was made with."""
        self.must_exist()
        return str(json.loads(self.folder.read(_ABOUT))["subject"])

    def begin(self, subject: str) -> None:
        """Make it, or make sure that it is of the same subjects: its offsets mean those."""
        patterns(subject)
        if not self.folder.exists(_ABOUT):
            self.folder.write(_ABOUT, json.dumps({"subject": subject}))
        elif self.subject != subject:
            raise ValueError(
                f"the archive at {self.folder.path} is of {self.subject}, not of {subject}:"
                " give another path"
            )

    def must_exist(self) -> None:
        if not self.folder.exists(_ABOUT):
            raise NoArchiveError(f"no archive at {self.folder.path}")

    @property
    def name(self) -> str:
        """What its consumer is called among the journal's."""
        return self.folder.name

    def full(self, name: str) -> str:
        return self.folder.full(name)

    # Reading

    def snapshot(self) -> Snapshot:
        # Entries first: one that is written a moment later only says what is still in live/ too.
        entries = self._entries()
        rewritten = {name for entry in entries.values() for name in entry["sources"]}
        found = Snapshot(compact=[name for entry in entries.values() for name in entry["files"]])
        while True:
            batch = self._last_batch()
            if batch is None:
                return found
            files = self._streamed()
            if batch == self._last_batch():  # else the stream went on between the two
                break
        found.live = [name for name in files if name not in rewritten]
        found.position = self._offset(batch)
        return found

    def messages(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        snapshot: Snapshot | None = None,
    ) -> DataFrame:
        """All messages, or those of a period, each once."""
        self.must_exist()
        if snapshot is None:
            snapshot = self.snapshot()
        live = self._read(LIVE, _of_period(snapshot.live, since, until))
        compact = self._read(COMPACT, _of_period(snapshot.compact, since, until))
        return between(live.unionByName(compact), since, until)

    def _read(self, base: str, names: list[str]) -> DataFrame:
        if not names:
            return self.spark.createDataFrame([], ARCHIVED)
        reader = self.spark.read.schema(ARCHIVED).option("basePath", self.full(base))
        return reader.parquet(*(self.full(name) for name in names))

    def _streamed(self) -> list[str]:
        """The files that the stream's log names. Spark gives them as URLs."""
        urls = self.spark.read.schema(ARCHIVED).parquet(self.full(LIVE)).inputFiles()
        return [self.folder.relative(unquote(url)) for url in urls]

    def _last_batch(self) -> int | None:
        names = (name.removesuffix(".compact") for name in self.folder.names(_LOG))
        return max((int(name) for name in names if name.isdigit()), default=None)

    def _offset(self, batch: int) -> dict[str, Any] | None:
        """Where in the journal a batch ended; Spark writes it before the batch runs."""
        name = f"{CHECKPOINT}/offsets/{batch}"
        if not self.folder.exists(name):
            return None
        found: dict[str, Any] = json.loads(self.folder.read(name).splitlines()[2])
        return found

    # Rewriting

    def _entries(self) -> dict[str, dict[str, Any]]:
        names = [name for name in self.folder.names(_ENTRIES) if name.endswith(".json")]
        return {name: json.loads(self.folder.read(f"{_ENTRIES}/{name}")) for name in names}

    def compact(self, margin: timedelta = timedelta(minutes=5), now: float | None = None) -> int:
        """Rewrite the hours that ended `margin` ago; how many small files became fewer.

        Messages that reach an hour later than that stay right: they are rewritten the next time.
        One process at a time may do this, beside the stream and any number of readers.
        """
        now = time.time() if now is None else now
        closed = datetime.fromtimestamp(now, UTC) - margin
        hours: dict[str, list[str]] = {}
        for name in self.snapshot().live:
            _, date, hour, _ = name.split("/", 3)
            ended = _hour_of(name) + timedelta(hours=1)
            if ended <= closed:
                hours.setdefault(f"{date}/{hour}", []).append(name)
        for hour, names in sorted(hours.items()):
            self._rewrite(hour, names, now)
        return sum(map(len, hours.values()))

    def _rewrite(self, hour: str, names: list[str], now: float) -> None:
        entries = self._entries()
        known = {name for entry in entries.values() for name in entry["files"]}
        place = f"{COMPACT}/{hour}"
        for name in self.folder.walk(place):
            if name not in known:  # someone was killed in the middle of this
                self.folder.delete(name)
        (
            self._read(LIVE, names)
            .repartition("token")
            .sortWithinPartitions("token", "timestamp", "seq")
            .write.partitionBy(*PARTITIONS)
            .option("maxRecordsPerFile", MOST_IN_FILE)
            .mode("append")
            .parquet(self.full(COMPACT))
        )
        files = [n for n in self.folder.walk(place) if n not in known and n.endswith(".parquet")]
        entry = {"time": now, "sources": names, "files": files}
        number = sum(name.startswith(_entry_name(hour)) for name in entries) + 1
        self.folder.write(f"{_ENTRIES}/{_entry_name(hour)}-{number}.json", json.dumps(entry))

    def clean(self, keep: timedelta = timedelta(hours=1), now: float | None = None) -> int:
        """Delete small files that were rewritten longer than `keep` ago: whoever began to read
        before is done with them. How many."""
        now = time.time() if now is None else now
        deleted = 0
        for name, entry in self._entries().items():
            mark = f"{_ENTRIES}/{name.removesuffix('.json')}.cleaned"
            if entry["time"] + keep.total_seconds() > now or self.folder.exists(mark):
                continue
            for source in entry["sources"]:
                self.folder.delete(source)
            self.folder.write(mark, "")
            deleted += len(entry["sources"])
        return deleted


def _entry_name(hour: str) -> str:
    return hour.replace("date=", "").replace("/hour=", "T")


def _hour_of(name: str) -> datetime:
    """The hour that a file's folders name: `live/date=2026-05-01/hour=07/token=a/….parquet`."""
    _, date, hour, _ = name.split("/", 3)
    stamp = f"{date.removeprefix('date=')}T{hour.removeprefix('hour=')}:00+00:00"
    return datetime.fromisoformat(stamp)


def _of_period(names: Iterable[str], since: datetime | None, until: datetime | None) -> list[str]:
    """The files that may hold messages of a period."""
    hour = timedelta(hours=1)
    return [
        name
        for name in names
        if (since is None or _hour_of(name) + hour > since)
        and (until is None or _hour_of(name) < until)
    ]
