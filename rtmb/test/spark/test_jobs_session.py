"""What is said when there is no Spark to be had."""

from __future__ import annotations

import os
from unittest import mock

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from rtmb.cli.pipeline import pipeline
from rtmb.spark.jobs.session import NoSparkError, check
from rtmb.test.support.files import folder


class SessionTests(SynchronousTestCase):
    """What is said when there is no Spark to be had."""

    def test_no_java(self) -> None:
        with mock.patch.dict(os.environ, {"PATH": "", "JAVA_HOME": ""}):
            error = self.assertRaises(NoSparkError, check)
        self.assertIn("there is none on the PATH: install Java 17", str(error))
        self.assertNotIn("\n", str(error))

    def test_wrong_java_home(self) -> None:
        with mock.patch.dict(os.environ, {"JAVA_HOME": str(folder(self))}):
            self.assertIn("none in JAVA_HOME", str(self.assertRaises(NoSparkError, check)))

    def test_old_java(self) -> None:
        home = folder(self)
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
        program.chmod(0o755)
        with mock.patch.dict(os.environ, {"JAVA_HOME": str(home)}):
            self.assertIn("is Java 11", str(self.assertRaises(NoSparkError, check)))

    def test_no_pyspark(self) -> None:
        with mock.patch("importlib.util.find_spec", return_value=None):
            self.assertIn("pip install 'rtmb[spark]'", str(self.assertRaises(NoSparkError, check)))

    def test_the_command_says_so_in_one_line(self) -> None:
        with mock.patch.dict(os.environ, {"PATH": "", "JAVA_HOME": ""}):
            done = CliRunner().invoke(pipeline, ["archive"])
        self.assertEqual(done.exit_code, 1)
        self.assertRegex(done.output, r"\AError: Spark runs on Java[^\n]*\n\Z")


class PlainTextTests(SynchronousTestCase):
    """Of what Spark says, the line that tells something."""

    def test_what_is_told(self) -> None:
        from rtmb.spark.jobs.session import plain_text

        for said, told in (
            ("[A_B.C] No table `x`. SQLSTATE: 42P01; line 1 pos 14;\n'Project", "No table `x`."),
            ("[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Lost\n\tat a.b",
             "Lost"),
            ("X\nTraceback (most recent call last):\n  File\nrtmb.spark.LossError: gone", "gone"),
        ):  # fmt: skip
            self.assertEqual(plain_text(said), told)
