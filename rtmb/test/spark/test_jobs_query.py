"""The query job: archive and journal as one table, and the answer as files."""

from __future__ import annotations

import pytest

from rtmb.test.support.spark_jobs import (
    BrokerJobCase,
)

pytestmark = pytest.mark.slow


class QueryTests(BrokerJobCase):
    def test_archive_and_journal_are_one_table(self) -> None:
        from rtmb.spark.jobs import query

        self.publish(100)
        archive = self.run_archive()
        self.publish(50, 100)
        self.publish(5, 0, "elsewhere")
        both = query.messages(self.spark, archive, self.there)
        self.assertEqual(self.numbers(both), list(range(150)))
        self.assertEqual(self.numbers(archive.messages()), list(range(100)))
        # The archive catches up; nothing is twice.
        archive = self.run_archive()
        both = query.messages(self.spark, archive, self.there)
        self.assertEqual(self.numbers(both), list(range(150)))
        self.assertEqual(self.numbers(archive.messages()), list(range(150)))
        # A new life of the broker counts from 1 again.
        self.broker.stop()
        self.broker = self.start_broker("--http-port", str(self.broker.http_port))
        self.publish(20, 150)
        both = query.messages(self.spark, archive, self.there)
        self.assertEqual(self.numbers(both), list(range(170)))
        archive = self.run_archive()
        found = archive.messages()
        self.assertEqual(found.where("subject = '!journal/gap'").count(), 1)
        self.assertEqual(self.numbers(found.where("door != 'journal'")), list(range(170)))
        self.assertEqual(
            self.numbers(
                query.messages(self.spark, archive, self.there).where("door != 'journal'")
            ),
            list(range(170)),
        )

    def test_the_answer_as_files(self) -> None:
        from rtmb.spark.jobs import query

        self.publish(30)
        query.messages(self.spark, None, self.there).createOrReplaceTempView(query.TABLE)
        answer = self.spark.sql(
            "select subject, count(*) as n, max(text) as t, max(data) as d from messages group by 1"
        )
        query.to_csv(answer, str(self.folder / "a.csv"))
        self.assertEqual(
            (self.folder / "a.csv").read_text().splitlines(),
            ["subject,n,t,d", 'flow.a,30,"{""n"": 9}","{""n"": 9}"'],
        )
        query.to_parquet(answer, str(self.folder / "p"))
        (back,) = self.spark.read.parquet(str(self.folder / "p")).collect()
        self.assertEqual(back.n, 30)
        query.to_chart(answer, str(self.folder / "c.svg"))
        self.assertIn("flow.a", (self.folder / "c.svg").read_text())

    def test_a_copy_is_the_same_table(self) -> None:
        """The command fetches the journal while Java starts."""
        from rtmb.spark.jobs import query
        from rtmb.spark.jobs.copies import CopyingBroker

        self.publish(100)
        copying = CopyingBroker(self.there.servers)
        self.assertTrue(copying.suits)
        copying.begin(**query.journal_options("flow.>", "fail"))
        columns = ["subject", "data", "headers", "reply", "seq", "timestamp", "door", "text"]
        found, wanted = (
            query.messages(self.spark, None, broker, subject="flow.>").select(columns)
            for broker in (copying, self.there)
        )
        self.assertEqual(found.schema.simpleString(), wanted.schema.simpleString())
        self.assertEqual(found.orderBy("seq").collect(), wanted.orderBy("seq").collect())
        archive = self.run_archive()
        self.publish(50, 100)
        both = query.messages(self.spark, archive, copying)
        self.assertEqual(self.numbers(both), list(range(150)))

    def test_what_the_copy_could_not_read_is_told(self) -> None:
        from rtmb.spark.jobs import query
        from rtmb.spark.jobs.copies import CopyingBroker
        from rtmb.spark.transport import UnreachableError

        copying = CopyingBroker("http://127.0.0.1:9", {"retries": "0"})
        with self.assertRaises(UnreachableError):
            query.messages(self.spark, None, copying)
