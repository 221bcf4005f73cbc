"""Work done in slices, so that nothing holds the reactor for long, and answers made that way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from twisted.logger import Logger
from twisted.web.server import NOT_DONE_YET, Request
from zope.interface import implementer

#: How long a slice takes, in seconds, and the step over that it may be.
SLICE = 0.01
#: What is made before anything is sent: an answer no longer than that goes out in one piece.
_AT_ONCE = 1 << 20


class CutOffError(Exception):
    """An answer cannot be told to its end."""


class Slice:
    """How long there is time for now."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = time.monotonic() + SLICE

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._end


def work(
    reactor: IReactorTime, steps: Iterator[None], done: Callable[[], None], request: Request
) -> None:
    """Do all steps, a slice at a time, and call `done`; leave off when whoever asked has gone."""
    if request.channel is None:
        return
    now = Slice()
    for _ in steps:
        if now.over:
            reactor.callLater(0, work, reactor, steps, done, request)
            return
    done()


def sliced_answer(request: Request, pieces: Iterator[bytes], reactor: IReactorTime) -> bytes | int:
    """An answer as a resource returns it: at once where it is short."""
    now, made, size = Slice(), [], 0
    for piece in pieces:
        made.append(piece)
        size += len(piece)
        if now.over or size >= _AT_ONCE:
            SlicedAnswer(request, pieces, reactor).begin(b"".join(made))
            return NOT_DONE_YET
    return b"".join(made)


@implementer(IPushProducer)
class SlicedAnswer:
    """An answer that is made while it is read: nothing while the reader is behind, and otherwise a
    slice at a time. When it is a `CutOffError`, the connection ends before the answer does, which
    no reader takes for the end."""

    log = Logger()

    def __init__(self, request: Request, pieces: Iterator[bytes], reactor: IReactorTime) -> None:
        self._request = request
        self._pieces = pieces
        self._reactor = reactor
        self._paused = False
        self._next: IDelayedCall | None = None

    def begin(self, first: bytes) -> None:
        request: Any = self._request
        request.notifyFinish().addErrback(lambda _: self.stopProducing())
        request.registerProducer(self, True)
        request.write(first)
        self.resumeProducing()

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        if self._next is None:
            self._next = self._reactor.callLater(0, self._go)

    def stopProducing(self) -> None:
        self._paused = True
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _go(self) -> None:
        self._next = None
        now = Slice()
        while not self._paused:
            try:
                piece = next(self._pieces, None)
            except CutOffError as error:
                self.log.warn("an answer is cut off: {why}", why=str(error))
                self._request.unregisterProducer()
                self._request.loseConnection()
                return
            if piece is None:
                self._request.unregisterProducer()
                self._request.finish()
                return
            self._request.write(piece)
            if now.over and not self._paused:
                self._next = self._reactor.callLater(0, self._go)
                return
