"""Tests for the journal with a broker of its own: as DuckDB, Polars and pandas read it, and by
readers that take their time."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.request import urlopen

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.support.files import folder
from rtmb.test.support.processes import PATIENCE
from rtmb.test.support.spark_session import JournalBroker


class JournalCase(SynchronousTestCase):
    def broker(self, *arguments: str) -> JournalBroker:
        broker = JournalBroker(*arguments)
        self.addCleanup(broker.stop)
        return broker


class TableTests(JournalCase):
    """The lines of docs/journal.md."""

    def setUp(self) -> None:
        self.journal = self.broker()
        # More than one batch, with other subjects in each.
        for part in range(5):
            self.journal.publish(f"orders.{part}", range(part * 3000, part * 3000 + 3000))
            self.journal.publish("other", [part])
        self.url = f"{self.journal.server}/journal?subject=orders.>"

    def test_polars(self) -> None:
        found = pl.read_ipc_stream(urlopen(self.url).read())
        self.assertEqual(found.height, 15_000)
        counted = found.group_by(pl.col("subject").cast(pl.String)).len().sort("subject")
        self.assertEqual(counted.rows(), [(f"orders.{part}", 3000) for part in range(5)])
        self.assertEqual([int(data) for data in found["data"]], list(range(15_000)))

    def test_pandas(self) -> None:
        found = pd.DataFrame(pa.ipc.open_stream(urlopen(self.url)).read_pandas())
        self.assertEqual(list(found["data"].map(int)), list(range(15_000)))
        self.assertEqual(str(found["timestamp"].dtype), "datetime64[us, UTC]")
        self.assertEqual(found["subject"].value_counts()["orders.3"], 3000)

    def test_duckdb(self) -> None:
        journal = pa.ipc.open_stream(urlopen(self.url))  # noqa: F841 (DuckDB finds it by name)
        found = duckdb.sql(
            "select subject, count(*), max(seq) from journal group by all order by 1"
        )
        assert found is not None
        self.assertEqual(
            found.fetchall(), [(f"orders.{p}", 3000, (p + 1) * 3001 - 1) for p in range(5)]
        )

    def test_json_lines(self) -> None:
        """As DuckDB reads them too."""
        file = str(folder(self) / "rows.jsonl")
        with open(file, "wb") as out, urlopen(f"{self.url}&format=json") as answer:
            out.write(answer.read())
        found: Any = duckdb.read_json(file, format="newline_delimited")
        self.assertEqual(found.aggregate("count(*), sum(data)").fetchall(), [(15_000, 112_492_500)])


class SlowReaderTests(JournalCase):
    """Answers that are made while they are read."""

    def ask(self, broker: JournalBroker) -> http.client.HTTPResponse:
        link = http.client.HTTPConnection(broker.host, broker.http_port, timeout=PATIENCE)
        self.addCleanup(link.close)
        link.request("GET", "/journal")
        return link.getresponse()

    def fill(self, broker: JournalBroker, count: int) -> None:
        for _ in range(count):
            broker.publish("a", ["x" * 1000] * 1000)

    def test_a_reader_that_waits(self) -> None:
        """The broker makes no more than goes out; then it all comes."""
        broker = self.broker()
        self.fill(broker, 60)
        answer = self.ask(broker)
        self.fill(broker, 1)  # the broker is there for others meanwhile
        self.assertEqual(answer.headers["rtmb-to"], "60001")
        batches = list(pa.ipc.open_stream(answer))
        self.assertEqual(sum(batch.num_rows for batch in batches), 60_000)
        self.assertGreater(len(batches), 10)

    def test_a_reader_that_is_overtaken(self) -> None:
        """It is cut off, and told what is lost when it goes on."""
        broker = self.broker("--journal-bytes", "40MiB")
        self.fill(broker, 30)
        answer = self.ask(broker)
        self.fill(broker, 60)
        seen: list[Any] = []

        def read() -> None:
            for batch in pa.ipc.open_stream(answer):
                seen.extend(batch.column("seq").to_pylist())

        self.assertRaises((http.client.HTTPException, OSError), read)
        self.assertEqual(seen, list(range(1, len(seen) + 1)))
        self.assertLess(len(seen), 30_000)
        with urlopen(f"{broker.server}/journal?from={len(seen) + 1}&limit=1") as again:
            first = int(again.headers["rtmb-first"])
            self.assertEqual(again.headers["rtmb-lost"], f"{len(seen) + 1}-{first - 1}")
