"""The command that keeps messages: archive."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rtmb.cli.pipeline import checks
from rtmb.cli.pipeline.task import Task
from rtmb.cli.pipeline.types import (
    Common,
    common_options,
    every,
    payload_options,
    payloads_of,
    policies,
    streaming,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rtmb.spark.jobs.streams import Job


@click.command()
@click.argument("subject", required=False)
@click.option("--archive", "path", default="archive", show_default=True, help="Where it is kept.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Of another one than parquet, --table is written.",
)
@click.option("--table", help="The table of Delta or Iceberg; made if it is not there.")
@streaming
@every("10 seconds")
@click.option(
    "--compact-every",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to make few files of closed hours; 0: never.",
)
@policies("record")
@payload_options
@common_options
def archive(
    common: Common, subject: str | None, path: str, form: str, table: str | None, starting: str,
    ending: str | None, every: str, once: bool, compact_every: float, on_data_loss: str,
    on_epoch_change: str, **payloads: Any,
) -> Task:  # fmt: skip
    """Write SUBJECT to Parquet, each message once, whoever is killed when.

    SUBJECT is a pattern, or several with commas between; without it, everything the journal has.

    \b
    rtmb pipeline archive 'weather.>' --archive weather
    """

    if (form == "parquet") != (table is None):
        raise click.UsageError("--format delta and --format iceberg go with --table")

    def start(spark: SparkSession) -> Job:
        from rtmb.spark.jobs import archive as job
        from rtmb.spark.jobs.lake import LakeArchive
        from rtmb.spark.jobs.messages import EVERYTHING
        from rtmb.spark.jobs.store import Archive

        place = Archive(spark, path)
        if table is not None:
            place = LakeArchive(spark, path, form, table)
        query = job.start(
            place, common.broker(), subject or EVERYTHING, starting=starting, ending=ending,
            every=every, once=once, on_data_loss=on_data_loss, on_epoch_change=on_epoch_change,
            payloads=payloads_of(**payloads),
        )  # fmt: skip
        return job.job(place, query, compact_every=compact_every)

    return Task(
        "archive",
        common,
        start,
        [
            partial(checks.values, partial(payloads_of, **payloads)),
            partial(checks.positions, common, starting, ending),
            partial(checks.folder, common, path, "--archive"),
            partial(checks.broker, common, subject or ">"),
        ],
        place=path,
    )
