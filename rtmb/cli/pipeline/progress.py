"""How far streams are: drawn on a terminal, a line now and then elsewhere, or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from rtmb.spark.jobs.streams import Progress

#: Seconds between lines of progress where there is no terminal to draw on.
_LINE_EVERY = 10.0


class Told(Protocol):
    """Is told of progress."""

    def __call__(self, progress: Progress) -> None: ...


@contextmanager
def told_by(as_json: bool) -> Iterator[Told]:
    """Who tells of progress: whatever suits where it is to be read."""
    if as_json:
        yield _as_json
    elif sys.stderr.isatty():
        with Live(console=Console(stderr=True), auto_refresh=False) as live:
            yield _Drawn(live)
    else:
        lines = _Lines()
        yield lines
        lines.print()


def _as_json(progress: Progress) -> None:
    click.echo(json.dumps(progress.facts()))


class _Drawn:
    """One line for each stream, drawn again and again."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._lines: dict[str, str] = {}

    def __call__(self, progress: Progress) -> None:
        self._lines[progress.name] = f"{progress.name}: {progress}"
        self._live.update(Text("\n".join(self._lines.values())), refresh=True)


class _Lines:
    """The newest line of each stream, not too often."""

    def __init__(self) -> None:
        self._waiting: dict[str, Progress] = {}
        self._printed = 0.0

    def __call__(self, progress: Progress) -> None:
        self._waiting[progress.name] = progress
        if time.monotonic() - self._printed >= _LINE_EVERY:
            self.print()

    def print(self) -> None:
        """Print what was not printed yet."""
        self._printed = time.monotonic()
        for name, progress in self._waiting.items():
            click.echo(f"{name}: {progress}", err=True)
        self._waiting.clear()
