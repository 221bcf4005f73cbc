"""``GET /journal/wait``: how far to read within limits, once there is enough to read."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall
from twisted.web.server import NOT_DONE_YET, Request

from rtmb.core.journal import Journal, Measure
from rtmb.doors.http.journal_call import (
    EPOCH,
    FROM,
    JOURNAL_ERRORS,
    SUBJECT,
    JournalEndpoint,
    bounds,
    finish,
    selection,
)
from rtmb.doors.http.kit import Code, RefusedError, number_of_seconds, whole_number
from rtmb.doors.http.operations import Number, Seconds, operation
from rtmb.doors.http.slices import Slice

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: The longest that a call waits for news, and how many calls may.
LONGEST_WAIT = 60.0
MOST_WAITS = 1000
#: How often those who wait are looked after while messages come: where someone wants to know of the
#: next message, and where all wait for more than one.
_SOON, _LATER = 0.002, 0.02


class Waiting:
    """A call that waits. What it has counted it does not count again."""

    timer: IDelayedCall

    def __init__(self, request: Request, measure: Measure, least: int, timeout: float) -> None:
        self.request = request
        self.measure = measure
        self.least = least
        #: Whether it is to be answered with what there is.
        self.due = timeout == 0

    def look(self, now: Slice) -> bool:
        """Count on; whether it got to the end of what there is."""
        while self.measure.step():
            if now.over:
                return False
        return True

    @property
    def enough(self) -> bool:
        return self.measure.messages >= self.least or self.measure.full

    def answer(self, journal: Journal) -> dict[str, Any]:
        found = self.measure
        told = {"to": found.end, "messages": found.messages, "enough": self.enough}
        return {**bounds(journal), **told}


class Wait(JournalEndpoint):
    """All who wait."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._waiting: set[Waiting] = set()
        self._next_look: IDelayedCall | None = None

    @operation(
        "Wait for messages, and say how far to read",
        query=(
            EPOCH,
            SUBJECT,
            FROM,
            Number("messages", "So many at most", 0),
            Number("bytes", "So many bytes of payload at most", 0),
            Number("least", "So many are worth an answer", 1),
            Seconds("timeout", "Seconds to wait for them", 0.0, LONGEST_WAIT),
        ),
        errors=(*JOURNAL_ERRORS, Code.TOO_MANY),
    )
    def render_GET(self, request: Request) -> dict[str, Any] | int:
        journal, wanted = self.same_epoch(request), selection(request)
        start = whole_number(request, "from", journal.first) or 1
        measure = Measure(
            journal,
            start,
            wanted,
            whole_number(request, "messages"),
            whole_number(request, "bytes"),
        )
        least = max(1, whole_number(request, "least", 1) or 1)
        timeout = min(LONGEST_WAIT, number_of_seconds(request, "timeout", 0))
        waiting = Waiting(request, measure, least, timeout)
        at_end = waiting.look(Slice())
        if at_end and (waiting.due or waiting.enough):
            return waiting.answer(journal)
        if len(self._waiting) >= MOST_WAITS:
            raise RefusedError(Code.TOO_MANY, f"{MOST_WAITS} calls wait already")
        self._waiting.add(waiting)
        waiting.timer = self.broker.reactor.callLater(timeout, self._time_is_up, waiting)
        request.notifyFinish().addErrback(lambda _: self._forget(waiting))
        if at_end:
            journal.on_news(self._news)
        else:
            self._look_in(0)
        return NOT_DONE_YET

    def _news(self) -> None:
        # In the middle of a delivery: look when it is over, and once for many messages.
        hurry = any(waiting.least == 1 for waiting in self._waiting)
        self._look_in(_SOON if hurry else _LATER)

    def _look_in(self, delay: float) -> None:
        if self._next_look is None:
            self._next_look = self.broker.reactor.callLater(delay, self._look)

    def _look(self) -> None:
        self._next_look = None
        now, unfinished = Slice(), False
        for waiting in list(self._waiting):
            if now.over or not waiting.look(now):
                unfinished = True
            elif waiting.due or waiting.enough:
                self._forget(waiting)
                finish(waiting.request, waiting.answer(self.journal))
        if unfinished:
            self._look_in(0)
        elif self._waiting:
            self.journal.on_news(self._news)

    def _time_is_up(self, waiting: Waiting) -> None:
        waiting.due = True
        self._look_in(0)

    def _forget(self, waiting: Waiting) -> None:
        self._waiting.discard(waiting)
        with suppress(AlreadyCalled, AlreadyCancelled):
            waiting.timer.cancel()
