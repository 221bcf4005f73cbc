"""Values of the pipeline's options, and the options that its commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rtmb.spark.jobs.session import LOCAL

if TYPE_CHECKING:
    from rtmb.spark.jobs.broker import Broker, Payloads

_F = TypeVar("_F", bound=Callable[..., Any])

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


@dataclass(frozen=True)
class Common:
    """What every command is told."""

    servers: str = "http://127.0.0.1:8080"
    options: tuple[tuple[str, str], ...] = ()
    master: str | None = None
    json: bool = False
    log: str | None = None

    @property
    def local(self) -> bool:
        """Whether paths without a scheme are of this machine."""
        return (self.master or LOCAL).startswith("local")

    def broker(self) -> Broker:
        from rtmb.spark.jobs.broker import Broker

        return Broker(self.servers, dict(self.options))


def _pairs(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    for value in values:
        if "=" not in value:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
    return tuple((name, value) for name, _, value in (v.partition("=") for v in values))


def several(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Several options as one decorator, in the order in which help shows them."""

    def decorate(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


broker_options = several(
    click.option(
        "--option", "-O", "options", multiple=True, callback=_pairs, metavar="NAME=VALUE",
        help="Another option of the source and the sink, such as apiKey=… (repeatable).",
    ),
    click.option(
        "--servers", default=Common.servers, show_default=True, envvar="RTMB_HTTP",
        help="The broker's HTTP address.",
    ),
)  # fmt: skip
session_options = several(
    click.option("--json", is_flag=True, help="Progress, answers and errors as lines of JSON."),
    click.option("--log", metavar="FILE", help="Where Spark logs. [default: a temporary file]"),
    click.option(
        "--master", help=f"Spark's master: spark://host:7077, yarn, … [default: {LOCAL}]"
    ),
)  # fmt: skip


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every job; the command gets them as one value, `common`."""

    @wraps(command)
    def with_common(
        *, servers: str, options: tuple[tuple[str, str], ...], master: str | None, json: bool,
        log: str | None, **own: Any,
    ) -> Any:  # fmt: skip
        return command(common=Common(servers, options, master, json, log), **own)

    return broker_options(session_options(with_common))


#: Of the jobs that stream.
streaming = several(
    click.option(
        "--from",
        "starting",
        default="earliest",
        show_default=True,
        help="Where a new job begins: earliest, latest, a number or a time.",
    ),
    click.option("--until", "ending", help="Where it ends: a number or a time. [default: never]"),
    click.option("--once", is_flag=True, help="Do what is there and end."),
)
#: Of the jobs that read a period.
period = several(
    click.option("--since", type=Moment(), help="From this time on; 2h means two hours ago."),
    click.option("--until", type=Moment(), help="Before this time."),
)


def every(default: str) -> Callable[[_F], _F]:
    """How often a stream looks."""
    return click.option(
        "--every", type=Interval(), default=default, show_default=True, help="How often to look."
    )


def policies(on_data_loss: str) -> Callable[[_F], _F]:
    """What to do when the journal has lost something."""
    return several(
        click.option(
            "--on-data-loss",
            type=click.Choice(["fail", "skip", "record"]),
            default=on_data_loss,
            show_default=True,
            help="When the journal was faster; record: a gap is a row.",
        ),
        click.option(
            "--on-epoch-change",
            type=click.Choice(["fail", "earliest"]),
            default="earliest",
            show_default=True,
            help="When the broker was restarted.",
        ),
    )


#: What becomes of payloads that are not what is expected.
payload_options = several(
    click.option(
        "--schema",
        default="",
        metavar="COLUMNS",
        help="What a payload has, as SQL: 'celsius double, wind struct<speed: double>'.",
    ),
    click.option(
        "--mode",
        type=click.Choice(["permissive", "drop", "fail", "deadLetter"]),
        help="What becomes of messages with another payload. [default: permissive]",
    ),
    click.option(
        "--dead-letter", default="", metavar="SUBJECT", help="Where they go, for deadLetter."
    ),
)


def payloads_of(schema: str, mode: str | None, dead_letter: str) -> Payloads:
    """What the options of `payload_options` say."""
    from rtmb.spark.jobs.broker import Payloads

    return Payloads(schema, mode or ("deadLetter" if dead_letter else "permissive"), dead_letter)
