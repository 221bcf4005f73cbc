"""Tests for `rtmb.spark.source`, `.options` and `.transport`: the journal as a table."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.process.test_tls import Authority
from rtmb.test.processes import environment, need
from rtmb.test.spark_session import PATIENCE, JournalBroker, SparkCase, until

try:
    from rtmb.spark import options, transport
    from rtmb.spark.options import OptionError
except ImportError:  # `session` says what is missing
    pass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.slow


class OptionsTests(SynchronousTestCase):
    """Options without Spark."""

    def wrong(self, pattern: str, **given: str) -> None:
        error = self.assertRaises(OptionError, options.read, given, options.SOURCE)
        self.assertRegex(str(error), pattern)

    def test_defaults(self) -> None:
        found = options.read({}, options.SOURCE)
        self.assertEqual(found["maxMessagesPerTrigger"], 100_000)
        self.assertEqual((found["onDataLoss"], found["onEpochChange"]), ("fail", "fail"))
        self.assertEqual(found.access.servers, ("http://127.0.0.1:8080",))

    def test_values(self) -> None:
        """Names are taken in any case, as Spark does."""
        given = {
            "SERVERS": "http://a:1, https://b/", "subject": "a.*, b", "maxtriggerdelay": "5m",
            "startingPosition": "2030-01-01T00:00:00Z", "endingPosition": "17",
            "includeHeaders": "False", "checkpointLocation": "x", "path": "y",
        }  # fmt: skip
        found = options.read(given, options.SOURCE)
        self.assertEqual(found["servers"], ("http://a:1", "https://b"))
        self.assertEqual((found["subject"], found["maxTriggerDelay"]), (("a.*", "b"), 300.0))
        moment = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
        self.assertEqual((found["startingPosition"], found["endingPosition"]), (moment, 17))
        self.assertFalse(found["includeHeaders"])

    def test_what_is_wrong(self) -> None:
        """Each names the option, what was expected, and the nearest right one."""
        self.wrong("no option subjct; did you mean subject\\?", subjct="a")
        self.wrong("no option startingOffsets; did you mean startingPosition", startingOffsets="x")
        self.wrong("no option idColumn", idColumn="x")  # the sink's
        self.wrong(
            "onDataLoss: expected fail or skip or record; did you mean skip", onDataLoss="sk"
        )
        self.wrong("onEpochChange: expected fail or earliest", onEpochChange="latest")
        self.wrong("did you mean earliest", startingPosition="earlest")
        self.wrong("a sequence number, or a time", startingPosition="-5")
        self.wrong("minPartitions: expected a whole number above 0, not '0'", minPartitions="0")
        self.wrong("longPollMs: expected a whole number, not 'x'", longPollMs="x")
        self.wrong("servers: expected the broker's HTTP door", servers="localhost:8080")
        self.wrong("servers: expected", servers="http://a:1/path")
        self.wrong("servers: expected", servers=" , ")
        self.wrong("leaseTtl: expected seconds", leaseTtl="soon")
        self.wrong("includeHeaders: expected true or false", includeHeaders="maybe")
        self.wrong("subject: expected", subject="a b")
        self.wrong("subject: expected", subject="a,,b")
        self.wrong("certFile and keyFile", certFile="x")
        self.wrong("password needs user", password="x")
        self.wrong("more than max", minMessagesPerTrigger="5", maxMessagesPerTrigger="4")

    def test_secrets_are_not_shown(self) -> None:
        found = options.read({"apiKey": "s3cret", "user": "u", "password": "s3cret"}, options.SINK)
        self.assertNotIn("s3cret", repr(found.access))


class TransportTests(SynchronousTestCase):
    """The client in Spark's processes."""

    def setUp(self) -> None:
        need(self, "rtmb.spark.transport" in sys.modules, "no pyspark")

    def client(self, server: str, **more: Any) -> transport.Client:
        client = transport.Client(transport.Access((server,), **more))
        self.addCleanup(client.close)
        return client

    def test_no_twisted(self) -> None:
        """Spark's processes do not need a reactor."""
        code = "import sys, pyspark_rtmb, rtmb.spark.sink; sys.exit('twisted' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], env=environment(), check=False)
        self.assertEqual(done.returncode, 0)

    def test_path(self) -> None:
        self.assertEqual(
            transport.path("journal", "a/b", from_=1, subject=("x", ">"), bytes=None),
            "/journal/a%2Fb?from=1&subject=x&subject=%3E",
        )

    def test_calls_under_way(self) -> None:
        """Many are sent before the first answer is read; answers keep their order."""
        with JournalBroker() as broker:
            broker.publish("a", range(50))
            client = self.client(broker.server)
            for i in range(1, 51):
                client.send("GET", transport.path("journal", "wait", from_=i))
            self.assertEqual(len(client), 50)
            found = [json.loads(client.receive())["messages"] for _ in range(50)]
            self.assertEqual(found, list(range(50, 0, -1)))

    def test_a_broker_that_comes_back(self) -> None:
        """Calls that were under way are sent again."""
        with JournalBroker() as broker:
            client = self.client(broker.server)
            before = client.json("GET", "/journal/position?at=latest")
            port = broker.http_port
        client.send("GET", "/journal/position?at=latest")
        client.send("GET", "/journal/position?at=earliest")
        with JournalBroker("--http-port", str(port)) as broker:
            broker.publish("a", range(3))
            after, first = (json.loads(client.receive()) for _ in range(2))
        self.assertNotEqual(before["epoch"], after["epoch"])
        self.assertEqual((after["seq"], first["seq"]), (4, 1))

    def test_nobody_there(self) -> None:
        with JournalBroker() as broker:
            server = broker.server
        client = self.client(server, retries=2)
        begun = time.monotonic()
        error = self.assertRaises(transport.UnreachableError, client.call, "GET", "/journal")
        self.assertRegex(str(error), f"no broker at {server}: .*refused.*3 tries")
        self.assertLess(time.monotonic() - begun, 5)

    def test_the_second_server(self) -> None:
        with JournalBroker() as gone:
            pass
        with JournalBroker() as broker:
            client = transport.Client(transport.Access((gone.server, broker.server)))
            self.addCleanup(client.close)
            self.assertEqual(client.json("GET", "/journal/position?at=latest")["seq"], 1)

    def test_access(self) -> None:
        """A key, a user, a token; and what is said without them."""
        users = '[[auth.users]]\nuser = "u"\npassword = "p"\n'
        for arguments, config, right in (
            (("--api-key", "k3y"), None, {"api_key": "k3y"}),
            ((), users, {"user": "u", "password": "p"}),
            (("--token", "t0ken"), None, {"token": "t0ken"}),
        ):
            with JournalBroker(*arguments, config=config) as broker:
                found = self.client(broker.server, **right).json("GET", "/journalz")
                self.assertEqual(found["journal"]["next"], 1, str(right))
                for wrong in ({}, dict.fromkeys(right, "wrong")):
                    client = self.client(broker.server, **wrong)
                    error = self.assertRaises(
                        transport.BrokerError, client.call, "GET", "/journalz"
                    )
                    self.assertEqual(error.status, 401)


class OffsetTests(SynchronousTestCase):
    """The stream's reader by itself, called as Spark calls it."""

    def setUp(self) -> None:
        need(self, "rtmb.spark.transport" in sys.modules, "no pyspark")
        self.broker = JournalBroker()
        self.addCleanup(self.broker.stop)

    def reader(self, **given: str) -> Any:
        from rtmb.spark.source import StreamReader

        return StreamReader(options.read({"servers": self.broker.server, **given}, options.SOURCE))

    def test_spark_asks_twice_where_to_begin(self) -> None:
        """Messages may come between, and the first batch may be done by another reader."""
        reader = self.reader(startingPosition="latest")
        limit = reader.getDefaultReadLimit()
        start = reader.initialOffset()
        self.broker.publish("a", range(50))
        self.assertEqual(reader.initialOffset(), start)
        end = reader.latestOffset(start, limit)
        self.assertEqual(end, start, "an empty batch, so that Spark writes down where this began")
        later = self.reader(startingPosition="latest")
        self.assertEqual(later.partitions(later.initialOffset(), end), [])
        end = later.latestOffset(start, limit)
        self.assertEqual(end["seq"] - start["seq"], 50, "a restarted query goes on from there")

    def test_readers_are_pickled(self) -> None:
        """After use too: Spark sends them to other processes."""
        reader = self.reader()
        self.broker.publish("a", range(10))
        start = reader.initialOffset()
        end = {**start, "seq": 11}
        other = pickle.loads(pickle.dumps(reader))
        (part,) = pickle.loads(pickle.dumps(other.partitions(start, end)))
        self.assertEqual(sum(batch.num_rows for batch in other.read(part)), 10)

    def test_partitions_do_not_change(self) -> None:
        """The same offsets give the same partitions, which have it all, once."""
        for count, least in ((1, 1), (3, 8), (100, 7), (160_000, 1), (10_000_000, 1)):
            reader = self.reader(minPartitions=str(least))
            start, end = {"epoch": "e", "seq": 5}, {"epoch": "e", "seq": 5 + count}
            parts = reader.partitions(start, end)
            self.assertEqual(parts, reader.partitions(start, end))
            bounds = [(part.start, part.end) for part in parts]
            self.assertEqual((bounds[0][0], bounds[-1][1]), (5, 5 + count))
            for (_, one), (other, _) in itertools.pairwise(bounds):
                self.assertEqual(one, other)
            self.assertGreaterEqual(len(parts), min(count, least))
            self.assertLessEqual(len(parts), max(16, least))

    def test_no_waiting_when_there_is_news(self) -> None:
        reader = self.reader(longPollMs="20000")
        start = reader.initialOffset()
        limit = reader.getDefaultReadLimit()
        reader.latestOffset(start, limit)
        soon = threading.Timer(0.5, self.broker.publish, ("a", [1]))
        soon.start()
        self.addCleanup(soon.join)
        begun = time.monotonic()
        self.assertEqual(reader.latestOffset(start, limit)["seq"], 2)
        self.assertLess(time.monotonic() - begun, 10)

    def test_over_tls(self) -> None:
        files = Path(tempfile.mkdtemp(prefix="rtmb-tls-"))
        self.addCleanup(shutil.rmtree, files)
        authority = Authority()
        (files / "ca").write_bytes(authority.pem)
        for name, data in zip(("certificate", "key"), authority.issue("server"), strict=True):
            (files / name).write_bytes(data)
        self.broker.stop()
        self.broker = JournalBroker(
            "--tls-cert", str(files / "certificate"), "--tls-key", str(files / "key")
        )
        self.addCleanup(self.broker.stop)
        server = self.broker.server.replace("http:", "https:")
        access = transport.Access((server,), ca_file=str(files / "ca"))
        self.assertEqual(transport.Client(access).json("GET", "/journalz")["journal"]["next"], 1)
        stranger = transport.Client(transport.Access((server,)))
        error = self.assertRaises(transport.UnreachableError, stranger.call, "GET", "/journalz")
        self.assertIn("certificate verify failed", str(error))


class BatchTests(SparkCase):
    """``spark.read``"""

    def test_columns(self) -> None:
        broker = self.broker()
        from rtmb.test.processes import RawClient

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
        error = self.refused(reader.schema("a int").load().count)
        self.assertIn("a schema of its own", error)


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
