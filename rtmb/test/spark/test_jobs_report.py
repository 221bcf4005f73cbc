"""The report job: its arithmetic, and a page that stands alone."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from rtmb.test.support.spark_jobs import (
    NINE,
    JobCase,
    Rows,
    row,
)

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """What a page says, and what it fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.fetched: list[str] = []
        self.words: list[str] = []
        self._ignored = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self._ignored = tag == "style"
        self.fetched += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        self._ignored = False

    def handle_data(self, data: str) -> None:
        if not self._ignored:
            self.words.append(data)


class ReportTests(JobCase):
    def rows(self) -> Rows:
        rows: Rows = []
        for i in range(400):
            when = NINE + timedelta(seconds=i)
            subject, door = ("busy", "nats") if i % 4 else ("<b>calm</b>", "websocket")
            sent = (when - timedelta(milliseconds=40)).timestamp()
            rows.append(row(len(rows), subject, {"sent": sent}, when, door=door))
        for i in range(20):
            when = NINE + timedelta(seconds=i)
            rows.append(row(len(rows), "ask", b"?", when, reply=f"_INBOX.{i}"))
            rows.append(row(len(rows), f"_INBOX.{i}", b"!", when + timedelta(milliseconds=8)))
        client = {"door": "websocket", "client": "websocket 10.0.0.7:5"}
        slow = {**client, "policy": "close", "subject": "busy", "pending_bytes": 9}
        drop = {**client, "count": 30, "subjects": ["busy", "ask"]}
        for event, facts, count in (("slow_consumer", slow, 1), ("drop", drop, 2)):
            for _ in range(count):
                rows.append(row(len(rows), f"!system/events/{event}", facts, NINE, door="system"))
        gap = {"from": 7, "to": 9, "count": 3, "cause": "overwritten"}
        return [*rows, row(7, "!journal/gap", gap, NINE, door="journal")]

    def test_facts(self) -> None:
        from rtmb.spark.jobs.report import gather

        rows = self.rows()
        facts = gather(self.frame(rows), sent_field="sent")
        mine = [r for r in rows if not r[0].startswith("!")]
        self.assertEqual(facts.messages, len(mine))
        self.assertEqual(facts.bytes, sum(len(r[1]) for r in mine))
        self.assertEqual(
            {t.name: t.messages for t in facts.subjects},
            {"busy": 300, "<b>calm</b>": 100, "ask": 20, "_INBOX.>": 20},
        )
        self.assertEqual({t.name: t.messages for t in facts.doors}, {"nats": 340, "websocket": 100})
        width = facts.bucket.total_seconds()
        self.assertAlmostEqual(sum(facts.by_subject["busy"]) * width, 300)
        self.assertAlmostEqual(sum(facts.by_door["websocket"]) * width, 100)
        (trouble,) = facts.troubles
        self.assertEqual(
            (trouble.client, trouble.slow, trouble.dropped), ("websocket 10.0.0.7:5", 1, 60)
        )
        self.assertEqual(trouble.subjects, {"busy", "ask"})
        self.assertEqual(sum(facts.drops), 60)
        self.assertEqual([gap["count"] for gap in facts.gaps], [3])
        way, answer = facts.latencies
        self.assertEqual((way.count, answer.count), (400, 20))
        self.assertApproximates(way.p50, 40, 0.1)
        self.assertApproximates(answer.p99, 8, 0.1)

    def test_the_page_stands_alone(self) -> None:
        from rtmb.spark.jobs.page import page
        from rtmb.spark.jobs.report import gather

        text = page(gather(self.frame(self.rows()), sent_field="sent"), "A & B")
        found = Page(text)
        self.assertEqual(found.fetched, [])
        self.assertNotIn("script", found.tags)
        self.assertNotRegex(text, r"url\(|@import")
        self.assertGreaterEqual(found.tags["svg"], 5)
        said = " ".join(found.words)
        for words in (
            "A & B", "busy", "<b>calm</b>", "websocket 10.0.0.7:5", "request to answer",
            "publisher to broker", "overwritten", "Top talkers", "Slow consumers and drops",
        ):  # fmt: skip
            self.assertIn(words, said)
        self.assertNotIn("<b>calm", text)

    def test_a_period_with_nothing(self) -> None:
        from rtmb.spark.jobs.page import page
        from rtmb.spark.jobs.report import gather

        facts = gather(self.frame([]), NINE, NINE + timedelta(hours=1))
        self.assertIn("No message was published", page(facts))
