"""`rtmb pub`, `rtmb sub` and `rtmb request`."""

from __future__ import annotations

import sys
import uuid
from datetime import UTC, datetime
from typing import Any, Protocol

import click
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from rtmb.cli.connection import CommandConnection, connected, is_rtmb
from rtmb.cli.message_text import json_line, message_fields, printable
from rtmb.cli.options import (
    COUNT,
    COUNT_OR_NONE,
    HEADER,
    PATTERN,
    SECONDS,
    SUBJECT,
    Command,
    Target,
    connection_options,
)
from rtmb.cli.runner import FAILED, CommandFailed, run, tell
from rtmb.client import Client, Message, NoResponders, Timeout


class Show(Protocol):
    """Prints a message; `replayed` says that it was published before it was asked for."""

    def __call__(self, message: Message, *, replayed: bool = False) -> None: ...


# What a message looks like


def _pretty(message: Message, *, replayed: bool = False) -> None:
    """For people: when, on what, with what, and the payload. Of what is replayed it is not known
    when, so it is not given the time at which it was replayed."""
    now = f"{datetime.now():%H:%M:%S.%f}"[:-3]
    parts = [
        click.style("earlier".ljust(len(now)) if replayed else now, dim=True),
        click.style(printable(message.subject), fg="cyan", bold=True),
    ]
    if message.reply is not None:
        parts.append(click.style(f"→ {printable(message.reply)}", fg="magenta"))
    _echo(parts + _header_parts(message), message)


def _answer(message: Message, *, replayed: bool = False) -> None:
    """An answer, whose subject is nobody's concern, and in a script its headers neither."""
    _echo(_header_parts(message) if sys.stdout.isatty() else [], message)


def _header_parts(message: Message) -> list[str]:
    return [
        click.style(f"{printable(name)}: {printable(value)}", fg="yellow")
        for name, values in message.headers.lists().items()
        for value in values
    ]


def _echo(parts: list[str], message: Message) -> None:
    text = printable(message.payload.decode("utf-8", "backslashreplace")).removesuffix("\n")
    # What has lines of its own begins on one of its own.
    gap = "\n" if "\n" in text else "  "
    click.echo(gap.join(["  ".join(parts), text]) if parts else text)


def _raw(message: Message, *, replayed: bool = False) -> None:
    _write(message.payload + b"\n")


def _json(message: Message, *, replayed: bool = False) -> None:
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    mark = {"replayed": True} if replayed else {}
    _write(json_line({"time": now, **mark, **message_fields(message)}))


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _show(raw: bool, as_json: bool, pretty: Show) -> Show:
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")
    return _raw if raw else _json if as_json else pretty


def output_options(command: Any) -> Any:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="A JSON object a line."),
        click.option("--raw", is_flag=True, help="Payloads only, each with a newline after it."),
    ):
        command = option(command)
    return command


def _payload(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    return text.encode("utf-8", "surrogateescape")


def _headers(pairs: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for name, value in pairs:
        headers.setdefault(name, []).append(value)
    return headers


header_option = click.option(
    "-H", "--header", "headers", type=HEADER, multiple=True, help="Header; may be repeated."
)


# pub


@click.command(
    cls=Command,
    examples="""
rtmb pub greetings.world hello
echo hello | rtmb pub greetings.world -
rtmb pub orders '{"id": 1}' --header Trace-Id=42 --header Kind=new
rtmb pub ticks '{n} at {time}' --template --every 1s
rtmb pub load x --count 100000
""",
)
@click.argument("subject", type=SUBJECT)
@click.argument("payload", default="")
@header_option
@click.option("--reply", type=SUBJECT, help="Where answers are to go.")
@click.option("--count", type=COUNT, help="How often.  [default: 1; with --every no end]")
@click.option("--every", type=SECONDS, help="Time between two.")
@click.option("--template", is_flag=True, help="Replace {n} and {time} in the payload.")
@connection_options
def pub(
    target: Target,
    subject: str,
    payload: str,
    headers: tuple[tuple[str, str], ...],
    reply: str | None,
    count: int | None,
    every: float | None,
    template: bool,
) -> None:
    """Publish PAYLOAD on SUBJECT. Without a PAYLOAD it is empty; - reads it from standard input.

    The command ends when the server has taken all of it.
    """
    data = _payload(payload)
    total = count or (None if every else 1)

    async def main(reactor: Any) -> None:
        async with connected(target, reactor, "pub", reconnect=bool(every)) as connection:
            n = 0
            while total is None or n < total:
                n += 1
                body = _fill(data, n) if template else data
                connection.client.publish(subject, body, reply=reply, headers=_headers(headers))
                if every:
                    await connection.confirm()
                    if n != total:
                        await deferLater(reactor, every)
                else:
                    await connection.make_room()
            await connection.confirm()

    run(main)


def _fill(template: bytes, n: int) -> bytes:
    # Not str.format: JSON is full of braces.
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return template.replace(b"{n}", b"%d" % n).replace(b"{time}", now.encode())


# sub


@click.command(
    cls=Command,
    examples="""
rtmb sub 'orders.*' 'payments.>'
rtmb sub weather.oslo --last --count 1 --raw      the last value, and no more
rtmb sub orders --replay 20                       the last 20, then live ones
rtmb sub 'orders.>' --json | jq -r .payload
rtmb sub work --queue workers                     one of a queue group
rtmb sub ready --count 1 --timeout 30s            wait for something; status 1: it did not come
""",
)
@click.argument("patterns", type=PATTERN, nargs=-1, required=True, metavar="PATTERN...")
@click.option("--queue", type=PATTERN, help="Queue group to join.")
@click.option("--last", is_flag=True, help="The last message of each subject first (rtmb only).")
@click.option("--replay", type=COUNT, help="The last so many of each subject first (rtmb only).")
@click.option("--count", type=COUNT, help="End after so many.")
@click.option("--timeout", type=SECONDS, help="End after this time.")
@output_options
@connection_options
def sub(
    target: Target,
    patterns: tuple[str, ...],
    queue: str | None,
    last: bool,
    replay: int | None,
    count: int | None,
    timeout: float | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Print what is published on subjects that match, until Ctrl+C.

    With --timeout the status is 0 when time is up, or 1 if --count was not reached.
    """
    if last and replay:
        raise click.UsageError("--last and --replay exclude each other")
    show = _show(raw, as_json, _pretty)

    async def main(reactor: Any) -> int:
        done: Deferred[int] = Deferred()
        seen = 0
        replaying = last or bool(replay)

        def fail(error: Exception) -> None:
            if not done.called:
                done.errback(error)

        def receive(message: Message) -> None:
            nonlocal seen
            if done.called:
                return
            try:
                show(message, replayed=replaying)
            except Exception:  # standard output is closed: not the client's to log
                done.errback(Failure())
                return
            seen += 1
            if seen == count:
                done.callback(0)

        async with connected(target, reactor, "sub", on_complaint=fail) as connection:
            if (last or replay) and not is_rtmb(connection.client):
                raise CommandFailed("--last and --replay need rtmb, and the server is another")
            for pattern in patterns:
                connection.client.subscribe(
                    pattern, queue=queue, callback=receive, last=last, replay=replay or 0
                )
            await connection.confirm()
            replaying = False
            tell(f"subscribed to {', '.join(patterns)}")
            if timeout:
                late = reactor.callLater(timeout, done.callback, FAILED if count else 0)
                done.addBoth(_cancel, late)
            status = await done
        if status:
            tell(f"{seen} of {count} messages within {timeout:g} s")
        return status

    run(main, prints=True)


def _cancel(result: Any, call: Any) -> Any:
    if call.active():
        call.cancel()
    return result


# request


@click.command(
    cls=Command,
    examples="""
rtmb request time.now
rtmb request resize - --raw < photo.jpg > small.jpg
rtmb request ping hello --replies 0 --timeout 1s      all who answer within a second
rtmb request users.get '{"id": 7}' --json | jq .payload
rtmb request service x || echo "status $?"            3: nobody is there, 1: no answer in time
""",
)
@click.argument("subject", type=SUBJECT)
@click.argument("payload", default="")
@header_option
@click.option("--timeout", type=SECONDS, default="2", show_default=True, help="Time to wait.")
@click.option(
    "--replies",
    type=COUNT_OR_NONE,
    default=1,
    show_default=True,
    help="Answers to wait for; 0: all that come in time.",
)
@output_options
@connection_options
def request(
    target: Target,
    subject: str,
    payload: str,
    headers: tuple[tuple[str, str], ...],
    timeout: float,
    replies: int,
    raw: bool,
    as_json: bool,
) -> None:
    """Publish PAYLOAD on SUBJECT and print the answer. - reads PAYLOAD from standard input.

    Exit status 3 says that nobody subscribes to SUBJECT, 1 that no answer came in time. One answer
    with --raw is printed as it is, without a newline.
    """
    show = _show(raw, as_json, _answer)
    if raw and replies == 1:
        show = _exactly
    data = _payload(payload)

    async def main(reactor: Any) -> None:
        async with connected(target, reactor, "request", reconnect=False) as connection:
            answered = await _ask(
                connection, subject, data, _headers(headers), timeout, replies, show
            )
        if answered < max(1, replies):
            raise CommandFailed(
                f"no answer on {subject} within {timeout:g} s"
                if not answered
                else f"{answered} of {replies} answers within {timeout:g} s"
            )

    run(main)


def _exactly(message: Message, *, replayed: bool = False) -> None:
    _write(message.payload + (b"\n" if sys.stdout.isatty() else b""))


async def _ask(
    connection: CommandConnection,
    subject: str,
    payload: bytes,
    headers: dict[str, list[str]],
    timeout: float,
    replies: int,
    show: Show,
) -> int:
    """How many answers came, up to `replies`, each shown as it came."""
    client: Client = connection.client
    inbox = f"_INBOX.{uuid.uuid4().hex}"
    answers = client.subscribe(inbox)
    client.publish(subject, payload, reply=inbox, headers=headers)
    await connection.confirm()
    end = client.reactor.seconds() + timeout
    answered = 0
    while replies == 0 or answered < replies:
        try:
            message = await answers.next(max(0.0, end - client.reactor.seconds()))
        except Timeout:
            break
        if message.status == "503":
            raise NoResponders(f"nobody answers on {subject}")
        show(message)
        answered += 1
    return answered
