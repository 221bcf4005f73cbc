"""The options of `rtmb pipeline`, and what is told before Spark starts."""

from __future__ import annotations

from datetime import UTC, datetime

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from rtmb.cli.pipeline import pipeline


class CommandTests(SynchronousTestCase):
    def refused(self, *arguments: str) -> str:
        done = CliRunner().invoke(pipeline, arguments)
        self.assertEqual(done.exit_code, 2, done.output)
        return " ".join(done.output.replace("│", " ").split())

    def test_bad_values_are_told(self) -> None:
        self.assertIn("not an interval", self.refused("rollup", "a", "--window", "soon"))
        self.assertIn("neither a time", self.refused("report", "--since", "yesterday"))
        self.assertIn("NAME=VALUE", self.refused("query", "select 1", "-O", "apiKey"))

    def test_moments(self) -> None:
        from rtmb.cli.pipeline.types import Moment

        moment = Moment()
        self.assertEqual(
            moment.convert("2026-05-01T10:00", None, None), datetime(2026, 5, 1, 10, tzinfo=UTC)
        )
        self.assertEqual(
            moment.convert("2026-05-01T10:00+02:00", None, None),
            datetime(2026, 5, 1, 8, tzinfo=UTC),
        )
        ago = datetime.now(UTC) - moment.convert("2h", None, None)
        self.assertApproximates(ago.total_seconds(), 7200, 60)
