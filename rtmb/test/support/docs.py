"""What README, docs and the examples' pages print: their blocks of code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import rtmb

ROOT = Path(rtmb.__file__).parents[1]


class Block(NamedTuple):
    """A block between fences."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README, docs and the examples' pages; none where the package is installed."""
    folders = ("", "docs", "examples", "examples/weather")
    return sorted(page for name in folders for page in (ROOT / name).glob("*.md"))


def blocks() -> Iterator[Block]:
    """All blocks of all pages."""
    for page in pages():
        text = page.read_text()
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 1
            yield Block(str(page.relative_to(ROOT)), line, match[1], match[2])


def shell_commands(block: Block) -> Iterator[str]:
    """What someone is to type of a block: the lines behind `$ `, and those that go on with them."""
    lines = iter(block.text.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            continue  # what a command says
        command = line.removeprefix("$ ")
        while not _is_whole(command):
            command += "\n" + next(lines)
        yield command


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:  # a quote, or a line, that goes on
        return False
    return not command.endswith("\\")
