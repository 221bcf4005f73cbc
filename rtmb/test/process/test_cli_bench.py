"""`rtmb bench`: its numbers, and what a person sees while it runs."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from rtmb.cli.bench_worker import BenchPlan, BenchProblem, BenchServer, RoundProgress, RoundResult
from rtmb.cli.bench_worker import Event as WorkerEvent
from rtmb.test.support.certificates import tls_broker
from rtmb.test.support.commands import Terminal, rtmb, shared
from rtmb.test.support.files import folder
from rtmb.test.support.processes import (
    NATS_SERVER,
    BrokerProcess,
    NatsServerProcess,
    RawClient,
    environment,
    need,
)


class WithBroker(SynchronousTestCase):
    def setUp(self) -> None:
        self.broker = shared(BrokerProcess)

    def bench(self, *arguments: str) -> dict[str, Any]:
        found = rtmb("bench", "--server", self.broker.url, "--json", *arguments)
        self.assertEqual((found.returncode, found.stderr), (0, b""))
        report: dict[str, Any] = json.loads(found.stdout)
        return report


class NumberTests(WithBroker):
    def test_it_counts_what_another_subscriber_sees(self) -> None:
        with RawClient(self.broker.port) as watcher:
            watcher.connect()
            watcher.subscribe("bench.>")
            report = self.bench(
                "--messages", "5001", "--pub", "3", "--sub", "2", "--subjects", "7", "--size", "50"
            )
            seen = watcher.settle()
        sizes = re.findall(rb"MSG bench\.\w+\.([0-6]) 1 50\r\n.{50}\r\n", seen)
        self.assertEqual(len(sizes), 5001)
        self.assertEqual(len(set(sizes)), 7)
        [row] = report["rounds"]
        self.assertEqual((row["published"], row["delivered"]), (5001, 10002))
        self.assertAlmostEqual(row["published_per_second"], 5001 / row["seconds"])
        self.assertAlmostEqual(row["delivered_per_second"], 10002 / row["seconds"])
        self.assertAlmostEqual(row["megabytes_per_second"], 10002 * 50 / row["seconds"] / 1e6)
        self.assertIsNone(row["latency_us_p50"])

    def test_a_queue_group_shares(self) -> None:
        report = self.bench("--messages", "3000", "--sub", "3", "--queue", "q")
        self.assertEqual(report["rounds"][0]["delivered"], 3000)

    def test_nobody_subscribes(self) -> None:
        report = self.bench("--messages", "100000", "--sub", "0", "--pub", "2")
        [row] = report["rounds"]
        self.assertEqual((row["published"], row["delivered"]), (100000, 0))
        self.assertNotIn("delivered_per_second", report["servers"][0])

    def test_fewer_messages_than_publishers(self) -> None:
        for sub in ("0", "1"):
            report = self.bench("--messages", "1", "--pub", "3", "--sub", sub)
            self.assertEqual(report["rounds"][0]["published"], 1)

    def test_duration(self) -> None:
        report = self.bench("--duration", "500ms", "--rounds", "2")
        self.assertEqual(len(report["rounds"]), 2)
        for row in report["rounds"]:
            self.assertGreater(row["seconds"], 0.1)

    def test_payloads_from_a_file(self) -> None:
        path = folder(self) / "payloads"
        path.write_bytes(b"first\n\nsecond \xff\nthird")
        for more in ((), ("--rate", "1000")):
            with RawClient(self.broker.port) as watcher:
                watcher.connect()
                watcher.subscribe("bench.>")
                self.bench("--payload-file", str(path), "--messages", "4", *more)
                seen = watcher.settle()
            numbers = [f"{n:08x}".encode() if more else b"" for n in range(4)]
            words = (b"first", b"second \xff", b"third", b"first")
            expected = [number + word for number, word in zip(numbers, words, strict=True)]
            self.assertEqual(re.findall(rb"MSG [^\r]+\r\n([^\r]+)\r\n", seen), expected)
        path.write_bytes(b"\n")
        self.assertEqual(rtmb("bench", "--payload-file", str(path)).returncode, 2)

    def test_a_constant_rate(self) -> None:
        for queue in ((), ("--queue", "q")):
            report = self.bench(
                "--rate", "2000", "--messages", "1000", "--pub", "2", "--sub", "2", *queue
            )
            [row] = report["rounds"]
            self.assertEqual(row["delivered"], 1000 if queue else 2000)
            self.assertGreaterEqual(row["seconds"], 0.499)
            found = [row[f"latency_us_{p}"] for p in ("p50", "p90", "p99", "p99.9", "max")]
            self.assertEqual(found, sorted(found))
            self.assertGreater(found[0], 0)
            self.assertIsNotNone(row["load_late_us"])

    def test_compare_goes_in_turn(self) -> None:
        need(self, Path(NATS_SERVER).exists(), "no nats-server here")
        path = folder(self) / "rounds.csv"
        with NatsServerProcess() as other:
            report = self.bench(
                "--compare", other.url, "--messages", "2000", "--rounds", "2", "--csv", str(path)
            )
            names = [f"127.0.0.1:{self.broker.port}", f"127.0.0.1:{other.port}"]
        self.assertEqual([row["server"] for row in report["rounds"]], names * 2)
        self.assertEqual([row["round"] for row in report["rounds"]], [1, 1, 2, 2])
        rates = [row["published_per_second"] for row in report["rounds"]]
        ratio = (rates[0] / rates[1] + rates[2] / rates[3]) / 2
        self.assertAlmostEqual(report["ratios"]["published_per_second"], ratio)
        self.assertRegex(report["servers"][1]["version"], r"^2\.")
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["server"] for row in rows], names * 2)
        self.assertEqual({row["published"] for row in rows}, {"2000"})

    def test_what_goes_wrong_is_one_line(self) -> None:
        url = self.broker.url
        secure = url.replace("nats://", "tls://")
        for status, arguments, line in (
            (4, ["-s", "127.0.0.1:1"], rb"127.0.0.1:1: [^\n]*refused"),
            (4, ["-s", url, "--compare", "127.0.0.1:1"], rb"127.0.0.1:1: [^\n]*refused"),
            (4, ["-s", secure], rb"127[^\n]*: the server has no TLS"),
            (1, ["-s", url, "--size", "2MiB"], rb"127[^\n]*at most 1,048,576 bytes"),
        ):
            found = rtmb("bench", *arguments)
            self.assertEqual(found.returncode, status)
            self.assertRegex(found.stderr, rb"\Artmb: " + line + rb"\n\Z")


class TlsTests(SynchronousTestCase):
    def test_both_ways_to_measure(self) -> None:
        """As fast as it goes and at a rate; asked for, and because the server wants it."""
        with tls_broker(self) as (broker, ca):
            for scheme in ("tls", "nats"):
                for more in ((), ("--rate", "2000"), ("--sub", "0"), ("--pub", "3", "--sub", "2")):
                    with self.subTest(scheme=scheme, more=more):
                        url = f"{scheme}://localhost:{broker.port}"
                        arguments = ("-s", url, "--tls-ca", ca, "--messages", "3000", *more)
                        found = rtmb("bench", *arguments, "--size", "2KiB", "--json")
                        self.assertEqual((found.returncode, found.stderr), (0, b""))
                        [row] = json.loads(found.stdout)["rounds"]
                        self.assertEqual(row["published"], 3000)

    def test_a_stranger(self) -> None:
        with tls_broker(self) as (broker, _):
            found = rtmb("bench", "-s", f"tls://localhost:{broker.port}")
        self.assertEqual(found.returncode, 4)
        line = rb"\Artmb: localhost:\d+: its certificate is not trusted\n\Z"
        self.assertRegex(found.stderr, line)


class StallTests(SynchronousTestCase):
    def test_waiting_is_not_hidden(self) -> None:
        """A server that stands still for a fifth of the time must be seen in the percentiles: the
        messages that were due meanwhile have waited, though hardly any was on its way."""
        with BrokerProcess() as broker:
            plan = BenchPlan(
                servers=[BenchServer(url=broker.url)],
                publishers=1,
                subscribers=1,
                size=64,
                subjects=1,
                queue="",
                rounds=1,
                seconds=0,
                messages=2500,
                rate=1000,
                payloads=[],
            )
            worker = subprocess.Popen(
                [sys.executable, "-m", "rtmb.cli.bench_worker"],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self.addCleanup(worker.kill)
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(msgspec.json.encode(plan))
            worker.stdin.close()
            events = map(msgspec.json.Decoder(WorkerEvent).decode, worker.stdout)
            self.assertIsInstance(next(events), RoundProgress)
            broker.signal(signal.SIGSTOP)
            time.sleep(0.5)
            broker.signal(signal.SIGCONT)
            result = next(event for event in events if not isinstance(event, RoundProgress))
            worker.stdout.close()
            worker.wait()
        self.assertNotIsInstance(result, BenchProblem)
        assert isinstance(result, RoundResult)
        assert result.latency is not None
        self.assertEqual(result.delivered, 2500)
        self.assertGreater(result.latency["max"], 400_000)
        # A tenth of all messages is half of those that were due in the stall.
        self.assertGreater(result.latency["p90"], 150_000)


class ScreenTests(WithBroker):
    def test_a_bar_and_then_a_table(self) -> None:
        with Terminal("bench", "-s", self.broker.url, "--rate", "1000", "--duration", "2") as it:
            part = it.sees(rf"^127.0.0.1:{self.broker.port}, round 1 of 1 [╸━╺]+ +(\d+)% 0:00:0\d")
            self.assertLess(int(part[1]), 100)
            later = it.sees(r"([5-9]\d)% 0:00:0[12]")
            self.assertGreater(int(later[1]), int(part[1]))
            it.sees(r"round 1 of 1 ━+ 100% ")
            it.sees(r"^1 → 1, 128 B, 1,000 msg/s\n┏")
            it.sees(r"│ delivered, msg/s +│ +(1,00\d|99\d) │")
            it.sees(r"│ latency p99.9, µs +│ +[\d,.]+ │")
            self.assertEqual(it.wait(), 0)

    def test_ctrl_c(self) -> None:
        with Terminal("bench", "-s", self.broker.url, "--rate", "1000", "--duration", "60") as it:
            it.sees(r"round 1 of 1 .* [1-9]\d*% ")
            pid = it.process.pid
            [load] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            it.types("\x03")
            self.assertEqual(it.wait(), 130)
            self.assertNotIn("Traceback", it.text)
            self.assertTrue(it.restored)
            self.assertFalse(Path(f"/proc/{load}").exists())  # the load has gone with it
