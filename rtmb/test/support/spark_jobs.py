"""Help for the tests of the jobs: messages of a given moment, archives of them, drivers to kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self

from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.support.processes import RawClient, environment
from rtmb.test.support.spark_session import JournalBroker, session

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


class JobCase(SynchronousTestCase):
    """A session that all share, and a folder of the test's own."""

    def setUp(self) -> None:
        self.spark = session(self)
        self.folder = Path(mkdtemp(prefix="rtmb-jobs-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def frame(self, rows: Rows) -> Any:
        from rtmb.spark.reading import SCHEMA

        return self.spark.createDataFrame(rows, SCHEMA)

    def stream(self, *files: Rows) -> Any:
        """A stream whose batches are given: one file of Parquet for each."""
        from rtmb.spark.reading import SCHEMA

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
        from rtmb.spark.jobs.streams import watch

        found = Archive(self.spark, str(self.folder / "archive"))
        found.begin(">")
        query = archive.write(found, self.stream(*files), once=True)
        watch([archive.job(found, query, compact_every=0)])
        return found


def seqs(frame: Any) -> list[int]:
    return sorted(r.seq for r in frame.select("seq").collect())


def has_module(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


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


class BrokerJobCase(JobCase):
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
        from rtmb.spark.jobs.streams import watch

        found = Archive(self.spark, str(self.folder / "archive"))
        watch([archive.job(found, archive.start(found, self.there, subject, once=True))])
        return found
