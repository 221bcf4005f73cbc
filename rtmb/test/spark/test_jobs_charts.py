"""Charts of the jobs."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from unittest import mock
from xml.etree import ElementTree

from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.support.files import folder
from rtmb.test.support.processes import need
from rtmb.test.support.spark_jobs import (
    NINE,
    has_module,
)


class ChartTests(SynchronousTestCase):
    def test_a_table_becomes_lines(self) -> None:
        from rtmb.spark.jobs.charts import chart_of
        from rtmb.spark.jobs.charts_svg import svg

        rows = [(NINE + timedelta(seconds=i), i * 2, "x") for i in range(50)]
        chart = chart_of(["time", "n", "word"], rows, "A & B")
        self.assertEqual(list(chart.series), ["n"])
        root = ElementTree.fromstring(svg(chart))
        self.assertIn("A & B", "".join(root.itertext()))
        (path,) = (e.get("d", "") for e in root.iter("{http://www.w3.org/2000/svg}path"))
        self.assertEqual(path.count(","), 50)

    def test_names_become_bars(self) -> None:
        from rtmb.spark.jobs.charts import chart_of
        from rtmb.spark.jobs.charts_svg import svg

        root = ElementTree.fromstring(svg(chart_of(["s", "n"], [("<a>", 1), ("b", 3)])))
        widths = [float(e.get("width", 0)) for e in root.iter("{http://www.w3.org/2000/svg}rect")]
        self.assertApproximates(widths[1] / widths[0], 3, 0.01)
        self.assertIn("<a>", "".join(root.itertext()))

    def test_gaps_break_the_line(self) -> None:
        from rtmb.spark.jobs.charts import Chart
        from rtmb.spark.jobs.charts_svg import svg

        root = ElementTree.fromstring(svg(Chart([1, 2, 3, 4, 5], {"a": [1, 2, None, 3, 4]})))
        self.assertEqual(len(list(root.iter("{http://www.w3.org/2000/svg}path"))), 2)

    def test_it_says_what_it_shows(self) -> None:
        """The query as the title, axes with names, the day under the hours."""
        from rtmb.spark.jobs.charts import chart_of
        from rtmb.spark.jobs.charts_svg import alone

        sql = "select minute,  count(*) as n\nfrom messages " + "where true and " * 20 + "true"
        late = datetime(2026, 5, 1, 22, 0, tzinfo=UTC)
        rows = [(late + timedelta(minutes=i), 100 + i) for i in range(240)]
        root = ElementTree.fromstring(alone(chart_of(["minute", "n"], rows, sql)))
        said = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertTrue(said[0].startswith("select minute, count(*) as n from messages where"))
        self.assertTrue(said[1].endswith("…"), "two lines of it")
        for words in ("n", "minute (UTC)", "1 May 2026", "2 May 2026", "23:00", "0"):
            self.assertIn(words, said)
        self.assertEqual(said.count("1 May 2026"), 1, "where it changes")
        self.assertIn("prefers-color-scheme:dark", "".join(root.itertext()))

    def test_amounts_begin_at_zero_and_fill_the_picture(self) -> None:
        from rtmb.spark.jobs.charts import amounts, starts_at_zero

        for low, high in ((990, 1010), (0, 76), (3, 101), (1, 1)):
            scale = amounts([low, high], starts_at_zero([low, high]))
            self.assertEqual(scale.low, 0)
            self.assertLessEqual(high / scale.high, 1)
            self.assertGreater(high / scale.high, 0.95, "no empty quarter")
        celsius = amounts([18.1, 18.9], starts_at_zero([18.1, 18.9]))
        self.assertGreater(celsius.low, 18)
        below = amounts([-5, 10])
        self.assertTrue(-6 < below.low < -5)

    def test_what_cannot_be_drawn(self) -> None:
        from rtmb.spark.jobs.charts import chart_of, save

        self.assertRaises(ValueError, chart_of, ["a", "b"], [])
        self.assertRaises(ValueError, chart_of, ["a", "b"], [("x", "y")])
        chart = chart_of(["a", "b"], [(1, 2)])
        self.assertRaises(ValueError, save, chart, "picture.gif")

    def test_files(self) -> None:
        from rtmb.spark.jobs.charts import chart_of, save
        from rtmb.spark.jobs.charts_png import NoPictureError

        place = folder(self)
        chart = chart_of(["a", "b", "c"], [(1, 2, None), (2, 3, 4)])
        save(chart, str(place / "c.svg"))
        ElementTree.parse(place / "c.svg")
        with mock.patch.dict(sys.modules, dict.fromkeys(_MATPLOTLIB)):
            self.assertRaises(NoPictureError, save, chart, str(place / "c.png"))
        need(self, has_module("matplotlib"), "there is no matplotlib")
        save(chart, str(place / "c.png"))
        self.assertEqual((place / "c.png").read_bytes()[:4], b"\x89PNG")


#: No import goes past these: one that did would be undone by `patch`, and numpy loads only once.
_MATPLOTLIB = ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg")
