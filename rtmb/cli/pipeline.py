"""`rtmb pipeline …`: the jobs of `rtmb.spark.jobs` as commands. docs/pipeline.md is the manual.

pyspark is not imported before a job runs: help must come at once, and a missing Java or pyspark is
one line, not a traceback.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from rtmb.spark.jobs.session import LOCAL, JobError, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from rtmb.spark.jobs.broker import Broker
    from rtmb.spark.jobs.streams import Progress

_F = TypeVar("_F", bound=Callable[..., Any])

#: Seconds between lines of progress where there is no terminal to draw on.
_LINE_EVERY = 10.0
_SPANS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Moment(click.ParamType[datetime]):
    """A time as ISO 8601 (of UTC unless it says otherwise), or how long ago: `15m`, `2h`, `1d`."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        ago = re.fullmatch(r"(\d+)([smhd])", value)
        if ago is not None:
            return datetime.now(UTC) - timedelta(**{_SPANS[ago[2]]: int(ago[1])})
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither a time such as 2026-05-01T10:00 nor one such as 2h")
        return found if found.tzinfo else found.replace(tzinfo=UTC)


class Interval(click.ParamType[str]):
    """A length of time: `10 seconds`, `1 minute`."""

    name = "interval"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"\d+(\.\d+)? (second|minute|hour|day)s?", value):
            self.fail(f"{value!r} is not an interval such as '10 seconds' or '1 minute'")
        return str(value)


def _pairs(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
    return dict(value.split("=", 1) for value in values)


def _broker_options(command: _F) -> _F:
    for option in (
        click.option(
            "--option", "-O", "options", multiple=True, callback=_pairs, metavar="NAME=VALUE",
            help="Another option of the source and the sink, such as apiKey=… (repeatable).",
        ),
        click.option(
            "--servers", default="http://127.0.0.1:8080", show_default=True, envvar="RTMB_HTTP",
            help="The broker's HTTP address.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


_master = click.option(
    "--master", help=f"Spark's master: spark://host:7077, yarn, … [default: {LOCAL}]"
)
_since = click.option("--since", type=Moment(), help="From this time on; 2h means two hours ago.")
_until = click.option("--until", type=Moment(), help="Before this time.")


@contextmanager
def _running(name: str, master: str | None) -> Iterator[SparkSession]:
    """A session for a job; what goes wrong becomes one line."""
    try:
        with running(name, master) as spark:
            yield spark
    except (JobError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None


def _broker(servers: str, options: dict[str, str]) -> Broker:
    from rtmb.spark.jobs.broker import Broker

    return Broker(servers, options)


class _Terminal:
    """Progress on one line for each stream, drawn again and again; or a line now and then."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._lines: dict[str, str] = {}
        self._printed = 0.0

    def __enter__(self) -> _Terminal:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()
        elif self._lines:
            self._print()

    def told(self, name: str) -> Callable[[Progress], None]:
        def tell(progress: Progress) -> None:
            self._lines[name] = f"{name}: {progress}"
            if self._console.is_terminal:
                self._live.update(Text("\n".join(self._lines.values())), refresh=True)
            elif datetime.now(UTC).timestamp() - self._printed >= _LINE_EVERY:
                self._print()

        return tell

    def _print(self) -> None:
        self._printed = datetime.now(UTC).timestamp()
        for line in self._lines.values():
            click.echo(line, err=True)


@contextmanager
def _until_stopped(queries: Sequence[StreamingQuery]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the streams, not the batch that they are in."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        click.echo("stopping", err=True)
    finally:
        signal.signal(signal.SIGTERM, before)
        for query in queries:
            query.stop()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def pipeline() -> None:
    """Spark jobs: a past for the broker, and arithmetic on it.

    They read the journal: start the broker with `--journal PATTERN`.
    """


@pipeline.command()
@click.argument("subject", required=False)
@click.option("--archive", "path", default="archive", show_default=True, help="Where it is kept.")
@click.option(
    "--from",
    "starting",
    default="earliest",
    show_default=True,
    help="Where a new archive begins: earliest, latest, a number or a time.",
)
@click.option(
    "--every", type=Interval(), default="10 seconds", show_default=True, help="How often to write."
)
@click.option("--once", is_flag=True, help="Archive what is there and end.")
@click.option(
    "--compact-every",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to make few files of closed hours; 0: never.",
)
@click.option(
    "--on-data-loss",
    type=click.Choice(["fail", "skip", "record"]),
    default="record",
    show_default=True,
    help="When the journal was faster: a gap is recorded as a row.",
)
@click.option(
    "--on-epoch-change",
    type=click.Choice(["fail", "earliest"]),
    default="earliest",
    show_default=True,
    help="When the broker was restarted.",
)
@_broker_options
@_master
def archive(
    subject: str | None, path: str, starting: str, every: str, once: bool, compact_every: float,
    on_data_loss: str, on_epoch_change: str, servers: str, options: dict[str, str],
    master: str | None,
) -> None:  # fmt: skip
    """Write SUBJECT to Parquet, each message once, whoever is killed when.

    SUBJECT is a pattern, or several with commas between; without it, everything the journal has.

    \b
    rtmb pipeline archive 'weather.>' --archive weather
    """
    with _running("archive", master) as spark:
        from rtmb.spark.jobs import archive as job
        from rtmb.spark.jobs.messages import EVERYTHING
        from rtmb.spark.jobs.store import Archive

        place = Archive(spark, path)
        query = job.start(
            place, _broker(servers, options), subject or EVERYTHING, starting=starting,
            every=every, once=once, on_data_loss=on_data_loss, on_epoch_change=on_epoch_change,
        )  # fmt: skip
        with _until_stopped([query]), _Terminal() as terminal:
            job.watch(place, query, told=terminal.told("archive"), compact_every=compact_every)


@pipeline.command()
@click.argument("subject")
@click.option(
    "--field",
    "-f",
    "fields",
    multiple=True,
    help="A number in the payload: temperature, wind.speed, or . for all of it.",
)
@click.option(
    "--by",
    default="subject",
    show_default=True,
    help="What belongs together: the subject, or a field of the payload.",
)
@click.option("--window", type=Interval(), default="1 minute", show_default=True)
@click.option("--slide", type=Interval(), help="Windows overlap and begin this often.")
@click.option(
    "--late",
    type=Interval(),
    default="30 seconds",
    show_default=True,
    help="How late a message may come and still be counted.",
)
@click.option(
    "--quantile",
    "-q",
    "quantiles",
    multiple=True,
    type=click.FloatRange(0, 1),
    default=(0.5, 0.9, 0.99),
    show_default=True,
)
@click.option(
    "--time-field", help="The field with the time that counts; else when it was published."
)
@click.option("--to", "path", default="rollup", show_default=True, help="Where windows are kept.")
@click.option(
    "--prefix",
    default="rollup",
    show_default=True,
    help="They are published on PREFIX.<subject>; '' publishes nothing.",
)
@click.option(
    "--from",
    "starting",
    default="earliest",
    show_default=True,
    help="Where a new roll-up begins: earliest, latest, a number or a time.",
)
@click.option(
    "--every", type=Interval(), default="5 seconds", show_default=True, help="How often to look."
)
@click.option("--once", is_flag=True, help="Roll up what is there and end.")
@_broker_options
@_master
def rollup(
    subject: str, fields: tuple[str, ...], by: str, window: str, slide: str | None, late: str,
    quantiles: tuple[float, ...], time_field: str | None, path: str, prefix: str, starting: str,
    every: str, once: bool, servers: str, options: dict[str, str], master: str | None,
) -> None:  # fmt: skip
    """Count, rate, least, greatest, mean and quantiles of JSON fields on SUBJECT, by windows.

    \b
    rtmb pipeline rollup 'weather.>' -f temperature -f wind.speed --window '10 seconds'
    """
    with _running("rollup", master) as spark:
        from rtmb.spark.jobs import rollup as job
        from rtmb.spark.jobs.streams import watch

        wanted = job.Rollup(fields, by, window, slide, late, quantiles, time_field)
        queries = job.start(
            spark, _broker(servers, options), subject, wanted, path, prefix=prefix or None,
            starting=starting, every=every, once=once,
        )  # fmt: skip
        with _until_stopped(queries), _Terminal() as terminal:
            watch(queries, terminal.told)


@pipeline.command()
@click.argument("sql")
@click.option("--archive", "path", help="An archive to read.")
@click.option("--live/--no-live", default=True, show_default=True, help="Read the journal too.")
@click.option("--subject", help="Of the journal, only this pattern. [default: the archive's]")
@_since
@_until
@click.option("--limit", default=50, show_default=True, help="Rows to print.")
@click.option("--csv", help="Write a CSV file instead; - is standard output.")
@click.option("--parquet", help="Write a folder of Parquet instead.")
@click.option("--chart", help="Draw an .svg or .png instead: the first column against the others.")
@click.option("--title", default="", help="Of the chart.")
@click.option(
    "--on-data-loss",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="When the journal has lost what the archive has not yet.",
)
@_broker_options
@_master
def query(
    sql: str, path: str | None, live: bool, subject: str | None, since: datetime | None,
    until: datetime | None, limit: int, csv: str | None, parquet: str | None, chart: str | None,
    title: str, on_data_loss: str, servers: str, options: dict[str, str], master: str | None,
) -> None:  # fmt: skip
    """Run SQL over the table `messages`: the archive and the live journal as one.

    \b
    rtmb pipeline query 'select subject, count(*) from messages group by subject' --archive weather
    """
    with _running("query", master) as spark:
        from rtmb.spark.jobs import query as job
        from rtmb.spark.jobs.store import Archive

        found = job.messages(
            spark,
            Archive(spark, path) if path else None,
            _broker(servers, options) if live else None,
            subject=subject, since=since, until=until, on_data_loss=on_data_loss,
        )  # fmt: skip
        found.createOrReplaceTempView(job.TABLE)
        answer = spark.sql(sql)
        if csv:
            job.to_csv(answer, csv)
        if parquet:
            job.to_parquet(answer, parquet)
        if chart:
            job.to_chart(answer, chart, title)
        if not (csv or parquet or chart):
            job.show(answer, limit)


@pipeline.command()
@click.option("--archive", "path", required=True, help="The archive to replay from.")
@click.option("--subject", default=">", show_default=True, help="Only this pattern.")
@_since
@_until
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
@_broker_options
@_master
def replay(
    path: str, subject: str, since: datetime | None, until: datetime | None, prefix: str,
    speed: float, servers: str, options: dict[str, str], master: str | None,
) -> None:  # fmt: skip
    """Publish a range of an archive again, in order within a subject, at its own pace or faster.

    \b
    rtmb pipeline replay --archive weather --since 1h --speed 10
    """
    with _running("replay", master) as spark:
        from rtmb.spark.jobs import replay as job
        from rtmb.spark.jobs.store import Archive

        count = job.replay(
            Archive(spark, path), _broker(servers, options), subject=subject, since=since,
            until=until, prefix=prefix, speed=speed,
        )  # fmt: skip
        click.echo(f"{count:,} messages replayed")


@pipeline.command()
@click.option("--archive", "path", help="An archive to read.")
@click.option("--live/--no-live", default=True, show_default=True, help="Read the journal too.")
@_since
@_until
@click.option("--out", "-o", default="report.html", show_default=True, help="The page to write.")
@click.option("--title", default="What the broker carried", show_default=True)
@click.option(
    "--sent-field", help="A header or field with the time of sending, to measure latency."
)
@_broker_options
@_master
def report(
    path: str | None, live: bool, since: datetime | None, until: datetime | None, out: str,
    title: str, sent_field: str | None, servers: str, options: dict[str, str], master: str | None,
) -> None:  # fmt: skip
    """Make one HTML page of what happened in a period.

    \b
    rtmb pipeline report --archive weather --since 24h -o yesterday.html
    """
    with _running("report", master) as spark:
        from rtmb.spark.jobs import query as tables
        from rtmb.spark.jobs import report as job
        from rtmb.spark.jobs.page import page
        from rtmb.spark.jobs.store import Archive

        found = tables.messages(
            spark,
            Archive(spark, path) if path else None,
            _broker(servers, options) if live else None,
            since=since, until=until, on_data_loss="skip",
        )  # fmt: skip
        facts = job.gather(found, since, until, sent_field=sent_field)
        Path(out).write_text(page(facts, title), encoding="utf-8")
        click.echo(f"{out}: {facts.messages:,} messages")
