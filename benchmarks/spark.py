"""The source and the sink beside Spark's own sources: `files`, the same messages as Parquet on the
disk, and `rate`, which makes its rows out of nothing.

All go into the same sinks with the same columns, round by round, so the ratio is what reading from
a broker costs: `python -m benchmarks.spark --help`.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.report import machine, number, spread
from rtmb.cli.bench_load import LoadConnection, publish_frames
from rtmb.testing.process import BrokerProcess, environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 128
SUBJECTS = 10
#: Messages of one batch, for both sources.
BATCH = 100_000
PARTITIONS = 2
#: Room for the largest backlog.
JOURNAL = "6GiB"
PACE = 1000
PATIENCE = 900.0
#: The columns of the source, made by `rate` from a number: texts of the same length.
_ROW = (
    f"concat('in.', value % {SUBJECTS}) AS subject",
    f"cast(rpad(cast(value AS string), {SIZE}, 'x') AS binary) AS data",
    "cast(null AS map<string, string>) AS headers",
    "cast(null AS string) AS reply",
    "value AS seq",
    "timestamp",
    "'rate' AS door",
)


class Bench:
    """A session and a broker."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, scratch: Path) -> None:
        self.spark = spark
        self.broker = broker
        self._scratch = scratch
        self._runs = 0
        self._link = LoadConnection((broker.host, broker.port))

    def publish(self, count: int) -> None:
        """Fill the journal."""
        messages = [(f"in.{i % SUBJECTS}", SIZE) for i in range(min(count, 20_000))]
        chunk = publish_frames(messages)
        for _ in range(count // len(messages)):
            self._link.send(chunk)
        self._link.flush()

    def position(self) -> int:
        from rtmb.spark.transport import BrokerLogin, client

        access = BrokerLogin((self.broker.http_url,))
        return int(client(access).json("GET", "/journal/position?at=latest")["seq"])

    # Where rows come from

    def rtmb(self, position: int | str, batch: int = BATCH, **more: object) -> DataFrame:
        given = {
            "servers": self.broker.http_url, "subject": "in.>", "startingPosition": position,
            "maxMessagesPerTrigger": batch, "minPartitions": PARTITIONS, **more,
        }  # fmt: skip
        reader = self.spark.readStream.format("rtmb")
        return reader.options(**{k: str(v) for k, v in given.items()}).load()

    def rate(self, size: int, batch: int) -> DataFrame:
        reader = self.spark.readStream.format("rate-micro-batch")
        reader = reader.option("rowsPerBatch", min(size, batch))
        return reader.option("numPartitions", PARTITIONS).load().selectExpr(*_ROW)

    def files(self, size: int, batch: int) -> DataFrame:
        """The same rows on the disk, in as many files a batch as there are tasks."""
        folder = self._scratch / f"files-{size}-{batch}"
        if not folder.exists():
            parts = PARTITIONS * max(1, size // batch)
            rows = self.spark.range(0, size, 1, parts).withColumnRenamed("id", "value")
            rows = rows.selectExpr("*", "timestamp_micros(value) AS timestamp").selectExpr(*_ROW)
            rows.write.parquet(str(folder))
        reader = self.spark.readStream.schema(self.spark.read.parquet(str(folder)).schema)
        return reader.option("maxFilesPerTrigger", PARTITIONS).parquet(str(folder))

    # Where they go

    @contextmanager
    def running(self, frame: DataFrame, sink: str) -> Iterator[Any]:
        self._runs += 1
        folder = self._scratch / str(self._runs)
        if sink == "rtmb":
            frame = frame.selectExpr("replace(subject, 'in.', 'out.') AS subject", "data")
        writer = frame.writeStream.format(sink).option("checkpointLocation", f"{folder}-checkpoint")
        writer = writer.option("path", str(folder))
        if sink == "rtmb":
            writer = writer.option("servers", self.broker.http_url)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            yield query
        finally:
            query.stop()

    def drain(self, frame: DataFrame, sink: str, count: int) -> float:
        """Messages a second, by the time that Spark took for the batches."""
        batches: dict[int, tuple[int, float]] = {}
        deadline = time.monotonic() + PATIENCE
        with self.running(frame, sink) as query:
            while sum(rows for rows, _ in batches.values()) < count:
                if query.exception() is not None:
                    raise query.exception()
                if time.monotonic() > deadline:
                    raise SystemExit(f"benchmarks: {count} messages took more than {PATIENCE} s")
                for progress in query.recentProgress:
                    took = progress["durationMs"]["triggerExecution"] / 1000
                    if progress["numInputRows"]:
                        batches[progress["batchId"]] = (progress["numInputRows"], took)
                time.sleep(0.02)
        total = sum(rows for rows, _ in batches.values())
        return total / sum(took for _, took in batches.values())

    # Latency

    def latency(self, source: str, seconds: float) -> tuple[float, float]:
        """p50 and p99 in milliseconds from publishing to a subscriber of the sink, at a pace."""
        if source == "rtmb":
            frame = self.rtmb("latest", longPollMs=1000)
        else:
            reader = self.spark.readStream.format("rate").option("rowsPerSecond", PACE)
            stamp = "cast(cast(unix_micros(timestamp) / 1e6 AS decimal(20, 6)) AS string)"
            frame = reader.option("numPartitions", PARTITIONS).load().selectExpr(
                "'in.0' AS subject", f"cast({stamp} AS binary) AS data"
            )  # fmt: skip
        done = threading.Event()
        ear = Ear((self.broker.host, self.broker.port))
        pacer = threading.Thread(target=self._pace, args=(done,), daemon=True)
        try:
            with self.running(frame, "rtmb"):
                pacer.start()
                ear.skip(PACE)  # the first batches are slow
                time.sleep(5)
                ear.skip(0)
                time.sleep(seconds)
                waits = ear.waits()
        finally:
            done.set()
            pacer.join()
            ear.close()
        if len(waits) < 100:
            raise SystemExit(f"benchmarks: only {len(waits)} messages in {seconds} s")
        return median(waits) * 1000, quantiles(waits, n=100)[98] * 1000

    def _pace(self, done: threading.Event) -> None:
        with socket.create_connection((self.broker.host, self.broker.port)) as link:
            due = time.time()
            while not done.wait(max(0.0, due - time.time())):
                part = b"".join(
                    b"PUB in.0 17\r\n%b\r\n" % f"{time.time():.6f}"[:17].encode()
                    for _ in range(PACE // 100)
                )
                link.sendall(part)
                due += 0.01


class Ear:
    """Hears what the sink publishes, and how old it is by then."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._link = socket.create_connection(address)
        self._link.sendall(b'CONNECT {"lang":"bench","headers":true}\r\nSUB out.> 1\r\nPING\r\n')
        self._waits: list[float] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        stamps, rest = re.compile(rb"\r\n\r\n(\d{10}\.\d{6})\r\n"), b""
        while data := self._link.recv(1 << 18):
            now = time.time()
            rest += data
            end = 0
            for found in stamps.finditer(rest):
                self._waits.append(now - float(found[1]))
                end = found.end()
            rest = rest[end:][-4096:]

    def skip(self, count: int) -> None:
        """Wait for so many, and forget them."""
        deadline = time.monotonic() + PATIENCE
        while len(self._waits) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        self._waits.clear()

    def waits(self) -> list[float]:
        return list(self._waits)

    def close(self) -> None:
        self._link.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._link.close()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark",
        description="Measure rtmb in Spark beside Spark's own sources, and print the ratios.",
    )
    add = parser.add_argument
    add("--sizes", default="", metavar="N,N", help="messages to drain (default: 10⁴ to 10⁷)")
    add("--rounds", type=int, default=0, metavar="N", help="rounds of each (default: 3)")
    add("--seconds", type=float, default=10.0, metavar="S", help="time for a latency; 0: none")
    add("--quick", action="store_true", help="1 round, 10⁴ and 10⁵ messages")
    options = parser.parse_args(arguments)
    usual = "10000,100000" if options.quick else "10000,100000,1000000,10000000"
    options.sizes = [int(size) for size in (options.sizes or usual).split(",")]
    options.rounds = options.rounds or (1 if options.quick else 3)
    return options


class Case(NamedTuple):
    """So many messages in batches of so many, into one sink."""

    sink: str
    size: int
    batch: int

    def __str__(self) -> str:
        batches = "one batch" if self.batch >= self.size else f"batches of {number(self.batch)}"
        return f"{self.sink}, {number(self.size)} messages of {SIZE} B, {batches}"


#: What one reading is of: a label, a unit, who did it, and the value.
Reading = tuple[str, str, str, float]


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Reading]:
    """All readings, round by round."""
    cases = [Case("parquet", size, BATCH) for size in options.sizes]
    cases += [Case("parquet", size, size) for size in options.sizes if size > BATCH]
    cases += [Case("rtmb", size, BATCH) for size in options.sizes[1:2] or [BATCH]]
    for case in cases:
        for turn in range(options.rounds):
            print(f"{case}, round {turn + 1}", file=sys.stderr)
            yield from drained(bench, case)
    for turn in range(options.rounds if options.seconds else 0):
        print(f"latency, round {turn + 1}", file=sys.stderr)
        for source in ("rtmb", "rate"):
            middle, late = bench.latency(source, options.seconds)
            for name, value in (("p50", middle), ("p99", late)):
                yield f"through Spark and back, {PACE} a second, {name}", "ms ↓", source, value


def drained(bench: Bench, case: Case) -> Iterator[Reading]:
    """One case, by each source."""
    sink, size, batch = case
    start = bench.position()
    bench.publish(size)
    frames = {
        "rtmb": bench.rtmb(start, batch),
        "files": bench.files(size, batch),
        "rate": bench.rate(size, batch),
    }
    for source, frame in frames.items():
        yield str(case), "messages/s ↑", source, bench.drain(frame, sink, size)


def table(readings: Iterator[Reading]) -> str:
    sources = ("rtmb", "files", "rate")
    rows: dict[tuple[str, str], dict[str, list[float]]] = {}
    for label, unit, source, value in readings:
        row = rows.setdefault((label, unit), {source: [] for source in sources})
        row[source].append(value)
    lines = ["| | unit | rtmb | files | rate | rtmb/files | rtmb/rate |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for (label, unit), found in rows.items():
        cells = [spread(found[source]) if found[source] else "–" for source in sources]
        for peer in sources[1:]:
            ratios = [a / b for a, b in zip(found["rtmb"], found[peer], strict=False)]
            cells.append(spread(ratios, bold=True) if ratios else "–")
        lines.append(f"| {label} | {unit} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "Median (least…most). ↑ more is better, ↓ less."])


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]
    import pyspark

    from rtmb.spark.jobs.session import session

    spark = session("benchmark", "local[2]")
    spark.sparkContext.setLogLevel("OFF")  # tasks of queries that are stopped complain
    settings = {"journal": ["in.>"], "journal_bytes": JOURNAL, "history": 1}
    with tempfile.TemporaryDirectory(prefix="rtmb-bench-") as scratch:
        with BrokerProcess(**settings) as broker:
            bench = Bench(spark, broker, Path(scratch))
            warm = bench.position()
            bench.publish(BATCH)
            for sink in ("parquet", "rtmb"):
                for frame in (
                    bench.rtmb(warm), bench.files(BATCH, BATCH), bench.rate(BATCH, BATCH)
                ):  # fmt: skip
                    bench.drain(frame, sink, BATCH)
            found = table(measure(bench, options))
            print(f"Spark {pyspark.__version__}, local[2], {machine()}\n\n{found}")
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
