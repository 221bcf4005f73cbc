"""Subject patterns as the jobs read them."""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from rtmb.core.subjects import hears
from rtmb.test.support.processes import need
from rtmb.test.support.spark_jobs import (
    has_module,
)


class PatternTests(SynchronousTestCase):
    def test_the_expression_agrees_with_the_broker(self) -> None:
        need(self, has_module("pyspark"), "there is no pyspark")
        from rtmb.spark.jobs.messages import expression

        patterns = [">", "*", "a", "a.*", "a.>", "*.b", "*.*", "!system/x", "a+b.c", "a.b.>"]
        subjects = ["a", "a.b", "a.b.c", "b", "x.b", "!system/x", "!x.b", "a+b.c", "aab.c"]
        for pattern in patterns:
            for subject in subjects:
                found = re.search(expression(pattern), subject) is not None
                self.assertEqual(found, hears(pattern, subject), (pattern, subject))

    def test_several(self) -> None:
        from rtmb.spark.jobs.messages import expression

        self.assertEqual(
            [s for s in ("a", "b", "c") if re.search(expression("a, c"), s)], ["a", "c"]
        )
        self.assertRaises(ValueError, expression, "a..b")
