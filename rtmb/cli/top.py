"""`rtmb top`: what goes on in a broker, drawn live at a terminal or once."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.task import deferLater
from zope.interface import implementer

from rtmb.cli.message_text import printable
from rtmb.cli.monitoring import Frame, Monitoring, Unreachable
from rtmb.cli.options import SECONDS, Command, HttpTarget, http_options
from rtmb.cli.runner import run

#: How connections can be sorted; the key `s` goes from one to the next.
SORTS = ("out", "in", "pending", "subs", "cid")
_ROWS = 1000  # in a frame that is not bound to a screen


# What it looks like


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def _head(frame: Frame, url: str, trouble: str) -> RenderableType:
    server = frame.now.server
    name = Text(printable(str(server.get("server_name", "?"))), "bold cyan")
    name.truncate(24, overflow="ellipsis")  # nats-server's default is longer than a screen
    first = Text.assemble(
        name,
        f"  {printable(str(server.get('version', '')))}  up {server.get('uptime', '?')}  {url}",
    )
    slow, drops = server.get("slow_consumers", 0), server.get("drops", 0)
    second = Text.assemble(
        "connections ",
        (str(server.get("connections", 0)), "bold"),
        "  subscriptions ",
        (str(server.get("subscriptions", 0)), "bold"),
        "  slow consumers ",
        (str(slow), "bold red" if slow else "bold"),
        *(("  drops ", (str(drops), "bold red" if drops else "bold")) if "drops" in server else ()),
        f"  cpu {server.get('cpu', 0):.0f} %  memory {_bytes(server.get('mem'))}",
    )
    third = Text.assemble(
        "in ",
        (f"{_number(frame.server_rate('in_msgs'))} msg/s", "bold green"),
        f" {_bytes(frame.server_rate('in_bytes'))}/s   out ",
        (f"{_number(frame.server_rate('out_msgs'))} msg/s", "bold green"),
        f" {_bytes(frame.server_rate('out_bytes'))}/s",
    )
    lines = [first, second, third]
    if trouble:
        lines.append(Text(trouble, "bold red"))
    return Group(*lines)


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, expand=True, padding=(0, 1)
    )
    for name in columns:
        text = name in ("name", "subject", "last", "door")
        ratio = {"name": 2, "subject": 2, "last": 3}.get(name)
        table.add_column(
            name,
            justify="left" if text else "right",
            ratio=ratio,
            no_wrap=True,
            overflow="ellipsis",
            header_style="dim",
        )
    return table


def _connections(frame: Frame, sort: str, rows: int) -> RenderableType:
    columns = ("cid", "name", "door", "subs", "pending", "in/s", "out/s", "uptime")
    clients = frame.clients(sort)
    table = _table(f"{len(clients)} connections by {sort}", *columns)
    for client in clients[:rows]:
        pending = client.get("pending_bytes", 0)
        address = f"{client.get('ip', '')}:{client.get('port', '')}"
        name = printable(str(client.get("name") or address)).replace("\n", " ")
        table.add_row(
            str(client["cid"]),
            Text(name),
            printable(str(client.get("type", ""))),
            str(client.get("subscriptions", 0)),
            Text(_bytes(pending), "bold red" if pending else ""),
            _number(frame.client_rate(client, "in_msgs")),
            _number(frame.client_rate(client, "out_msgs")),
            str(client.get("uptime", "")),
        )
    return table


def _subjects(frame: Frame, rows: int) -> RenderableType:
    if frame.now.topics is None:
        return _patterns(frame, rows)
    topics = frame.topics()
    table = _table(f"{len(topics)} subjects", "subject", "msg/s", "messages", "subs", "last")
    for topic in topics[:rows]:
        last = printable(str(topic.get("last", ""))).replace("\n", " ")
        table.add_row(
            Text(printable(topic["name"])),
            _number(frame.topic_rate(topic)),
            _number(topic["messages"]),
            str(topic.get("subscribers", 0)),
            Text(last, "dim"),
        )
    return table


def _patterns(frame: Frame, rows: int) -> RenderableType:
    """A server that does not tell its subjects tells at least what is subscribed to."""
    subscribed: Counter[str] = Counter()
    for client in frame.now.connections:
        subscribed.update(client.get("subscriptions_list") or [])
    table = _table(f"{len(subscribed)} subjects subscribed to", "subject", "subs")
    for subject, count in subscribed.most_common(rows):
        table.add_row(Text(printable(subject)), str(count))
    return table


def draw(frame: Frame, url: str, sort: str, height: int | None, trouble: str = "") -> Group:
    """One frame; `height` lines of the screen, or None for as many as it takes."""
    rows, more = _ROWS, _ROWS
    if height is not None:
        free = max(2, height - 11 - bool(trouble))
        # Half for each, and what one does not need is for the other.
        subjects = len(frame.now.topics) if frame.now.topics is not None else free
        more = max(free // 2, free - len(frame.now.connections))
        rows = max(free // 2, free - subjects)
        more = min(more, free - min(rows, len(frame.now.connections)))
    parts: list[RenderableType] = [
        _head(frame, url, trouble),
        "",
        _connections(frame, sort, rows),
        "",
        _subjects(frame, more),
    ]
    if height is not None:
        parts += ["", Text("q quit   s sort", "dim")]
    return Group(*parts)


# Live


@implementer(IReadDescriptor)
class Keyboard:
    """Calls back with each key, for as long as the terminal is ours."""

    def __init__(self, on_key: Callable[[str], None]) -> None:
        self._on_key = on_key

    def fileno(self) -> int:
        return sys.stdin.fileno()

    def logPrefix(self) -> str:
        return "keyboard"

    def doRead(self) -> None:
        for key in os.read(self.fileno(), 64).decode(errors="replace") or "q":
            self._on_key(key)

    def connectionLost(self, reason: Any) -> None:
        self._on_key("q")


@contextmanager
def _keys(reactor: Any, on_key: Callable[[str], None]) -> Iterator[None]:
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    keyboard = Keyboard(on_key)
    tty.setcbreak(sys.stdin)
    reactor.addReader(keyboard)
    try:
        yield
    finally:
        reactor.removeReader(keyboard)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@click.command(
    cls=Command,
    examples="""
rtmb top
rtmb top --http https://10.0.0.5:8080 --user ann --password secret
rtmb top --http http://127.0.0.1:8222           a nats-server's monitoring
rtmb top --once --sort pending                  one frame, for a mail or a log
rtmb top --json | jq .server.connections
""",
)
@http_options
@click.option("--interval", type=SECONDS, default="1", show_default=True, help="Time of a frame.")
@click.option("--sort", type=click.Choice(SORTS), default="out", show_default=True)
@click.option("--system", is_flag=True, help="Show the broker's own subjects, !system/…, too.")
@click.option("--once", is_flag=True, help="Measure for one interval, print one frame, and end.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def top(
    target: HttpTarget, interval: float, sort: str, system: bool, once: bool, as_json: bool
) -> None:
    """Watch connections, subjects, rates and slow consumers of a broker.

    q quits, s changes how connections are sorted. What waits for a client that does not keep up is
    red.
    """
    once = once or as_json
    if not once and not sys.stdout.isatty():
        raise click.UsageError("this is no terminal; --once prints one frame")

    async def main(reactor: Any) -> None:
        monitoring = Monitoring(reactor, target, system=system)
        frame = Frame(await monitoring.read())
        if not once:
            await _live(reactor, monitoring, frame, target.url, interval, sort)
            return
        await deferLater(reactor, interval)
        frame = Frame(await monitoring.read(), frame.now)
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(_fields(frame, sort))))
        else:
            Console().print(draw(frame, target.url, sort, None))

    run(main)


def _fields(frame: Frame, sort: str) -> dict[str, Any]:
    rates = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
    return {
        "server": frame.now.server
        | {f"{key}_per_second": frame.server_rate(key) for key in rates},
        "connections": [
            c | {f"{key}_per_second": frame.client_rate(c, key) for key in rates}
            for c in frame.clients(sort)
        ],
        "topics": [
            t | {"messages_per_second": frame.topic_rate(t)} for t in frame.topics()
        ]
        if frame.now.topics is not None
        else None,
    }  # fmt: skip


async def _live(
    reactor: Any, monitoring: Monitoring, frame: Frame, url: str, interval: float, sort: str
) -> None:
    trouble = ""
    quitting: Deferred[None] = Deferred()

    def show() -> None:
        height = live.console.size.height
        live.update(draw(frame, url, sort, height, trouble), refresh=True)

    def on_key(key: str) -> None:
        nonlocal sort
        if key in "qQ\x04" and not quitting.called:
            quitting.callback(None)
        elif key == "s":
            sort = SORTS[(SORTS.index(sort) + 1) % len(SORTS)]
            show()

    async def follow() -> None:
        nonlocal frame, trouble
        while True:
            await deferLater(reactor, interval)
            try:
                frame, trouble = Frame(await monitoring.read(), frame.now), ""
            except Unreachable as problem:
                trouble = problem.message
            show()

    with Live(screen=True, auto_refresh=False, console=Console()) as live:
        show()
        with _keys(reactor, on_key):
            following = Deferred.fromCoroutine(follow())
            following.addErrback(lambda f: None if quitting.called else quitting.errback(f))
            try:
                await quitting
            finally:
                following.cancel()
