"""Help for the tests of `rtmb.spark`: one session for all of them, and a broker with a journal."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import unittest
import urllib.request
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.support.files import folder
from rtmb.test.support.processes import BrokerProcess, RawClient, environment, need, slow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: How long a query may take for what it should do: Spark takes its time on a busy machine.
PATIENCE = 90

_shared: list[SparkSession] = []


def session(test: unittest.TestCase) -> SparkSession:
    """The session that all tests share; the test is skipped where there is no Spark."""
    slow(test)
    try:
        from rtmb.spark.jobs import session as sessions

        sessions.check()
        problem = ""
    except (ImportError, RuntimeError) as error:
        problem = str(error)
    need(test, not problem, f"no Spark: {problem}")
    if not _shared:
        os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]
        os.environ["PYSPARK_PYTHON"] = sys.executable
        _shared.append(sessions.session("tests", "local[2]"))
        atexit.register(_shared[0].stop)
    return _shared[0]


class JournalBroker(BrokerProcess):
    """A broker that keeps a journal, and someone who publishes to it."""

    def __init__(self, *arguments: str, journal: str = ">", **more: Any) -> None:
        super().__init__("--no-msgpack", "--journal", journal, *arguments, **more)
        #: What the option `servers` takes.
        self.server = f"http://{self.host}:{self.http_port}"
        self._client: RawClient | None = None

    def publish(self, subject: str, payloads: Iterable[Any]) -> None:
        """Publish, and wait until the broker has it all."""
        if self._client is None:
            self._client = RawClient(self.port)
            self._client.connect()
        parts = [str(payload).encode() for payload in payloads]
        line = subject.encode()
        data = b"".join(b"PUB %b %d\r\n%b\r\n" % (line, len(p), p) for p in parts)
        self._client.send(data)
        self._client.settle()

    def journalz(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.server}/journalz") as answer:
            found: dict[str, Any] = json.load(answer)["journal"]
        return found

    def stop(self) -> None:
        client = getattr(self, "_client", None)
        if client is not None:
            client.close()
        super().stop()


def until(there: Callable[[], bool], what: str, timeout: float = PATIENCE) -> None:
    """Wait for something that cannot be waited for otherwise."""
    deadline = time.monotonic() + timeout
    while not there():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout} s")
        time.sleep(0.05)


class SparkCase(SynchronousTestCase):
    """A test with the shared session, a folder, and brokers that end with it."""

    spark: SparkSession

    def setUp(self) -> None:
        self.spark = session(self)
        self.folder = folder(self)

    def broker(self, *arguments: str, **more: Any) -> JournalBroker:
        broker = JournalBroker(*arguments, **more)
        self.addCleanup(broker.stop)
        return broker

    def refused(self, call: Callable[[], object]) -> str:
        """What Spark says when something fails."""
        from pyspark.errors import PySparkException

        return str(self.assertRaises(PySparkException, call))

    def batch(self, broker: JournalBroker, **given: object) -> DataFrame:
        reader = self.spark.read.format("rtmb").option("servers", broker.server)
        return reader.options(**{k: str(v) for k, v in given.items()}).load()

    def stream(self, broker: JournalBroker, **given: object) -> DataFrame:
        reader = self.spark.readStream.format("rtmb").option("servers", broker.server)
        return reader.options(**{k: str(v) for k, v in given.items()}).load()

    def start(self, frame: DataFrame, name: str = "out", **trigger: Any) -> StreamingQuery:
        """Stream to Parquet; with the same name again, go on where the last query stopped."""
        writer = frame.writeStream.format("parquet").option("path", str(self.folder / name))
        writer = writer.option("checkpointLocation", str(self.folder / f"{name}-checkpoint"))
        query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
        self.addCleanup(query.stop)
        return query

    def drain(self, frame: DataFrame, name: str = "out") -> StreamingQuery:
        """Stream what is there, to Parquet."""
        query = self.start(frame, name, availableNow=True)
        self.assertTrue(query.awaitTermination(PATIENCE), "the query did not end")
        return query

    def written(self, name: str = "out") -> DataFrame:
        return self.spark.read.parquet(str(self.folder / name))

    def values(self, name: str = "out") -> list[int]:
        """The payloads written, in the order of the journal."""
        rows = self.written(name).orderBy("timestamp", "seq").collect()
        return [int(row.data) for row in rows if not row.subject.startswith("!")]

    def wait_for(self, query: StreamingQuery, count: int, name: str = "out") -> None:
        def there() -> bool:
            problem = query.exception()
            if problem is not None:
                raise problem
            done: int = sum(p["numInputRows"] for p in query.recentProgress)
            return done >= count

        until(there, f"{count} messages")
