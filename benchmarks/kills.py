"""Kill -9 of the driver, an executor and the broker in turn, while messages flow:
python -m benchmarks.kills [ROUNDS] [MESSAGES A SECOND]

A standalone cluster of a master and two workers runs the jobs of a file: an archive of everything,
one of payloads that fit a schema, with the others as dead letters, an archive of those, and a
roll-up. One message in a thousand is no JSON. At the end each number that was published must be
where it belongs, once.

The broker keeps its journal in memory, so what nobody has read when it dies is lost, as the manual
says. For its deaths, and for no others, the publisher waits until all has been read.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark

from rtmb.test.support.processes import BrokerProcess, RawClient, environment

PATIENCE = 300.0
MASTER = ("spark://127.0.0.1:17077", 17077)
JOBS = """
servers = "{server}"
[options]
retries = 1000
[[job]]
type = "archive"
subject = "flow.>"
archive = "{folder}/all"
every = "1 second"
[[job]]
type = "archive"
subject = "flow.>"
archive = "{folder}/typed"
schema = "n bigint"
dead-letter = "dead.flow"
every = "1 second"
[[job]]
type = "archive"
subject = "dead.>"
archive = "{folder}/dead"
every = "1 second"
[[job]]
type = "rollup"
subject = "flow.>"
field = "n"
window = "2 seconds"
late = "2 seconds"
to = "{folder}/rolled"
every = "2 seconds"
"""
#: How many consumers the jobs are: a roll-up has two.
CONSUMERS = 5


def until(there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not there():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {PATIENCE:.0f} s")
        time.sleep(0.1)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Cluster:
    """A master and two workers of Spark, as processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = Path(pyspark.__file__).parent
        self._env = environment() | {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": str(self._home),
            "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
        }
        address, port = MASTER
        self._processes = [self._start("master.Master", "--port", str(port), "--webui-port", "0")]
        until(lambda: _answers(port), "the master")
        self._workers = [
            self._start(
                "worker.Worker", "--webui-port", "0", "--cores", "1", "--memory", "1g",
                "--work-dir", str(folder / "work"), address,
            )
            for _ in range(2)
        ]  # fmt: skip
        self._processes += self._workers

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / "cluster.log").open("ab") as log:
            return subprocess.Popen(
                [self._home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}",
                 "--host", "127.0.0.1", *arguments],
                env=self._env, stdout=log, stderr=log,
            )  # fmt: skip

    def executors(self) -> list[int]:
        """The executors' numbers: they are the workers' children."""
        workers = {str(worker.pid) for worker in self._workers}
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = stat.read_text().rpartition(")")[2].split()[1]
                command = (stat.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if parent in workers and b"CoarseGrainedExecutorBackend" in command:
                found.append(int(stat.parent.name))
        return found

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()


class Run:
    """The broker, the jobs and the publisher."""

    def __init__(self, folder: Path, rate: int) -> None:
        self.folder, self.rate = folder, rate
        self.cluster = Cluster(folder)
        self.broker = BrokerProcess(*self._arguments)
        self.client = self._client()
        self.server = f"http://127.0.0.1:{self.broker.http_port}"
        (folder / "jobs.toml").write_text(JOBS.format(server=self.server, folder=folder))
        self.published = 0
        self.driver = self._driver()

    _arguments = ("--no-msgpack", "--journal", ">", "--dedup-window", "1000")

    def _client(self) -> RawClient:
        client = RawClient(self.broker.port)
        client.connect()
        return client

    def _driver(self) -> subprocess.Popen[bytes]:
        with (self.folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "rtmb", "pipeline", "run", str(self.folder / "jobs.toml"),
                 "--master", MASTER[0], "--log", str(self.folder / "spark.log")],
                env=environment()
                | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def flow(self, seconds: float) -> None:
        """Publish for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            parts = []
            for number in range(self.published, self.published + max(1, self.rate // 20)):
                bad = number % 1000 == 999
                payload = b"bad %d" % number if bad else b'{"n": %d}' % number
                parts.append(b"PUB flow.%d %d\r\n%b\r\n" % (number % 3, len(payload), payload))
            self.client.send(b"".join(parts))
            self.client.settle()
            self.published += len(parts)
            time.sleep(max(0.0, 0.05 - (time.monotonic() - began)))

    def leases(self) -> list[dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{self.server}/journalz", timeout=5) as answer:
                found: list[dict[str, Any]] = json.load(answer)["journal"]["leases"]
        except (urllib.error.URLError, OSError):
            return []
        return found

    def read_all(self) -> None:
        """Wait until every job has read all there is."""

        def there() -> bool:
            self.alive()
            leases = self.leases()
            return len(leases) == CONSUMERS and not any(lease["lag"] for lease in leases)

        until(there, "the jobs to catch up")

    def alive(self) -> None:
        """Start the driver again if it has ended by itself, as a supervisor would: on a machine
        that is too busy, Spark gives up."""
        if self.driver.poll() is not None:
            last = (self.folder / "driver.log").read_text().splitlines()[-1:]
            print(f"the driver ended by itself: {last}", flush=True)
            self.driver = self._driver()

    # Who dies

    def kill_driver(self) -> None:
        os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()
        self.flow(1)
        self.driver = self._driver()

    def kill_executor(self) -> None:
        until(lambda: bool(self.cluster.executors()), "an executor")
        os.kill(random.choice(self.cluster.executors()), signal.SIGKILL)

    def kill_broker(self) -> None:
        self.read_all()
        ports = ("--port", str(self.broker.port), "--http-port", str(self.broker.http_port))
        self.broker.kill()
        self.client.close()
        self.broker = BrokerProcess(*self._arguments, *ports)
        self.client = self._client()

    def stop(self) -> None:
        if self.driver.poll() is None:
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()
        self.broker.stop()
        self.cluster.stop()


def numbers(spark: Any, path: Path) -> Counter[int]:
    """The numbers in an archive's payloads, but for the rows that stand for gaps."""
    from rtmb.spark.jobs.store import Archive

    rows = Archive(spark, str(path)).messages().where("door != 'journal'").select("data").collect()
    return Counter(int(bytes(row.data).translate(None, b'{}": nbad')) for row in rows)


def check(run: Run) -> list[str]:
    """What does not add up."""
    from rtmb.spark.jobs.session import session
    from rtmb.spark.jobs.store import Archive

    spark = session("check", "local[2]")
    every = Counter(range(run.published))
    bad = Counter(range(999, run.published, 1000))
    wrong = []
    for name, wanted in (("all", every), ("typed", every - bad), ("dead", bad)):
        found = numbers(spark, run.folder / name)
        print(f"{name}: {found.total():,} of {wanted.total():,}")
        if found != wanted:
            missing, more = wanted - found, found - wanted
            wrong.append(f"{name}: {missing.total()} missing, {more.total()} too many:"
                         f" {list(missing)[:5]} {list(more)[:5]}")  # fmt: skip
    rolled = spark.read.parquet(str(run.folder / "rolled" / "windows"))
    closed = rolled.selectExpr("max(end) e", "sum(count) c", "sum(n.count) n").collect()[0]
    stamps = Archive(spark, str(run.folder / "all")).messages().where("door != 'journal'")
    before = stamps.where(stamps.timestamp < closed.e)
    total, good = before.count(), before.where("data like '{%'").count()
    print(f"rolled: {closed.c:,} of {total:,} in closed windows, {closed.n:,} of {good:,} numbers")
    if (closed.c, closed.n) != (total, good):
        wrong.append("the roll-up does not add up")
    spark.stop()
    return wrong


def main(rounds: int = 10, rate: int = 500) -> None:
    folder = Path(tempfile.mkdtemp(prefix="rtmb-kills-"))
    run = Run(folder, rate)
    try:
        run.flow(5)
        run.read_all()
        kinds = (run.kill_driver, run.kill_executor, run.kill_broker)
        for number in range(rounds):
            kill = kinds[number % len(kinds)]
            run.flow(random.uniform(3, 8))
            print(f"{number + 1}: {kill.__name__} at message {run.published:,}", flush=True)
            kill()
            run.flow(random.uniform(1, 3))
            run.alive()
        run.read_all()
        run.flow(6)  # so that windows close
        run.read_all()
        time.sleep(5)
    finally:
        run.stop()
    wrong = check(run)
    print("\n".join(wrong) or "all adds up")
    if wrong:
        raise SystemExit(f"what there is: {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
