"""How a command runs: as a coroutine in the reactor, and out of it with an exit status.

What goes wrong is one line on standard error. Ctrl+C cancels the coroutine, so that it can put its
things in order; a second one does not wait for that.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import click
from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from rtmb.client.errors import ClientError, NoResponders

OK = 0
FAILED = 1  # also: time ran out
USAGE = 2
NO_RESPONDERS = 3
NO_CONNECTION = 4

Main = Callable[[Any], Coroutine[Deferred[Any], Any, int | None]]


class CommandFailed(click.ClickException):
    """Ends the command with one line for the person who called it."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = status  # type: ignore[misc]  # click itself reads it of the instance

    def show(self, file: Any = None) -> None:
        tell(self.message)


def tell(line: str) -> None:
    """A line for the person, beside the output."""
    click.echo(f"rtmb: {line}", err=True)


@implementer(IReadDescriptor)
class _OutputWatch:
    """Notices that nobody reads the output any more, before there is something to write."""

    def __init__(self, on_gone: Callable[[], None]) -> None:
        self._on_gone = on_gone

    @staticmethod
    def is_possible() -> bool:
        """Whether the output is a pipe: a file has no reader, a terminal hangs up."""
        return sys.stdout is not None and stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)

    def fileno(self) -> int:
        return sys.stdout.fileno()

    def logPrefix(self) -> str:
        return "output"

    def doRead(self) -> None:
        """Never called of a pipe's writing end."""

    def connectionLost(self, reason: Failure) -> None:
        self._on_gone()


def run(main: Main, *, prints: bool = False) -> NoReturn:
    """Run `main(reactor)` and exit with what it returns. A command that `prints`, and has nothing
    else to do, ends when nobody reads what it prints: `rtmb sub … | head -1`."""
    from twisted.internet import reactor as installed

    reactor: Any = installed
    outcome: Any = None
    signalled = 0
    work: Deferred[Any] = Deferred()

    def interrupt(number: int, _: object) -> None:
        nonlocal signalled
        if signalled:
            os._exit(128 + number)
        signalled = number
        reactor.callFromThread(work.cancel)

    def start() -> None:
        nonlocal work
        # Now, because the reactor has just set its own, which would stop it at once.
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, interrupt)
        work = Deferred.fromCoroutine(main(reactor))
        work.addBoth(finish)
        if prints and _OutputWatch.is_possible():
            reactor.addReader(_OutputWatch(unread))

    def unread() -> None:
        nonlocal signalled
        if not work.called:  # and it is not the reactor that closes everything at the end
            signalled = signalled or signal.SIGPIPE
            work.cancel()

    def finish(result: Any) -> None:
        nonlocal outcome
        outcome = result
        reactor.stop()

    reactor.callWhenRunning(start)
    reactor.run()
    if signalled:
        _leave(128 + signalled)
    if isinstance(outcome, Failure):
        _fail(outcome)
    _leave(outcome or OK)


def _fail(failure: Failure) -> NoReturn:
    if sys.flags.dev_mode:
        failure.printTraceback()
    problem = failure.value
    assert problem is not None
    if isinstance(problem, click.ClickException):
        raise problem
    if isinstance(problem, BrokenPipeError):
        _leave(128 + signal.SIGPIPE)  # nobody reads on: `rtmb sub … | head -1`
    raise CommandFailed(*_explain(problem))


def _explain(problem: BaseException) -> tuple[str, int]:
    """What to say of an exception, and the exit status."""
    text = str(problem)
    if isinstance(problem, NoResponders):
        return text or "nobody answers on this subject", NO_RESPONDERS
    if isinstance(problem, (ConnectionError, error.ConnectError)):
        return text, NO_CONNECTION
    if isinstance(problem, (ClientError, ValueError)):
        return text, FAILED
    if isinstance(problem, OSError):
        where = f"{problem.filename}: " if problem.filename else ""
        return where + (problem.strerror or text), FAILED
    return f"{type(problem).__name__}: {text} (python -X dev -m rtmb shows more)", FAILED


def _leave(status: int) -> NoReturn:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would try again at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = status or 128 + signal.SIGPIPE
    raise SystemExit(status)
