"""Tests for `rtmb.spark.source`: the journal as a table."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from rtmb.test.support.spark_session import PATIENCE, SparkCase, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.slow


class BatchTests(SparkCase):
    """``spark.read``"""

    def test_columns(self) -> None:
        broker = self.broker()
        from rtmb.test.support.processes import RawClient

        before = time.time()
        with RawClient(broker.port) as client:
            client.connect()
            client.send(b"PUB a.b r.1 3\r\n\x00\xff\n\r\n")
            client.send(b"HPUB c 30 31\r\nNATS/1.0\r\nA: 1\r\nB: x\r\nA: 2\r\n\r\n!\r\n")
            client.settle()
        first, second = self.batch(broker).orderBy("seq").collect()
        self.assertEqual(
            (first.subject, bytes(first.data), first.headers, first.reply, first.seq, first.door),
            ("a.b", b"\x00\xff\n", None, "r.1", 1, "nats"),
        )
        self.assertEqual((second.headers, second.reply), ({"A": "1, 2", "B": "x"}, None))
        self.assertLess(abs(first.timestamp.timestamp() - before), 60)
        (row,) = self.batch(broker, subject="c", includeHeaders="false").collect()
        self.assertIsNone(row.headers)

    def test_which(self) -> None:
        """By subject, by number, by time; in as many partitions as asked for."""
        broker = self.broker()
        broker.publish("a.x", range(30_000))
        broker.publish("b", range(10))
        broker.publish("a.y", range(10))
        frame = self.batch(broker)
        self.assertEqual((frame.count(), frame.select("seq").distinct().count()), (30_020, 30_020))
        for given, count in (
            ({"subject": "a.*"}, 30_010),
            ({"subject": "b,a.y"}, 20),
            ({"subject": "none"}, 0),
            ({"startingPosition": 30_011}, 10),
            ({"startingPosition": 29_999, "endingPosition": 30_001}, 2),
            ({"startingPosition": 5, "endingPosition": 5}, 0),
            ({"startingPosition": "latest"}, 0),
            ({"startingPosition": "2000-01-01"}, 30_020),
            ({"startingPosition": "2200-01-01T00:00:00Z"}, 0),
            ({"endingPosition": "2000-01-01"}, 0),
        ):
            self.assertEqual(self.batch(broker, **given).count(), count, str(given))
        parts = self.batch(broker, minPartitions=5)
        self.assertEqual(parts.rdd.getNumPartitions(), 5)
        self.assertEqual(parts.select("seq").distinct().count(), 30_020)
        error = self.refused(self.batch(broker, startingPosition=99_999).count)
        self.assertIn("position 99999 is beyond the journal", error)

    def test_wrong_options(self) -> None:
        broker = self.broker()
        error = self.refused(lambda: self.batch(broker, subjects="a"))
        self.assertIn("no option subjects; did you mean subject?", error)
        reader = self.spark.read.format("rtmb").option("servers", broker.server)
        error = self.refused(reader.option("payload", "text").schema("a int").load().count)
        self.assertIn("columns of its own", error)


def _ended(query: Any) -> bool:
    """Whether a stream says that it has come to its ending position."""
    newest = query.lastProgress["sources"][0]["latestOffset"]
    return bool(newest and json.loads(newest).get("ended"))


class StreamTests(SparkCase):
    """``spark.readStream``"""

    def test_from_the_beginning(self) -> None:
        broker = self.broker()
        broker.publish("a", range(1000))
        query = self.start(self.stream(broker, consumer="the archive", leaseTtl="30s"))
        self.wait_for(query, 1000)
        broker.publish("b", range(1000, 1500))
        self.wait_for(query, 1500)
        until(lambda: broker.journalz()["largest_lag"] == 0, "the lease to follow")
        (lease,) = broker.journalz()["leases"]
        self.assertEqual((lease["consumer"], lease["position"]), ("the archive", 1501))
        query.stop()
        self.assertEqual(self.values(), list(range(1500)))

    def test_the_lag_is_in_its_progress(self) -> None:
        broker = self.broker()
        broker.publish("a", range(1000))
        query = self.start(self.stream(broker, maxMessagesPerTrigger=400))
        self.wait_for(query, 1000)
        told = [json.loads(p["sources"][0]["latestOffset"]) for p in query.recentProgress]
        found = {t["lag"]: t["lag_seconds"] for t in told}
        self.assertLessEqual({600, 200, 0}, set(found), "after each batch")
        self.assertGreater(found[600], 0)
        self.assertEqual(found[0], 0)

    def test_what_is_not_wanted_is_no_lag(self) -> None:
        broker = self.broker()
        broker.publish("wanted", range(10))
        query = self.start(self.stream(broker, subject="wanted", longPollMs=50))
        self.wait_for(query, 10)
        broker.publish("other", range(500))
        until(lambda: broker.journalz()["largest_lag"] == 0, "the lease to pass them")
        self.assertEqual(broker.journalz()["leases"][0]["position"], 511)

    def test_it_ends_where_it_was_told_to(self) -> None:
        broker = self.broker()
        broker.publish("a", range(1000))
        query = self.start(self.stream(broker, endingPosition=701, maxMessagesPerTrigger=400))
        self.wait_for(query, 700)
        broker.publish("a", range(1000, 1200))
        until(lambda: _ended(query), "the query to say that it is at its end")
        query.stop()
        self.assertEqual(self.values(), list(range(700)))

    def test_it_ends_at_a_time(self) -> None:
        """What is published at that time or later is left out; before it has come, nothing is."""
        broker = self.broker()
        broker.publish("a", range(100))
        moment = datetime.now(UTC) + timedelta(seconds=4)
        query = self.start(self.stream(broker, endingPosition=moment.isoformat()))
        self.wait_for(query, 100)
        until(lambda: datetime.now(UTC) >= moment, "the time to come")
        broker.publish("a", range(100, 200))
        until(lambda: _ended(query), "the query to say that it is at its end")
        query.stop()
        self.assertEqual(self.values(), list(range(100)))

    def test_from_now_on(self) -> None:
        """All that comes once the query has begun, though Spark asks twice where that is, and
        though it is restarted at once."""
        broker = self.broker()
        broker.publish("a", range(50))
        frame = self.stream(broker, startingPosition="latest")
        query = self.start(frame)
        until(lambda: bool(query.lastProgress), "the first batch")
        broker.publish("a", range(50, 100))
        query.stop()
        broker.publish("a", range(100, 150))
        self.drain(frame)
        self.assertEqual(self.values(), list(range(50, 150)))

    def test_limits(self) -> None:
        """So many wanted messages a batch, or bytes of them."""
        broker = self.broker()
        for i in range(100):
            broker.publish("a", [f"{i:010}"])
            broker.publish("b", [0, 0])
        for name, given, most in (
            ("messages", {"subject": "a", "maxMessagesPerTrigger": 30}, 30),
            ("bytes", {"maxBytesPerTrigger": 600}, 160),
        ):
            query = self.drain(self.stream(broker, **given), name)
            counts = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
            self.assertLessEqual(max(counts), most, name)
            self.assertGreater(len(counts), 1, name)
        self.assertEqual(self.values("messages"), list(range(100)))
        self.assertEqual(len(self.values("bytes")), 300)

    def test_few_messages_wait_for_more(self) -> None:
        """Until there are enough, or the longest delay is over."""
        broker = self.broker()
        frame = self.stream(broker, minMessagesPerTrigger=100, maxTriggerDelay="6s")
        query = self.start(frame)
        until(lambda: bool(query.lastProgress), "the first batch")
        broker.publish("a", range(60))
        broker.publish("a", range(60, 120))
        self.wait_for(query, 120)
        begun = time.monotonic()
        broker.publish("a", range(120, 130))
        self.wait_for(query, 130)
        self.assertGreater(time.monotonic() - begun, 3, "it waited for more")
        counts = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
        self.assertEqual(counts, [120, 10])

    def test_a_filter_that_matches_seldom(self) -> None:
        """Its position moves on with the journal, so that nothing is taken for lost."""
        broker = self.broker("--journal-messages", "1000")
        query = self.start(self.stream(broker, subject="rare", longPollMs=50))
        until(lambda: bool(query.lastProgress), "the first batch")
        for _ in range(12):
            position = broker.journalz()["next"]
            broker.publish("often", range(400))
            until(
                lambda: broker.journalz()["leases"][0]["position"] > position,  # noqa: B023
                "the position to move",
            )
        broker.publish("rare", [7])
        self.wait_for(query, 1)
        query.stop()
        self.assertEqual(self.values(), [7])


class LossTests(SparkCase):
    """What was overwritten, and brokers that were restarted."""

    def outcome(self, frame: DataFrame, name: str) -> str:
        """How a query that should end by itself ended."""
        query = self.start(frame, name, availableNow=True)
        try:
            self.assertTrue(query.awaitTermination(PATIENCE))
        except Exception as error:
            return str(error)
        return ""

    def again(self, name: str) -> None:
        """A copy of the first query, as far as it has come."""
        for suffix in ("", "-checkpoint"):
            shutil.copytree(self.folder / f"out{suffix}", self.folder / f"{name}{suffix}")
        for path in (self.folder / name / "_spark_metadata").iterdir():
            if path.name.isdigit():
                text = path.read_text().replace(f"{self.folder}/out/", f"{self.folder}/{name}/")
                path.write_text(text)
            else:  # a checksum that is no longer right
                path.unlink()

    def gaps(self, name: str) -> list[dict[str, Any]]:
        rows = self.written(name).where("subject = '!journal/gap'").collect()
        return [json.loads(bytes(row.data)) for row in rows]

    def test_a_journal_too_small(self) -> None:
        broker = self.broker("--journal-messages", "160")
        broker.publish("a", range(50))
        self.drain(self.stream(broker))
        broker.publish("a", range(50, 500))
        first = broker.journalz()["first"]
        self.assertGreater(first, 51)
        for policy in ("fail", "skip", "record"):
            self.again(policy)
        said = self.outcome(self.stream(broker), "fail")
        self.assertIn(f"messages 51 to {first - 1} of the journal ({first - 51}", said)
        self.assertIn("overwritten before they were read", said)
        self.assertIn("--journal-bytes", said)
        self.assertEqual(self.values("fail"), list(range(50)))
        kept = [*range(50), *range(first - 1, 500)]
        self.assertEqual(self.outcome(self.stream(broker, onDataLoss="skip"), "skip"), "")
        self.assertEqual(self.values("skip"), kept)
        self.assertEqual(self.outcome(self.stream(broker, onDataLoss="record"), "record"), "")
        self.assertEqual(self.values("record"), kept)
        gaps = self.gaps("record")
        self.assertEqual(sum(gap["count"] for gap in gaps), first - 51)
        self.assertEqual((gaps[0]["from"], gaps[-1]["to"]), (51, first - 1))

    def test_a_broker_restarted(self) -> None:
        """Between two runs of a query."""
        broker = self.broker()
        broker.publish("a", range(100))
        self.drain(self.stream(broker))
        for policy in ("fail", "earliest", "record"):
            self.again(policy)
        broker.stop()
        broker = self.broker()
        broker.publish("a", range(100, 180))
        said = self.outcome(self.stream(broker), "fail")
        self.assertIn("the broker was restarted", said)
        self.assertIn("from message 101 on", said)
        self.assertIn("onEpochChange", said)
        frame = self.stream(broker, onEpochChange="earliest")
        self.assertEqual(self.outcome(frame, "earliest"), "")
        self.assertEqual(self.values("earliest"), list(range(180)))
        frame = self.stream(broker, onEpochChange="earliest", onDataLoss="record")
        self.assertEqual(self.outcome(frame, "record"), "")
        self.assertEqual(self.values("record"), list(range(180)))
        (gap,) = self.gaps("record")
        self.assertEqual((gap["from"], gap["count"]), (101, None))
        self.assertEqual(gap["cause"], "the broker was restarted")

    def test_a_broker_restarted_in_mid_query(self) -> None:
        """The query waits for it to come back, and does as it was told."""
        broker = self.broker()
        broker.publish("a", range(100))
        going = self.start(self.stream(broker, onEpochChange="earliest", longPollMs=100))
        failing = self.start(self.stream(broker, longPollMs=100), "fail")
        self.wait_for(going, 100)
        self.wait_for(failing, 100)
        broker.kill()
        broker = self.broker("--http-port", str(broker.http_port))
        broker.publish("a", range(100, 150))
        self.wait_for(going, 150)
        going.stop()
        self.assertEqual(self.values(), list(range(150)))
        error = self.refused(lambda: failing.awaitTermination(PATIENCE))
        self.assertIn("the broker was restarted", error)
