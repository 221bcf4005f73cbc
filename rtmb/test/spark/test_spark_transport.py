"""Tests for `rtmb.spark.options` and `.transport`: settings, requests and offsets."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.support.certificates import Authority
from rtmb.test.support.files import folder
from rtmb.test.support.processes import environment, need
from rtmb.test.support.spark_session import JournalBroker

try:
    from rtmb.spark import options, transport
    from rtmb.spark.options import OptionError
except ImportError:  # `session` says what is missing
    pass

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
        self.assertEqual(found["mode"], "permissive")
        found = options.read({"subject": "a", "deadLetter": "dead"}, options.SOURCE)
        self.assertEqual(found["mode"], "deadLetter", "who names a subject wants them")

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
        self.wrong("mode: expected permissive or drop or fail or deadLetter", mode="skip")
        self.wrong("mode deadLetter needs the option deadLetter", mode="deadLetter")
        self.wrong(
            "deadLetter is for the mode deadLetter, not for drop", deadLetter="d", mode="drop"
        )
        self.wrong("not a subject to publish on: 'd.\\*'", deadLetter="d.*")
        self.wrong("the source would read dead.x itself", deadLetter="dead.x")
        self.wrong("payload: expected binary or text or json or msgpack", payload="xml")
        self.wrong("more than max", minMessagesPerTrigger="5", maxMessagesPerTrigger="4")

    def test_secrets_are_not_shown(self) -> None:
        found = options.read({"apiKey": "s3cret", "user": "u", "password": "s3cret"}, options.SINK)
        self.assertNotIn("s3cret", repr(found.access))


class TransportTests(SynchronousTestCase):
    """The client in Spark's processes."""

    def setUp(self) -> None:
        need(self, "rtmb.spark.transport" in sys.modules, "no pyspark")

    def client(self, server: str, **more: Any) -> transport.JournalClient:
        client = transport.JournalClient(transport.BrokerLogin((server,), **more))
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
            client = transport.JournalClient(transport.BrokerLogin((gone.server, broker.server)))
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
        files = folder(self)
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
        access = transport.BrokerLogin((server,), ca_file=str(files / "ca"))
        self.assertEqual(
            transport.JournalClient(access).json("GET", "/journalz")["journal"]["next"], 1
        )
        stranger = transport.JournalClient(transport.BrokerLogin((server,)))
        error = self.assertRaises(transport.UnreachableError, stranger.call, "GET", "/journalz")
        self.assertIn("certificate verify failed", str(error))
