"""The enrich job: a stream joined with a table of CSV or Parquet, back into the broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rtmb.test.support.spark_jobs import NINE, BrokerJobCase, row

pytestmark = pytest.mark.slow


class EnrichTests(BrokerJobCase):
    def table(self) -> str:
        path = self.folder / "stations.csv"
        path.write_text("city,height,owner\noslo,94,\nrome,21,roma\nrome,0,twice\n")
        return str(path)

    def test_payloads_get_the_columns_of_their_row(self) -> None:
        from rtmb.spark.jobs.enrich import Enrichment, enriched, read

        wanted = Enrichment.on(self.table(), "$2=city")
        rows = [
            row(1, "w.rome", {"t": 1, "city": "x"}, NINE),
            row(2, "w.oslo", b" {} ", NINE),
            row(3, "w.lima", {"t": 3}, NINE),
            row(4, "w.rome", b"not json", NINE),
            row(5, "w.rome", b"[1]", NINE),
            row(6, "w.oslo", '{"a": "ö}"}'.encode(), NINE),
            row(7, "w.oslo", b"\xff{}", NINE),
        ]
        found = enriched(self.frame(rows), read(self.spark, wanted), wanted).orderBy("seq")
        said = [(r.subject, bytes(r.data)) for r in found.collect()]
        self.assertEqual([s for s, _ in said][:2], ["enriched.w.rome", "enriched.w.oslo"])
        values: dict[int, Any] = {i: json.loads(said[i][1]) for i in (0, 1, 2, 5)}
        self.assertEqual(values[0]["t"], 1)
        self.assertIn(values[0]["height"], (21, 0), "one of the two rows")
        self.assertEqual(values[1], {"city": "oslo", "height": 94})
        self.assertEqual(values[2], {"t": 3})
        self.assertEqual(said[3][1], b"not json")
        self.assertEqual(said[4][1], b"[1]")
        self.assertEqual(values[5], {"a": "ö}", "city": "oslo", "height": 94})
        self.assertEqual(said[6][1], b"\xff{}")
        self.assertEqual(len(said), 7)

    def test_by_a_field_of_the_payload_and_parquet(self) -> None:
        from rtmb.spark.jobs.enrich import Enrichment, enriched, read

        place = str(self.folder / "t.parquet")
        self.spark.createDataFrame([(7, "seven")], "id long, name string").write.parquet(place)
        wanted = Enrichment.on(place, "who.id=id", unmatched="drop")
        rows = [row(1, "a", {"who": {"id": 7}}, NINE), row(2, "a", {"who": {"id": 8}}, NINE)]
        (found,) = enriched(self.frame(rows), read(self.spark, wanted), wanted).collect()
        self.assertEqual(
            json.loads(bytes(found.data)), {"who": {"id": 7}, "id": 7, "name": "seven"}
        )

    def test_what_cannot_be(self) -> None:
        from rtmb.spark.jobs import enrich

        self.assertRaises(ValueError, enrich.Enrichment.on, "t.csv", "$2")
        wanted = enrich.Enrichment.on(self.table(), "town")
        with self.assertRaisesRegex(ValueError, "no column town; there are city"):
            enrich.read(self.spark, wanted)
        with self.assertRaisesRegex(ValueError, "would enrich itself"):
            enrich.start(self.spark, self.there, ">", wanted, "nowhere")

    def test_subscribers_see_them_and_the_table_is_followed(self) -> None:
        from rtmb.spark.jobs import enrich

        wanted = enrich.Enrichment.on(self.table(), "$2=city")

        def run() -> list[Any]:
            enrich.start(
                self.spark, self.there, "w.*", wanted, str(self.folder / "e"), once=True
            ).awaitTermination()
            found = self.there.read(self.spark, subject="enriched.>").orderBy("seq").collect()
            return [json.loads(bytes(r.data)) for r in found]

        self.broker.publish("w.oslo", ['{"t": 1}'])
        self.assertEqual(run(), [{"t": 1, "city": "oslo", "height": 94}])
        (self.folder / "stations.csv").write_text("city,height,owner\noslo,95,\n")
        self.broker.publish("w.oslo", ['{"t": 2}'])
        self.assertEqual(run()[1:], [{"t": 2, "city": "oslo", "height": 95}])
