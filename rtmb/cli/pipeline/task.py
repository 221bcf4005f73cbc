"""From a command to a Spark session: what is checked first, what runs, and how it ends."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rtmb.cli.pipeline import checks
from rtmb.cli.pipeline.types import Common
from rtmb.spark.jobs.session import JobError, check, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rtmb.spark.jobs.streams import Job

#: The exit status of what was ended by Ctrl-C.
_INTERRUPTED = 130


@dataclass
class Task:
    """What a command is to do. `start` does it, or gives a job that streams."""

    name: str
    common: Common
    start: Callable[[SparkSession], Job | None]
    #: Look for mistakes, without Spark; each raises a `ClickException`.
    checks: Sequence[Callable[[], None]] = ()
    #: What can be done while Spark starts; called when all checks were passed.
    prepare: Callable[[], None] = lambda: None
    #: Where it keeps what it has done, which no other job may write to.
    place: str | None = None


class ToldError(click.ClickException):
    """An error as a line of JSON."""

    def show(self, file: Any = None) -> None:
        click.echo(json.dumps({"error": self.message}))


def perform(tasks: Sequence[Task], common: Common, name: str) -> None:
    """Check all the tasks, then run them in one session."""
    try:
        try:
            check()
        except JobError as error:
            raise click.ClickException(str(error)) from None
        checks.master(common)
        for task in tasks:
            for look in task.checks:
                look()
        _run(tasks, common, name)
    except click.ClickException as error:
        if common.json:
            raise ToldError(error.message) from None
        raise
    except KeyboardInterrupt:
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _run(tasks: Sequence[Task], common: Common, name: str) -> None:
    from rtmb.cli.pipeline.progress import told_by
    from rtmb.spark.jobs.streams import watch

    try:
        for task in tasks:
            task.prepare()
        with running(name, common.master, common.log) as spark, _stopping() as stopped:
            jobs = []
            try:
                for task in tasks:
                    job = task.start(spark)
                    if job is not None:
                        jobs.append(job)
                if jobs:
                    with told_by(common.json) as told:
                        watch(jobs, told, stopped)
            finally:
                for query in (query for job in jobs for query in job.queries):
                    query.stop()
    except (JobError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end streams between their batches, not in them: gives whether to end.

    A second Ctrl-C does not wait. What does not stream is ended at once."""
    asked = threading.Event()

    def stop(number: int, frame: object) -> None:
        if asked.is_set() or not watching:
            raise KeyboardInterrupt
        asked.set()
        click.echo("stopping; once more to stop at once", err=True)

    watching = False

    def stopped() -> bool:
        nonlocal watching
        watching = True
        return asked.is_set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
