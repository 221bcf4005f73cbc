"""`rtmb reply`: a service made of a shell command."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click
from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.error import ProcessDone
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from rtmb.cli.connection import connected
from rtmb.cli.options import COUNT, PATTERN, SECONDS, Command, Target, connection_options
from rtmb.cli.runner import run, tell
from rtmb.client import Client, ClientError, Message

#: The header that tells how the command ended.
STATUS = "Exit-Status"


class _Shell(ProcessProtocol):
    """Runs a command with a message's payload as its input; `done` fires with output and status."""

    transport: Any

    def __init__(self, payload: bytes, most: int) -> None:
        self.done: Deferred[tuple[bytes, int]] = Deferred()
        self._payload = payload
        self._output = bytearray()
        self._most = most

    def connectionMade(self) -> None:
        self.transport.write(self._payload)
        self.transport.closeStdin()

    def outReceived(self, data: bytes) -> None:
        self._output += data
        if len(self._output) > self._most:
            self.kill()

    def errReceived(self, data: bytes) -> None:
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()

    def kill(self) -> None:
        if self.transport.pid:
            self.transport.signalProcess("KILL")

    def processEnded(self, reason: Failure) -> None:
        value: Any = reason.value
        status = 0 if isinstance(value, ProcessDone) else value.exitCode
        if status is None:  # as the shell counts those that a signal ended
            status = 128 + (value.signal or 0)
        self.done.callback((bytes(self._output), status))


@click.command(
    cls=Command,
    examples="""
rtmb reply time.now --exec date
rtmb reply 'upper.*' --exec 'tr a-z A-Z' --queue workers
rtmb reply jobs --exec './job "$MESSAGE_SUBJECT"' --workers 8 --exec-timeout 5m
rtmb reply ping --echo
""",
)
@click.argument("subject", type=PATTERN)
@click.option("--exec", "command", metavar="CMD", help="Shell command; its output is the answer.")
@click.option("--echo", is_flag=True, help="Answer with the question.")
@click.option("--queue", type=PATTERN, help="Queue group to join.")
@click.option("--workers", type=COUNT, default=4, show_default=True, help="Commands at once.")
@click.option(
    "--exec-timeout", type=SECONDS, default="60", show_default=True, help="Time for a command."
)
@click.option("--count", type=COUNT, help="End after so many requests.")
@connection_options
def reply(
    target: Target,
    subject: str,
    command: str | None,
    echo: bool,
    queue: str | None,
    workers: int,
    exec_timeout: float,
    count: int | None,
) -> None:
    """Answer requests on SUBJECT, until Ctrl+C.

    CMD gets the payload on its standard input, and MESSAGE_SUBJECT, MESSAGE_REPLY and
    MESSAGE_HEADERS (JSON) in its environment. Its output is the answer, whose header Exit-Status
    tells how it ended. What it writes to standard error is shown here.
    """
    if bool(command) == echo:
        raise click.UsageError("either --exec CMD or --echo")

    worker = _Worker(command, exec_timeout)
    run(lambda reactor: _serve(reactor, target, subject, queue, worker, workers, count))


class _Worker:
    """Answers one request: with the output of a shell command, or without one with the question."""

    def __init__(self, command: str | None, timeout: float) -> None:
        self._command = command
        self._timeout = timeout

    async def answer(self, client: Client, message: Message) -> None:
        if message.reply is None:
            tell(f"a message on {message.subject} asks for no answer")
        elif self._command is None:
            message.respond(message.payload, headers=message.headers.lists())
        else:
            most = client.server_info.get("max_payload", 1 << 20)
            output, status = await self._execute(client.reactor, self._command, message, most)
            if status:
                tell(f"{self._command}: status {status}, for a message on {message.subject}")
            try:
                message.respond(output, headers={STATUS: str(status)})
            except ClientError as error:
                tell(f"{self._command}: no answer: {error}")
                message.respond(b"", headers={STATUS: str(status or 1)})

    async def _execute(
        self, reactor: Any, command: str, message: Message, most: int
    ) -> tuple[bytes, int]:
        shell = _Shell(message.payload, most)
        arguments = ["/bin/sh", "-c", command]
        reactor.spawnProcess(shell, arguments[0], arguments, env=_environment(message))
        limit = reactor.callLater(self._timeout, shell.kill)
        try:
            return await shell.done
        finally:
            shell.kill()
            if limit.active():
                limit.cancel()


async def _serve(
    reactor: Any,
    target: Target,
    subject: str,
    queue: str | None,
    worker: _Worker,
    workers: int,
    count: int | None,
) -> None:
    """Answer `count` requests, or all that come, up to `workers` at a time."""
    free = DeferredSemaphore(workers)
    working: set[Deferred[None]] = set()

    def done(_: object, work: Deferred[None]) -> None:
        working.discard(work)
        free.release()

    async with connected(target, reactor, "reply") as connection:
        requests = connection.client.subscribe(subject, queue=queue)
        await connection.confirm()
        tell(f"answering on {subject}")
        try:
            seen = 0
            async for message in requests:
                await free.acquire()
                work = Deferred.fromCoroutine(worker.answer(connection.client, message))
                working.add(work)
                work.addErrback(lambda failure: tell(str(failure.value)))
                work.addBoth(done, work)
                seen += 1
                if seen == count:
                    break
            for _ in range(workers):
                await free.acquire()
            await connection.confirm()
        finally:
            for work in list(working):
                work.cancel()


def _environment(message: Message) -> dict[str, str]:
    return {
        **os.environ,
        "MESSAGE_SUBJECT": message.subject,
        "MESSAGE_REPLY": message.reply or "",
        "MESSAGE_HEADERS": json.dumps(message.headers.lists()),
    }
