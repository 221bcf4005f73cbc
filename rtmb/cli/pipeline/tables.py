"""The commands that answer and end: query, replay and report."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rtmb.cli.pipeline import checks
from rtmb.cli.pipeline.task import Task
from rtmb.cli.pipeline.types import Common, common_options, period

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rtmb.spark.jobs.broker import Broker

_archive = click.option("--archive", "path", help="An archive to read.")
_live = click.option(
    "--live/--no-live", default=True, show_default=True, help="Read the journal too."
)


@click.command()
@click.argument("sql")
@_archive
@_live
@click.option("--subject", help="Of the journal, only this pattern. [default: the archive's]")
@period
@click.option("--limit", default=50, show_default=True, help="Rows to print.")
@click.option("--csv", help="Write a CSV file instead; - is standard output.")
@click.option("--parquet", help="Write a folder of Parquet instead.")
@click.option("--chart", help="Draw an .svg or .png instead: the first column against the others.")
@click.option("--title", default="", help="Of the chart. [default: the query]")
@click.option(
    "--on-data-loss",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="When the journal has lost what the archive has not yet.",
)
@common_options
def query(
    common: Common, sql: str, path: str | None, live: bool, subject: str | None,
    since: datetime | None, until: datetime | None, limit: int, csv: str | None,
    parquet: str | None, chart: str | None, title: str, on_data_loss: str,
) -> Task:  # fmt: skip
    """Run SQL over the table `messages`: the archive and the live journal as one.

    \b
    rtmb pipeline query 'select subject, count(*) from messages group by subject' --archive weather
    """

    journal = _Journal(common, live)

    def start(spark: SparkSession) -> None:
        from rtmb.spark.jobs import query as job
        from rtmb.spark.jobs.lake import opened

        found = job.messages(
            spark, opened(spark, path) if path else None, journal.broker, subject=subject,
            since=since, until=until, on_data_loss=on_data_loss,
        )  # fmt: skip
        found.createOrReplaceTempView(job.TABLE)
        answer = spark.sql(sql)
        if csv:
            job.to_csv(answer, csv)
        if parquet:
            job.to_parquet(answer, parquet)
        if chart:
            job.to_chart(answer, chart, title or sql)
        if not (csv or parquet or chart):
            if common.json:
                job.to_json(answer)
            else:
                job.show(answer, limit)

    found = [partial(checks.archive, common, path)]
    if csv and csv != "-":
        found.append(partial(checks.file, csv, "--csv"))
    if parquet:
        found.append(partial(checks.folder, common, parquet, "--parquet"))
    if chart:
        found.append(partial(checks.picture, chart))
    if live:
        found.append(partial(checks.broker, common, subject))
    elif path is None:
        raise click.UsageError("nothing to read: --no-live needs --archive")
    # Where the archive ends, and so where the journal is to be read from, is not known before.
    prepare = journal.copy if path is not None else partial(journal.copy, subject, on_data_loss)
    return Task("query", common, start, found, prepare)


@click.command()
@click.option("--archive", "path", required=True, help="The archive to replay from.")
@click.option("--subject", default=">", show_default=True, help="Only this pattern.")
@period
@click.option(
    "--prefix",
    default="replay",
    show_default=True,
    help="Published on PREFIX.<subject>; '' is the subject itself.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="2 is twice as fast as it was; 0 as fast as it goes.",
)
@common_options
def replay(
    common: Common, path: str, subject: str, since: datetime | None, until: datetime | None,
    prefix: str, speed: float,
) -> Task:  # fmt: skip
    """Publish a range of an archive again, in order within a subject, at its own pace or faster.

    \b
    rtmb pipeline replay --archive weather --since 1h --speed 10
    """

    def start(spark: SparkSession) -> None:
        from rtmb.spark.jobs import replay as job
        from rtmb.spark.jobs.lake import opened

        count = job.replay(
            opened(spark, path), common.broker(), subject=subject, since=since, until=until,
            prefix=prefix, speed=speed,
        )  # fmt: skip
        _tell(common, f"{count:,} messages replayed", messages=count)

    return Task(
        "replay",
        common,
        start,
        [partial(checks.archive, common, path), partial(checks.broker, common)],
    )


@click.command()
@_archive
@_live
@period
@click.option("--out", "-o", default="report.html", show_default=True, help="The page to write.")
@click.option("--title", default="What the broker carried", show_default=True)
@click.option(
    "--sent-field", help="A header or field with the time of sending, to measure latency."
)
@common_options
def report(
    common: Common, path: str | None, live: bool, since: datetime | None, until: datetime | None,
    out: str, title: str, sent_field: str | None,
) -> Task:  # fmt: skip
    """Make one HTML page of what happened in a period.

    \b
    rtmb pipeline report --archive weather --since 24h -o yesterday.html
    """

    journal = _Journal(common, live)

    def start(spark: SparkSession) -> None:
        from rtmb.spark.jobs import query as tables
        from rtmb.spark.jobs import report as job
        from rtmb.spark.jobs.lake import opened
        from rtmb.spark.jobs.page import page

        found = tables.messages(
            spark, opened(spark, path) if path else None, journal.broker, since=since, until=until,
            on_data_loss="skip",
        )  # fmt: skip
        facts = job.gather(found, since, until, sent_field=sent_field)
        Path(out).write_text(page(facts, title), encoding="utf-8")
        _tell(common, f"{out}: {facts.messages:,} messages", page=out, messages=facts.messages)

    found = [partial(checks.archive, common, path), partial(checks.file, out, "--out")]
    if live:
        found.append(partial(checks.broker, common))
    elif path is None:
        raise click.UsageError("nothing to read: --no-live needs --archive")
    prepare = journal.copy if path is not None else partial(journal.copy, None, "skip")
    return Task("report", common, start, found, prepare)


class _Journal:
    """The broker whose journal is read, if it is; on this machine through a copy."""

    def __init__(self, common: Common, live: bool) -> None:
        self._common, self._live = common, live
        self.broker: Broker | None = None

    def copy(self, *options: Any) -> None:
        """Choose how it is read, and with the options of `journal_options` begin to."""
        if not self._live:
            return
        self.broker = self._common.broker()
        if self._common.local:
            from rtmb.spark.jobs.copies import CopyingBroker
            from rtmb.spark.jobs.query import journal_options

            copying = CopyingBroker(self.broker.servers, self.broker.options)
            if copying.suits:
                self.broker = copying
                if options:
                    copying.begin(**journal_options(*options))


def _tell(common: Common, text: str, **facts: object) -> None:
    click.echo(json.dumps(facts) if common.json else text)
