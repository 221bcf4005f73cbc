"""`rtmb record` and `rtmb replay`.

A recording is text, a JSON object a line, gzipped if its name ends in .gz. The first line tells
what it is; each other is a message as `rtmb.cli.message_text` has it, with ``t``, the seconds since
the recording began. docs/cli.md tells the whole of it.
"""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click
import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, deferLater
from twisted.python.failure import Failure

from rtmb.cli.connection import CommandConnection, connected
from rtmb.cli.message_text import LineError, RecordedMessage, json_line, message_fields, parse_line
from rtmb.cli.options import COUNT, PATTERN, SECONDS, SUBJECT, Command, Target, connection_options
from rtmb.cli.runner import CommandFailed, run, tell
from rtmb.client import Message

VERSION = 1
#: Seconds after which what was recorded is in the file, whatever happens to the process.
FLUSH = 1.0
#: Seconds that a replay may be early: many messages at once cost less than one by one.
_TOGETHER = 0.001


class Recorder:
    """Writes messages to a file as they come."""

    def __init__(self, file: IO[bytes], clock: Any) -> None:
        self.count = 0
        self._file = file
        self._clock = clock
        self._started = clock()

    def write_heading(self, patterns: tuple[str, ...], server: str) -> None:
        """The line that tells what this is. A file needs it; a pipe such as ``| jq`` does not."""
        started = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._file.write(
            json_line(
                {"rtmb": VERSION, "started": started, "server": server, "patterns": [*patterns]}
            )
        )
        self._file.flush()

    def record(self, message: Message) -> None:
        moment = round(self._clock() - self._started, 6)
        self._file.write(json_line({"t": moment, **message_fields(message)}))
        self.count += 1


@contextmanager
def _created(path: str, force: bool) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        uncompressed = Path(path).open("wb" if force else "xb")  # noqa: SIM115
    except FileExistsError:
        raise CommandFailed(f"{path} exists; --force replaces it") from None
    with uncompressed:
        if not path.endswith(".gz"):
            yield uncompressed
            return
        with gzip.GzipFile(fileobj=uncompressed, mode="wb", compresslevel=5) as file:
            yield file  # type: ignore[misc]  # it is one in all that matters


@click.command(
    cls=Command,
    examples="""
rtmb record 'orders.>' -o orders.jsonl
rtmb record 'orders.>' 'payments.*' -o monday.jsonl.gz --duration 1h
rtmb record 'sensors.*' -o - --count 100 | jq -r .subject
rtmb replay orders.jsonl --speed 2x
""",
)
@click.argument("patterns", type=PATTERN, nargs=-1, required=True, metavar="PATTERN...")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    help="File; gzipped if it ends in .gz; - is standard output.",
)
@click.option("--count", type=COUNT, help="End after so many messages.")
@click.option("--duration", type=SECONDS, help="End after this time.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@connection_options
def record(
    target: Target,
    patterns: tuple[str, ...],
    output: str,
    count: int | None,
    duration: float | None,
    force: bool,
) -> None:
    """Write what is published on subjects that match to a file, with its timing, until Ctrl+C.

    The file is text, a JSON object a line.
    """

    async def main(reactor: Any) -> None:
        done: Deferred[None] = Deferred()

        def end(result: Failure | Exception | None = None) -> None:
            if not done.called:
                done.callback(None) if result is None else done.errback(result)

        async with connected(target, reactor, "record", on_complaint=end) as connection:
            with _created(output, force) as file:
                recorder = Recorder(file, reactor.seconds)
                if output != "-":
                    recorder.write_heading(patterns, target.shown)

                def receive(message: Message) -> None:
                    if done.called:
                        return
                    try:
                        recorder.record(message)
                    except Exception:  # the disk is full: not the client's to log
                        end(Failure())
                    if recorder.count == count:
                        end()

                for pattern in patterns:
                    connection.client.subscribe(pattern, callback=receive)
                await connection.confirm()
                tell(f"recording {', '.join(patterns)}")
                flushing = LoopingCall(file.flush)
                flushing.clock = reactor
                flushing.start(FLUSH, now=False).addErrback(end)
                stop = reactor.callLater(duration, end) if duration else None
                try:
                    await done
                finally:
                    if flushing.running:
                        flushing.stop()
                    if stop is not None and stop.active():
                        stop.cancel()
                    tell(f"{recorder.count} messages in {output}")

    run(main, prints=output == "-")


# replay


class Speed(click.ParamType[float]):
    """2x, 0.5x, or max."""

    name = "speed"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if value == "max":
            return float("inf")
        match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)x?", str(value))
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no speed such as 2x, 0.5x or max", param, ctx)
        return float(match[1])


def read(path: str) -> Iterator[RecordedMessage]:
    """The messages of a recording, up to where it was cut off if it was."""
    count = 0
    try:
        with gzip.open(path) if path.endswith(".gz") else Path(path).open("rb") as file:
            for line in file:
                count += 1
                if count == 1 and _is_heading(path, line):
                    continue
                try:
                    yield parse_line(line)
                except LineError as error:
                    if count == 1:
                        raise CommandFailed(f"{path} is no recording of rtmb") from None
                    if line.endswith(b"\n"):
                        raise CommandFailed(f"{path}, line {count}: {error}") from None
                    tell(f"{path} is cut off in line {count}; what is before it is replayed")
    except gzip.BadGzipFile as error:
        raise CommandFailed(f"{path}: {error}") from None
    except (EOFError, zlib.error):
        tell(f"{path} is cut off after line {count}; what is before that is replayed")


def _is_heading(path: str, line: bytes) -> bool:
    """Whether a first line tells what the file is; one that came from a pipe has none."""
    try:
        version = msgspec.json.decode(line).get("rtmb")
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        return False
    if version is not None and version != VERSION:
        raise CommandFailed(f"{path} has version {version}, and only {VERSION} is known")
    return version is not None


@click.command(
    cls=Command,
    examples="""
rtmb replay orders.jsonl
rtmb replay orders.jsonl --speed 2x --subject-prefix test
rtmb replay monday.jsonl.gz --speed max
rtmb replay sensors.jsonl --loop
""",
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--speed", type=Speed(), default="1x", show_default=True, help="2x, 0.5x, or max: no waiting."
)
@click.option("--subject-prefix", type=SUBJECT, help="Tokens to put before each subject.")
@click.option("--loop", is_flag=True, help="Again and again, until Ctrl+C.")
@click.option("--replies", is_flag=True, help="Keep the reply subjects, which are old by now.")
@connection_options
def replay(
    target: Target,
    file: str,
    speed: float,
    subject_prefix: str | None,
    loop: bool,
    replies: bool,
) -> None:
    """Publish what `rtmb record` wrote, with its timing.

    A file that was cut off is replayed up to the cut, with a warning.
    """
    prefix = f"{subject_prefix}." if subject_prefix else ""

    async def main(reactor: Any) -> None:
        count = 0
        async with connected(target, reactor, "replay") as connection:
            while True:
                played = await _play(reactor, connection, file, speed, prefix, replies)
                count += played
                if not loop:
                    break
                if not played:
                    raise CommandFailed(f"{file} holds no messages")
        tell(f"{count} messages published")

    run(main)


async def _play(
    reactor: Any, connection: CommandConnection, path: str, speed: float, prefix: str, replies: bool
) -> int:
    """Publish it once, from its first message on; how many messages that was."""
    count = 0
    started = reactor.seconds()
    for parts in read(path):
        if not count:
            started -= parts.time / speed
        wait = parts.time / speed - (reactor.seconds() - started)
        if wait > _TOGETHER:
            await deferLater(reactor, wait)
        connection.client.publish(
            prefix + parts.subject,
            parts.payload,
            reply=parts.reply if replies else None,
            headers=parts.headers,
        )
        count += 1
        await connection.make_room()
    await connection.confirm()
    return count
