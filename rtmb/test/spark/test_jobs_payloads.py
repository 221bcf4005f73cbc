"""Payloads that are not what a job expects: counted, left out, told of, or dead letters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rtmb.test.support.spark_jobs import BrokerJobCase

pytestmark = pytest.mark.slow

GOOD = ['{"n": 1}', '{"n": 2.5, "more": "x"}', "{}"]
BAD = ["no json", '{"n": "many"}', "[1]", "\x00"]


class PayloadTests(BrokerJobCase):
    def setUp(self) -> None:
        super().setUp()
        self.broker.publish("flow.a", [*GOOD[:1], *BAD, *GOOD[1:]])

    def dead(self) -> list[Any]:
        return self.there.read(self.spark, subject="dead").orderBy("seq").collect()

    def archived(self, **payloads: str) -> list[str]:
        """The payloads that an archive takes in."""
        from rtmb.spark.jobs import archive
        from rtmb.spark.jobs.broker import Payloads
        from rtmb.spark.jobs.store import Archive

        found = Archive(self.spark, str(self.folder / "archive"))
        wanted = Payloads("n double", **payloads) if payloads else Payloads()
        archive.start(found, self.there, "flow.>", once=True, payloads=wanted).awaitTermination()
        rows = found.messages().orderBy("seq").collect()
        self.assertEqual({row.subject for row in rows}, {"flow.a"})
        return [bytes(row.data).decode() for row in rows]

    def test_an_archive_takes_all(self) -> None:
        self.assertEqual(self.archived(), [GOOD[0], *BAD, *GOOD[1:]])

    def test_an_archive_of_what_fits(self) -> None:
        self.assertEqual(self.archived(mode="drop"), GOOD)
        self.assertEqual(self.dead(), [])

    def test_an_archive_with_dead_letters(self) -> None:
        self.assertEqual(self.archived(mode="deadLetter", dead_letter="dead"), GOOD)
        letters = self.dead()
        self.assertEqual([bytes(letter.data).decode() for letter in letters], BAD)
        self.assertTrue(all(letter.headers["Rtmb-Reason"] for letter in letters))
        self.assertEqual(letters[0].headers["Rtmb-Subject"], "flow.a")

    def test_an_archive_that_stops(self) -> None:
        from pyspark.errors import StreamingQueryException

        error = self.assertRaises(StreamingQueryException, self.archived, mode="fail")
        self.assertIn("message 2 on flow.a", str(error))

    def test_a_roll_up_with_dead_letters(self) -> None:
        """Two queries read; a dead letter is there once."""
        from rtmb.spark.jobs import rollup
        from rtmb.spark.jobs.broker import Payloads

        payloads = Payloads(rollup.schema_of(["n"]), "deadLetter", "dead")
        for query in rollup.start(
            self.spark, self.there, "flow.>", rollup.Rollup(("n",), window="1 day"),
            str(self.folder / "r"), once=True, payloads=payloads,
        ):  # fmt: skip
            query.awaitTermination()
        (told,) = self.there.read(self.spark, subject="rollup.>").collect()
        window = json.loads(bytes(told.data))
        self.assertEqual((window["count"], window["n"]["count"]), (3, 2))
        self.assertEqual([bytes(letter.data).decode() for letter in self.dead()], BAD)

    def test_what_cannot_be(self) -> None:
        from rtmb.spark.jobs.broker import Payloads
        from rtmb.spark.jobs.rollup import schema_of

        self.assertRaises(ValueError, Payloads, "", "drop")
        self.assertRaises(ValueError, Payloads, "n int", "deadLetter")
        self.assertRaises(ValueError, Payloads, "n int", "drop", "dead")
        self.assertRaises(ValueError, schema_of, ["."])
        self.assertRaises(ValueError, schema_of, [])
