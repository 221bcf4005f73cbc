"""`rtmb pipeline run`: what a file of jobs becomes, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import rtmb
from rtmb.cli.pipeline.run import FileError, read, tasks_of
from rtmb.cli.pipeline.task import Task
from rtmb.test.support.files import folder

EXAMPLE = Path(rtmb.__file__).parent.parent / "examples" / "pipeline" / "pipeline.toml"


class FileTests(SynchronousTestCase):
    def tasks(self, text: str, once: bool = False) -> list[Task]:
        file = folder(self) / "jobs.toml"
        file.write_text(text)
        return list(tasks_of(read(file), "jobs.toml", once, None))

    def refused(self, text: str) -> str:
        return str(self.assertRaises(FileError, self.tasks, text).message)

    def test_jobs_are_what_their_commands_would_be(self) -> None:
        archive, rollup = self.tasks(
            """
            servers = "http://broker:8080"
            [options]
            retries = 7
            [[job]]
            type = "archive"
            subject = "a.>"
            [[job]]
            type = "rollup"
            subject = "b"
            field = ["x", "y.z"]
            """
        )
        self.assertEqual((archive.name, rollup.name), ("archive", "rollup"))
        self.assertEqual(archive.common.servers, "http://broker:8080")
        self.assertEqual(archive.common.options, (("retries", "7"),))

    def test_the_example(self) -> None:
        names = [task.name for task in tasks_of(read(EXAMPLE), "pipeline.toml", True, None)]
        self.assertEqual(names[:2], ["archive", "rollup"])

    def test_mistakes_are_told_with_their_place(self) -> None:
        self.assertIn("is no TOML", self.refused("[[job]"))
        self.assertIn("there is no [[job]]", self.refused("servers = 'a'"))
        self.assertIn("no key jobs", self.refused("[[jobs]]"))
        self.assertIn("job 1: type must be one of archive", self.refused("[[job]]\nx = 1"))
        said = self.refused('[[job]]\ntype = "archive"\n[[job]]\ntype = "archive"\narchve = "a"')
        self.assertIn("job 2 (archive): No such option", said)
        self.assertIn("--archive", said)
        said = self.refused('[[job]]\ntype = "rollup"\nsubject = "a"\nwindow = "soon"')
        self.assertIn("not an interval", said)
        said = self.refused('[[job]]\ntype = "archive"\nmaster = "yarn"')
        self.assertIn("master is of the session", said)
        self.assertIn("Missing argument", self.refused('[[job]]\ntype = "rollup"'))

    def test_two_of_a_place_are_refused(self) -> None:
        """Two archives in one folder would write over each other."""
        text = '[[job]]\ntype = "archive"\narchive = "a"\n' * 2
        self.assertIn("is a job's already", self.refused(text))
