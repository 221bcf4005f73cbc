"""The commands that publish what they make of messages: rollup, alert and enrich."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rtmb.cli.pipeline import checks
from rtmb.cli.pipeline.task import Task
from rtmb.cli.pipeline.types import (
    Common,
    Interval,
    common_options,
    every,
    payload_options,
    payloads_of,
    policies,
    several,
    streaming,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rtmb.spark.jobs.broker import Payloads
    from rtmb.spark.jobs.rollup import Rollup
    from rtmb.spark.jobs.streams import Job

#: What windows there are, and what is counted in them: of `rollup` and `alert`.
windowed = several(
    click.option(
        "--field",
        "-f",
        "fields",
        multiple=True,
        help="A number in the payload: temperature, wind.speed, or . for all of it.",
    ),
    click.option(
        "--by",
        default="subject",
        show_default=True,
        help="What belongs together: the subject, or a field of the payload.",
    ),
    click.option("--window", type=Interval(), default="1 minute", show_default=True),
    click.option("--slide", type=Interval(), help="Windows overlap and begin this often."),
    click.option(
        "--late",
        type=Interval(),
        default="30 seconds",
        show_default=True,
        help="How late a message may come and still be counted.",
    ),
    click.option(
        "--quantile",
        "-q",
        "quantiles",
        multiple=True,
        type=click.FloatRange(0, 1),
        default=(0.5, 0.9, 0.99),
        show_default=True,
    ),
    click.option(
        "--time-field", help="The field with the time that counts; else when it was published."
    ),
)


def _rollup(
    fields: tuple[str, ...], by: str, window: str, slide: str | None, late: str,
    quantiles: tuple[float, ...], time_field: str | None,
) -> Rollup:  # fmt: skip
    """What the options of `windowed` say."""
    from rtmb.spark.jobs.rollup import Rollup

    return Rollup(fields, by, window, slide, late, quantiles, time_field)


@click.command()
@click.argument("subject")
@windowed
@click.option("--to", "path", default="rollup", show_default=True, help="Where windows are kept.")
@click.option(
    "--prefix",
    default="rollup",
    show_default=True,
    help="They are published on PREFIX.<subject>; '' publishes nothing.",
)
@streaming
@every("5 seconds")
@policies("skip")
@payload_options
@common_options
def rollup(
    common: Common, subject: str, path: str, prefix: str, starting: str, ending: str | None,
    every: str, once: bool, on_data_loss: str, on_epoch_change: str, schema: str,
    mode: str | None, dead_letter: str, **windows: Any,
) -> Task:  # fmt: skip
    """Count, rate, least, greatest, mean and quantiles of JSON fields on SUBJECT, by windows.

    \b
    rtmb pipeline rollup 'weather.>' -f temperature -f wind.speed --window '10 seconds'
    """

    def payloads() -> Payloads:
        from rtmb.spark.jobs.rollup import schema_of

        if (mode or dead_letter) and not schema:
            return payloads_of(schema_of(windows["fields"]), mode, dead_letter)
        return payloads_of(schema, mode, dead_letter)

    def start(spark: SparkSession) -> Job:
        from rtmb.spark.jobs import rollup as job
        from rtmb.spark.jobs.streams import Job

        wanted = _rollup(**windows)
        queries = job.start(
            spark, common.broker(), subject, wanted, path, prefix=prefix or None,
            starting=starting, ending=ending, every=every, once=once, on_data_loss=on_data_loss,
            on_epoch_change=on_epoch_change, payloads=payloads(),
        )  # fmt: skip
        return Job(queries)

    def arithmetic() -> None:
        from rtmb.spark.jobs.rollup import not_of_itself

        _rollup(**windows)
        payloads()
        not_of_itself(subject, prefix or None)

    return Task(
        "rollup",
        common,
        start,
        [
            partial(checks.values, arithmetic),
            partial(checks.positions, common, starting, ending),
            partial(checks.folder, common, path, "--to"),
            partial(checks.broker, common, subject),
        ],
        place=path,
    )


@click.command()
@click.argument("subject")
@click.option("--name", required=True, help="What the alert is called.")
@click.option(
    "--when",
    required=True,
    metavar="SQL",
    help="About a window: 'temperature.mean > 30 and count > 10'.",
)
@windowed
@click.option("--to", "path", help="Where its state is kept. [default: alert-NAME]")
@click.option(
    "--prefix", default="alert", show_default=True, help="Published on PREFIX.NAME.<subject>."
)
@streaming
@every("5 seconds")
@policies("skip")
@common_options
def alert(
    common: Common, subject: str, name: str, when: str, path: str | None, prefix: str,
    starting: str, ending: str | None, every: str, once: bool, on_data_loss: str,
    on_epoch_change: str, **windows: Any,
) -> Task:  # fmt: skip
    """Publish once when a condition on windows of SUBJECT begins to hold, and once when it ends.

    The columns are those of a roll-up: start, end, key, count, rate, and of each --field its
    count, min, max, mean and quantiles, such as temperature.p90.

    \b
    rtmb pipeline alert 'weather.>' --name heat -f temperature --when 'temperature.mean > 30'
    """
    place = path or f"alert-{name}"

    def start(spark: SparkSession) -> Job:
        from rtmb.spark.jobs import alert as job
        from rtmb.spark.jobs.streams import Job

        wanted = job.Alert(name, when, _rollup(**windows), prefix)
        query = job.start(
            spark, common.broker(), subject, wanted, place, starting=starting, ending=ending,
            every=every, once=once, on_data_loss=on_data_loss, on_epoch_change=on_epoch_change,
        )  # fmt: skip
        return Job([query])

    def arithmetic() -> None:
        from rtmb.spark.jobs.alert import Alert, not_of_itself

        not_of_itself(subject, Alert(name, when, _rollup(**windows), prefix))

    return Task(
        "alert",
        common,
        start,
        [
            partial(checks.values, arithmetic),
            partial(checks.positions, common, starting, ending),
            partial(checks.folder, common, place, "--to"),
            partial(checks.broker, common, subject),
        ],
        place=place,
    )


@click.command()
@click.argument("subject")
@click.option("--table", required=True, help="A .csv file with a first line of names, or Parquet.")
@click.option(
    "--on",
    required=True,
    metavar="FIELD[=COLUMN]",
    help="A field of the payload, subject, or $2 for its second token; and the table's column.",
)
@click.option(
    "--unmatched",
    type=click.Choice(["pass", "drop"]),
    default="pass",
    show_default=True,
    help="What becomes of messages without a row.",
)
@click.option("--to", "path", default="enrich", show_default=True, help="Where its state is kept.")
@click.option(
    "--prefix", default="enriched", show_default=True, help="Published on PREFIX.<subject>."
)
@streaming
@every("1 second")
@policies("skip")
@common_options
def enrich(
    common: Common, subject: str, table: str, on: str, unmatched: str, path: str, prefix: str,
    starting: str, ending: str | None, every: str, once: bool, on_data_loss: str,
    on_epoch_change: str,
) -> Task:  # fmt: skip
    """Add the columns of a table's row to the JSON payloads on SUBJECT, and publish them again.

    \b
    rtmb pipeline enrich 'weather.>' --table stations.csv --on '$2=station'
    """

    def start(spark: SparkSession) -> Job:
        from rtmb.spark.jobs import enrich as job
        from rtmb.spark.jobs.streams import Job

        wanted = job.Enrichment.on(table, on, prefix, unmatched)
        query = job.start(
            spark, common.broker(), subject, wanted, path, starting=starting, ending=ending,
            every=every, once=once, on_data_loss=on_data_loss, on_epoch_change=on_epoch_change,
        )  # fmt: skip
        return Job([query])

    def arithmetic() -> None:
        from rtmb.spark.jobs.enrich import Enrichment, not_of_itself

        not_of_itself(subject, Enrichment.on(table, on, prefix, unmatched))

    return Task(
        "enrich",
        common,
        start,
        [
            partial(checks.values, arithmetic),
            partial(checks.there, common, table, "--table"),
            partial(checks.positions, common, starting, ending),
            partial(checks.folder, common, path, "--to"),
            partial(checks.broker, common, subject),
        ],
        place=path,
    )
