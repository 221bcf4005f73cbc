"""Mistakes that can be told before Spark starts, which takes seconds: each check raises a
`ClickException` of one line that says what, why and what to do."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from rtmb.cli.pipeline.types import Common
from rtmb.spark.options import SINK, SOURCE, OptionError, SparkOptions, read
from rtmb.spark.transport import BrokerError, JournalClient, UnreachableError, path

#: Seconds that a broker or a master has to answer: whoever mistyped its address waits.
PATIENCE = 1.5

_MASTER = re.compile(
    r"local|local\[(\d+|\*)(,\s*\d+)?\]|local-cluster\[.+\]|yarn|k8s://\S+"
    r"|spark://(?P<hosts>[^\s,:]+:\d+(,[^\s,:]+:\d+)*)"
)


def options(common: Common) -> SparkOptions:
    """The options of the source and the sink, whose names and values are known."""
    known = {option.name: option for option in (*SOURCE, *SINK)}
    try:
        return read({"servers": common.servers, **dict(common.options)}, tuple(known.values()))
    except OptionError as error:
        raise click.ClickException(str(error)) from None


def broker(common: Common, subject: str | None = None) -> None:
    """Somebody answers there, lets us in, and has a journal that we may read."""
    access = replace(options(common).access, retries=0, timeout=PATIENCE)
    link = JournalClient(access)
    try:
        found = link.json("GET", path("journal", "position", at="latest"))
        if subject is not None:
            wanted = tuple(part.strip() for part in subject.split(","))
            link.json("GET", path("journal", "wait", from_=found["next"], subject=wanted))
    except UnreachableError:
        raise click.ClickException(
            f"no broker answers at {common.servers}: start it with"
            " `rtmb serve --journal PATTERN`, or give its HTTP address with --servers"
        ) from None
    except BrokerError as error:
        raise click.ClickException(str(error) + _HINTS.get(error.status, "")) from None
    except (ValueError, KeyError):
        raise click.ClickException(
            f"what answers at {common.servers} is no rtmb: give the broker's HTTP address"
            " with --servers"
        ) from None
    finally:
        link.close()


_HINTS = {
    401: ": give its key with -O apiKey=…, or -O user=… -O password=…",
    403: ": ask for a user that may subscribe to this subject",
}


def master(common: Common) -> None:
    """Spark has such masters, and if it is one of a standalone cluster, it answers."""
    if common.master is None:
        return
    found = _MASTER.fullmatch(common.master)
    if found is None:
        raise click.ClickException(
            f"--master {common.master}: Spark knows no such master; it may be local, local[4],"
            " spark://host:7077, yarn or k8s://…"
        )
    hosts = found["hosts"].split(",") if found["hosts"] else []
    problem: OSError | None = None
    for host in hosts:
        name, _, port = host.partition(":")
        try:
            socket.create_connection((name, int(port)), PATIENCE / len(hosts)).close()
            return
        except OSError as error:
            problem = error
    if problem is not None:
        raise click.ClickException(
            f"--master {common.master}: no Spark master answers there ({problem}); start one, or"
            " leave --master out to work on this machine"
        )


def _is_local(common: Common, name: str) -> bool:
    """Whether a path is one of this machine that Python can look at."""
    return common.local and "://" not in name and not name.startswith("file:")


def folder(common: Common, name: str, option: str) -> None:
    """A folder can be made there, or is there and can be written to."""
    if not _is_local(common, name):
        return
    place = Path(name).absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise click.ClickException(f"{option} {name}: {place} is a file, and no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise click.ClickException(f"{option} {name}: this user may not write to {place}")


def file(name: str, option: str) -> None:
    """A file can be written there: always one of this machine."""
    place = Path(name).absolute()
    if place.is_dir():
        raise click.ClickException(f"{option} {name}: that is a folder, and no file")
    if not place.parent.is_dir():
        raise click.ClickException(f"{option} {name}: there is no folder {place.parent}")
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        raise click.ClickException(f"{option} {name}: this user may not write there")


def picture(name: str) -> None:
    """A chart can be drawn there."""
    file(name, "--chart")
    if not name.endswith((".svg", ".png")):
        raise click.ClickException(f"--chart {name}: a chart's name ends in .svg or .png")
    if name.endswith(".png") and importlib.util.find_spec("matplotlib") is None:
        raise click.ClickException(
            "a PNG needs matplotlib (pip install matplotlib); an .svg needs nothing"
        )


def archive(common: Common, name: str | None, option: str = "--archive") -> None:
    """There is an archive to read."""
    if name is None or not _is_local(common, name):
        return
    if not (Path(name) / "about.json").is_file():
        raise click.ClickException(
            f"{option} {name}: no archive there; `rtmb pipeline archive` makes one"
        )


def positions(common: Common, starting: str, ending: str | None) -> None:
    """`--from` and `--until` are positions."""
    given = {"startingPosition": starting, "endingPosition": ending or "latest"}
    try:
        read({**given, **dict(common.options)}, (*SOURCE, *SINK))
    except OptionError as error:
        text = str(error).replace("option startingPosition", "--from")
        raise click.ClickException(text.replace("option endingPosition", "--until")) from None


def values(make: Callable[[], object]) -> None:
    """Values that do not go together."""
    try:
        make()
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def there(common: Common, name: str, option: str) -> None:
    """Something is there to be read."""
    if _is_local(common, name) and not Path(name).exists():
        raise click.ClickException(f"{option} {name}: there is no such file or folder")
