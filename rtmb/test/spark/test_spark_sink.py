"""Tests for `rtmb.spark.sink`, and of source and sink where it hurts: killed drivers, a cluster."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rtmb.test.support.processes import PATIENCE, RawClient, ServerProcess
from rtmb.test.support.spark_session import JournalBroker, SparkCase, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.slow


class Ear:
    """Someone who subscribes and remembers what was heard."""

    def __init__(self, broker: JournalBroker, subject: str) -> None:
        self._client = RawClient(broker.port)
        self._client.connect()
        self._client.subscribe(subject)
        self._data = b""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                data = self._client.socket.recv(1 << 18)
            except TimeoutError:
                continue
            except OSError:
                return
            if not data:
                return
            self._data += data
            if b"PING\r\n" in data:  # else a test on a busy machine outlasts the broker's patience
                self._client.send(b"PONG\r\n")

    def close(self) -> None:
        self._client.socket.shutdown(2)
        self._thread.join(PATIENCE)
        self._client.close()

    @property
    def heard(self) -> list[tuple[str, str, bytes]]:
        """Subject, id and payload of each message."""
        found = re.findall(
            rb"HMSG (\S+) 1 \d+ \d+\r\nNATS/1.0\r\nNats-Msg-Id: ([^\r]*)\r\n(?:[^\r]+\r\n)*\r\n"
            rb"([^\r]*)\r\n",
            self._data,
        )
        return [(subject.decode(), name.decode(), payload) for subject, name, payload in found]

    @property
    def payloads(self) -> list[int]:
        return [int(payload) for _, _, payload in self.heard]


class SinkCase(SparkCase):
    def ear(self, broker: JournalBroker, subject: str) -> Ear:
        ear = Ear(broker, subject)
        self.addCleanup(ear.close)
        return ear


class BatchSinkTests(SinkCase):
    """``write``"""

    def write(self, frame: DataFrame, broker: JournalBroker, **given: str) -> None:
        writer = frame.write.format("rtmb").option("servers", broker.server).mode("append")
        writer.options(**given).save()

    def test_rows_become_messages(self) -> None:
        broker = self.broker()
        ear = self.ear(broker, "out.>")
        frame = self.spark.range(20_000).selectExpr(
            "concat('out.', id % 7) AS subject", "string(id) AS data", "map('N', 'v') AS headers"
        )
        self.write(frame, broker)
        until(lambda: len(ear.heard) >= 20_000, "all messages")
        self.assertEqual(sorted(ear.payloads), list(range(20_000)))
        self.assertEqual(len({name for _, name, _ in ear.heard}), 20_000, "each has its id")
        for subject, _, payload in ear.heard[:100]:
            self.assertEqual(subject, f"out.{int(payload) % 7}")
        (row,) = self.batch(broker).where("string(data) = '5'").collect()
        self.assertEqual((row.subject, row.headers["N"], row.door), ("out.5", "v", "spark"))

    def test_order_within_a_partition(self) -> None:
        broker = self.broker()
        ear = self.ear(broker, "o")
        self.write(self.spark.range(10_000).coalesce(1).selectExpr("string(id) data"), broker,
                   subject="o")  # fmt: skip
        until(lambda: len(ear.heard) >= 10_000, "all messages")
        self.assertEqual(ear.payloads, list(range(10_000)))

    def test_ids_from_a_column(self) -> None:
        """The same id again is not published again, by another write neither."""
        broker = self.broker()
        ear = self.ear(broker, "o")
        frame = self.spark.range(100).selectExpr(
            "'o' AS subject", "string(id) data", "id % 50 AS k"
        )
        self.write(frame, broker, idColumn="k")
        self.write(frame, broker, idColumn="k")
        self.write(frame.limit(1), broker)  # without ids: each write is its own
        until(lambda: len(ear.heard) >= 51, "all messages")
        self.assertEqual(len(ear.heard), 51)

    def test_what_cannot_be_written(self) -> None:
        broker = self.broker()
        good = self.spark.range(3).selectExpr("'o' AS subject", "string(id) AS data")
        for frame, given, pattern in (
            (good, {"subjct": "x"}, "no option subjct; did you mean subject"),
            (good, {"subject": "a.*"}, "not a subject to publish on"),
            (good, {"idColumn": "k"}, "there is no column k"),
            (good, {"maxInFlight": "0"}, "above 0"),
            (good.drop("subject"), {}, "needs a column subject, or the option subject"),
            (good.drop("data"), {}, "needs a column data"),
            (good.selectExpr("subject", "1 AS data"), {}, "data must be binary or string, not int"),
            (good.selectExpr("*", "1 AS headers"), {}, "map<string, string>"),
            (good.selectExpr("string(null) AS subject", "data"), {}, "it has no subject"),
            (good.selectExpr("'a b' AS subject", "data"), {}, "not a subject: 'a b'"),
        ):
            error = self.refused(lambda: self.write(frame, broker, **given))  # noqa: B023
            self.assertIn(pattern, error)
        error = self.refused(
            lambda: good.write.format("rtmb").option("servers", broker.server)
            .mode("overwrite").save()
        )  # fmt: skip
        self.assertIn("nothing to overwrite", error)
        self.assertEqual(broker.journalz()["next"], 1, "nothing was published")


class StreamSinkTests(SinkCase):
    """``writeStream``"""

    def copy(self, broker: JournalBroker, **given: str) -> Any:
        frame = self.stream(broker, subject="in", minPartitions=2)
        writer = frame.selectExpr("'out' AS subject", "data", "seq").writeStream.format("rtmb")
        writer = writer.option("servers", broker.server).options(**given)
        return writer.option("checkpointLocation", str(self.folder / "checkpoint"))

    def test_a_batch_done_again(self) -> None:
        """What a crash between the publishing and the end of a batch leaves: the batch is done
        again, and publishes nothing twice."""
        broker = self.broker(journal="in")
        ear = self.ear(broker, "out")
        broker.publish("in", range(5000))
        for last in range(3):
            query = self.copy(broker).trigger(availableNow=True).start()
            self.assertTrue(query.awaitTermination(PATIENCE * 3))
            (self.folder / "checkpoint" / "commits" / "1").unlink()
            (self.folder / "checkpoint" / "commits" / ".1.crc").unlink()
            until(lambda: len(ear.heard) >= 5000, f"all messages, time {last}")
        self.assertEqual(sorted(ear.payloads), list(range(5000)))
        broker.publish("in", range(5000, 5010))
        query = self.copy(broker).trigger(availableNow=True).start()
        self.assertTrue(query.awaitTermination(PATIENCE * 3))
        until(lambda: len(ear.heard) >= 5010, "what is new")
        self.assertEqual(sorted(ear.payloads), list(range(5010)))


class Publisher:
    """Publishes numbers until told to stop."""

    def __init__(self, broker: JournalBroker) -> None:
        self._broker = broker
        self._done = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        while not self._done.wait(0.02):
            subject = f"in.{self.count % 5}"
            self._broker.publish(subject, range(self.count, self.count + 20))
            self.count += 20

    def stop(self) -> None:
        self._done.set()
        self._thread.join(PATIENCE)


class Driver(ServerProcess):
    """`rtmb.test.support.spark_driver`, to be killed."""

    def __init__(self, master: str, broker: JournalBroker, folder: Path, mode: str = "") -> None:
        command = [sys.executable, "-m", "rtmb.test.support.spark_driver", master, broker.server]
        super().__init__(
            ["setsid", *command, str(folder), mode], env={"PYSPARK_PYTHON": sys.executable}
        )

    def kill(self) -> None:
        """The driver and its Java, at once."""
        os.killpg(self.pid, signal.SIGKILL)
        self.wait()


#: Seen once, with Spark 4.3 and two queries in the driver: Spark could not serialize a task, since
#: a collection changed its size meanwhile; every frame was Spark's. It ends the driver, and that is
#: a death like any other: each message is to arrive once all the same.
SPARK_RACE = "java.lang.IllegalStateException: Illegal size"


class OnceTests(SinkCase):
    """Each message once in Parquet, each id once at the sink's subscribers."""

    def check(self, ear: Ear, count: int) -> None:
        until(lambda: len(ear.heard) >= count, "the copies")
        self.assertEqual(sorted(self.values("parquet")), list(range(count)))
        self.assertEqual(sorted(ear.payloads), list(range(count)))
        again = [name for name, n in Counter(name for _, name, _ in ear.heard).items() if n > 1]
        self.assertEqual(again, [])

    def test_killed_drivers(self) -> None:
        broker = self.broker(journal="in.>")
        ear = self.ear(broker, "out.>")
        publisher = Publisher(broker)
        self.addCleanup(publisher.stop)
        chance = random.Random()
        for _ in range(3):
            driver = Driver("local[2]", broker, self.folder)
            self.addCleanup(driver.stop)
            driver.expect_log(f"batch .* of |{SPARK_RACE}", timeout=PATIENCE * 4)
            moment = chance.uniform(0, 2.5)
            try:
                driver.process.wait(moment)
            except subprocess.TimeoutExpired:
                driver.kill()
            else:
                self.assertIn(SPARK_RACE, driver.log(), "the driver ended by itself")
        publisher.stop()
        self.assertGreater(publisher.count, 1000)
        for _ in range(3):
            last = Driver("local[2]", broker, self.folder, "now")
            self.addCleanup(last.stop)
            found = last.expect_log(f"^done|\ndone|{SPARK_RACE}", timeout=PATIENCE * 4)
            if found[0] != SPARK_RACE.encode():
                break
        self.check(ear, publisher.count)

    def test_a_cluster(self) -> None:
        """The same on a master and two workers, from the pip package."""
        import pyspark

        home = Path(pyspark.__file__).parent
        env = {
            "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
            "SPARK_DAEMON_MEMORY": "256m",
        }  # fmt: skip
        start = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy."]
        here = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]

        def daemon(kind: str, *arguments: str) -> ServerProcess:
            command = [start[0], f"{start[1]}{kind}", *here, *arguments]
            process = ServerProcess(command, env=env)
            self.addCleanup(process.stop)
            return process

        master = daemon("master.Master")
        found = master.expect_log(r"Starting Spark master at (spark://\S+)", timeout=PATIENCE * 2)
        url = found[1].decode()
        for _ in range(2):
            worker = daemon("worker.Worker", "--cores", "1", "--memory", "1g", url)
            worker.expect_log("Successfully registered with master", timeout=PATIENCE * 2)
        broker = self.broker(journal="in.>")
        ear = self.ear(broker, "out.>")
        for i in range(5):
            broker.publish(f"in.{i}", range(i * 400, i * 400 + 400))
        driver = Driver(url, broker, self.folder, "now")
        self.addCleanup(driver.stop)
        driver.expect_log("^done|\ndone", timeout=PATIENCE * 4)
        self.check(ear, 2000)
        self.assertEqual(len(re.findall("Registering app", master.log())), 1)
