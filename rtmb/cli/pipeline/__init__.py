"""`rtmb pipeline …`: the jobs of `rtmb.spark.jobs` as commands. docs/pipeline.md is the manual.

pyspark is not imported before a job runs: help must come at once, and a missing Java or pyspark is
one line, not a traceback.
"""

from __future__ import annotations

import click

from rtmb.cli.pipeline.archive import archive
from rtmb.cli.pipeline.derived import alert, enrich, rollup
from rtmb.cli.pipeline.run import run
from rtmb.cli.pipeline.status import status
from rtmb.cli.pipeline.tables import query, replay, report
from rtmb.cli.pipeline.task import Task, perform

#: The commands that are jobs, by name.
JOBS: dict[str, click.Command] = {
    str(command.name): command
    for command in (archive, rollup, alert, enrich, query, replay, report)
}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def pipeline() -> None:
    """Spark jobs: a past for the broker, and arithmetic on it.

    They read the journal: start the broker with `--journal PATTERN`.
    """


@pipeline.result_callback()
def _perform(task: Task | None) -> None:
    """Commands say what is to be done; here it is."""
    if task is not None:
        perform([task], task.common, task.name)


for _command in (*JOBS.values(), run, status):
    pipeline.add_command(_command)
