"""The journal over HTTP, for readers that keep count: Spark, or anything else. docs/spark.md tells
more of the calls.

| call | answer |
|---|---|
| ``GET /journal?from=&to=&subject=&partition=i/n&limit=`` | messages, as `rtmb.codecs.columns` |
| ``GET /journal/position?at=earliest`` or ``latest``, or ``time=`` | where to begin |
| ``… &behind=`` a position | and how far that is behind |
| ``GET /journal/wait?from=&subject=&messages=&bytes=&least=&timeout=`` | how far to read |
| ``PUT /journal/leases/{consumer}`` ``{"position", "ttl"}``, ``DELETE`` | how far behind that is |
| ``POST /journal/publish`` | how many messages were new |
| ``GET /journalz`` | all of it for people |

Whoever asks has been let in already, see `rtmb.doors.http.kit.user_of`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.logger import Logger
from twisted.web.server import NOT_DONE_YET, Request

from rtmb.auth import User
from rtmb.codecs import columns as frames
from rtmb.config import seconds
from rtmb.core.journal import Journal, Repeats
from rtmb.core.leases import Lease, LeaseError
from rtmb.core.message import ID_HEADER, Message
from rtmb.core.segments import Selection
from rtmb.core.subjects import is_subject, to_raw
from rtmb.doors.http.kit import (
    Code,
    Endpoint,
    RefusedError,
    answer,
    argument,
    bad,
    body_of,
    forbidden,
    number_of_seconds,
    path_argument,
    pattern_of,
    too_large,
    user_of,
    whole_number,
)

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: The door that messages published here come by.
DOOR = "spark"
#: The longest that a call waits for news, and the largest body of messages to publish.
LONGEST_WAIT = 60.0
MOST_BODY = 32 << 20
#: How long a publisher waits for its answer when subscribers are far behind.
_PAUSE = 0.2
#: How often a reader that waits for many messages is looked after.
_LOOK = 0.02

_ID = ID_HEADER.encode()
_FRAMES = b"application/vnd.rtmb.frames"


def _epoch_changed(epoch: str, journal: Journal) -> RefusedError:
    """The caller speaks of the journal of an earlier life of the broker."""
    text = f"the broker was restarted: its journal is no longer {epoch}"
    return RefusedError(Code.EPOCH_CHANGED, text, **_bounds(journal))


def _forbidden(user: User, what: str) -> RefusedError:
    return forbidden(f"{user.name or 'this user'} may not {what}")


def _checked(user: User, patterns: list[str]) -> Selection:
    """A selection of what this user may subscribe to."""
    deny: list[str] = []
    for pattern in patterns:
        if not user.subscribe.may_subscribe(pattern_of(pattern)):
            raise _forbidden(user, f"subscribe to {pattern}")
        deny += user.subscribe.hidden(pattern)
    return Selection(patterns, deny)


def _selection(request: Request) -> Selection:
    given = [raw.decode("utf-8", "replace") for raw in request.args.get(b"subject", [b">"])]
    return _checked(user_of(request), given)


class JournalEndpoint(Endpoint):
    """An endpoint that needs the journal."""

    @property
    def journal(self) -> Journal:
        journal: Journal | None = self.broker.journal
        if journal is None:
            text = "there is no journal: start the broker with --journal PATTERN"
            raise RefusedError(Code.NO_JOURNAL, text)
        return journal

    def same_epoch(self, request: Request) -> Journal:
        """The journal, if it is the one that the caller means."""
        journal, epoch = self.journal, argument(request, "epoch")
        if epoch is not None and epoch != journal.epoch:
            raise _epoch_changed(epoch, journal)
        return journal


def _finish(request: Request, found: dict[str, Any]) -> None:
    """Answer a call that had to wait."""
    request.write(answer(request, found))
    request.finish()


def _bounds(journal: Journal) -> dict[str, Any]:
    return {"epoch": journal.epoch, "first": journal.first, "next": journal.next}


class Read(JournalEndpoint):
    """``/journal``: messages."""

    def render_GET(self, request: Request) -> bytes:
        journal, wanted = self.same_epoch(request), _selection(request)
        start = whole_number(request, "from", journal.first) or 1
        end = min(whole_number(request, "to", journal.next) or 1, journal.next)
        start, end = _part(argument(request, "partition"), start, max(start, end))
        consumer = argument(request, "consumer")
        if consumer is not None:
            journal.renew(consumer)
        lost = [start, min(journal.first, end)] if start < min(journal.first, end) else None
        then, pieces = journal.read(
            start,
            end,
            wanted,
            limit=whole_number(request, "limit"),
            headers=argument(request, "headers") != "0",
        )
        told = {**_bounds(journal), "from": start, "to": end, "then": then, "lost": lost}
        request.setHeader(b"content-type", _FRAMES)
        return b"".join([*frames.encode(told), *pieces])


def _part(text: str | None, start: int, end: int) -> tuple[int, int]:
    """Part i of n of a range: parts follow each other, so that order stays within each."""
    if text is None:
        return start, end
    i, slash, n = text.partition("/")
    if not (slash and i.isdigit() and n.isdigit() and len(n) < 7 and int(i) < int(n)):
        raise bad("partition must be i/n, such as 0/4 for the first of four")
    length, part, parts = end - start, int(i), int(n)
    return start + length * part // parts, start + length * (part + 1) // parts


class Position(JournalEndpoint):
    """``/journal/position``: the number to begin with."""

    def render_GET(self, request: Request) -> dict[str, Any]:
        journal, at = self.journal, argument(request, "at")
        if b"time" in request.args:
            seq = journal.at_time(number_of_seconds(request, "time", 0))
        elif at in ("earliest", "latest"):
            seq = journal.first if at == "earliest" else journal.next
        else:
            raise bad("say at=earliest, at=latest or time=<seconds since 1970>")
        found = {**_bounds(journal), "seq": seq}
        reader = whole_number(request, "behind")
        if reader is not None:
            lag = journal.lag(Lease("", reader, 0.0, 0.0))
            found |= {"lag": lag.lag, "lag_seconds": lag.lag_seconds}
        return found


class Wait(JournalEndpoint):
    """``/journal/wait``: how far to read within limits, once there is enough to read."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._waiting: set[Waiting] = set()

    def render_GET(self, request: Request) -> dict[str, Any] | int:
        journal, wanted = self.same_epoch(request), _selection(request)
        waiting = Waiting(
            request,
            wanted,
            whole_number(request, "from", journal.first) or 1,
            whole_number(request, "messages"),
            whole_number(request, "bytes"),
            max(1, whole_number(request, "least", 1) or 1),
        )
        timeout = min(LONGEST_WAIT, number_of_seconds(request, "timeout", 0))
        found = waiting.look(journal, final=timeout == 0)
        if found is not None:
            return found
        self._waiting.add(waiting)
        waiting.timer = self.broker.reactor.callLater(timeout, self._finish, waiting)
        request.notifyFinish().addErrback(lambda _: self._forget(waiting))
        journal.on_news(self._news)
        return NOT_DONE_YET

    def _news(self) -> None:
        # In the middle of a delivery: look when it is over, and once for many messages.
        hurry = any(waiting.least == 1 for waiting in self._waiting)
        self.broker.reactor.callLater(0 if hurry else _LOOK, self._look)

    def _look(self) -> None:
        for waiting in list(self._waiting):
            found = waiting.look(self.journal)
            if found is not None:
                self._forget(waiting)
                _finish(waiting.request, found)
        if self._waiting:
            self.journal.on_news(self._news)

    def _finish(self, waiting: Waiting) -> None:
        self._forget(waiting)
        found = waiting.look(self.journal, final=True)
        assert found is not None
        _finish(waiting.request, found)

    def _forget(self, waiting: Waiting) -> None:
        self._waiting.discard(waiting)
        with suppress(AlreadyCalled, AlreadyCancelled):
            waiting.timer.cancel()


class Waiting:
    """A call that waits for news."""

    timer: Any

    def __init__(
        self,
        request: Request,
        wanted: Selection,
        start: int,
        messages: int | None,
        size: int | None,
        least: int,
    ) -> None:
        self.request = request
        self.wanted = wanted
        self.start = start
        self.messages = messages
        self.size = size
        self.least = least

    def look(self, journal: Journal, *, final: bool = False) -> dict[str, Any] | None:
        """What there is to read, or None when it is worth waiting for more."""
        found = journal.measure(self.start, self.wanted, self.messages, self.size)
        if not found.messages:
            self.start = found.end  # there is no need to look at these again
        enough = found.messages >= self.least or found.end < journal.next
        if not (enough or final):
            return None
        told = {"to": found.end, "messages": found.messages, "enough": enough}
        return {**_bounds(journal), **told}


class Leases(JournalEndpoint):
    """``/journal/leases/{consumer}``."""

    def _consumer(self, request: Request) -> str:
        name = path_argument(request, "consumer")
        if not name or len(name) > 200:
            raise bad("a lease needs a consumer of at most 200 letters")
        return name

    def render_GET(self, request: Request) -> dict[str, Any]:
        return {"leases": self.journal.stats()["leases"]}

    def render_PUT(self, request: Request) -> dict[str, Any]:
        journal, consumer = self.same_epoch(request), self._consumer(request)
        try:
            found = msgspec.json.decode(body_of(request))
            position, ttl = found["position"], seconds(found["ttl"])
            subjects = found.get("subjects", [">"])
            well = type(position) is int and position >= 0 and isinstance(subjects, list)
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError):
            well = False
        if not (well and all(isinstance(s, str) for s in subjects)):
            raise bad('a lease is {"position": number, "ttl": seconds}')
        wanted = _checked(user_of(request), subjects)
        try:
            lease = journal.lease(consumer, position, ttl, wanted.patterns)
        except LeaseError as error:
            raise RefusedError(Code.TOO_MANY, str(error)) from None
        return {**_bounds(journal), **journal.lag(lease)._asdict()}

    render_POST = render_PUT

    def render_DELETE(self, request: Request) -> dict[str, Any]:
        return {"released": self.journal.release(self._consumer(request))}


class Publish(JournalEndpoint):
    """``/journal/publish``: a body of messages, each with an id, each published once.

    One frame: ``rows``; ``subjects`` and, in the first column, which of them (32 bits); payloads
    and header blocks, each as offsets and bytes; and ids likewise, or ``source`` and ``first`` for
    ids that count up. All is looked at before anything is published."""

    log = Logger()
    most_body = MOST_BODY

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.repeats = Repeats(broker.settings.dedup_window, broker.reactor.seconds)

    def render_POST(self, request: Request) -> dict[str, Any] | int:
        body = body_of(request)
        try:
            messages = self._messages(body, user_of(request))
        except (frames.FrameError, KeyError, TypeError, ValueError, IndexError) as error:
            raise bad(f"not a body of messages: {error}") from None
        self.repeats.tick()
        hub, published, size, forgotten = self.hub, 0, 0, self.repeats.forgotten
        for name, number, message in messages:
            if self.repeats.fresh(name, number):
                hub.deliver(message)
                published += 1
                size += message.size
        if self.repeats.forgotten > forgotten:
            self.log.warn(
                "too many message ids: {count} were forgotten before {window} seconds were over",
                count=self.repeats.forgotten - forgotten,
                window=self.repeats.window,
            )
        self.broker.clients.count_in(DOOR, published, size)
        told = {"published": published, "duplicates": len(messages) - published}
        if hub.flush():
            self.broker.reactor.callLater(_PAUSE, self._late, request, told)
            return NOT_DONE_YET
        return told

    def _late(self, request: Request, told: dict[str, Any]) -> None:
        if request.channel is not None:  # else the publisher has gone
            _finish(request, told)

    def _messages(self, body: bytes, user: User) -> list[tuple[bytes, int, Message]]:
        ((described, columns),) = frames.decode(body)
        rows, names = described["rows"], described["subjects"]
        which, *texts = columns
        subjects = frames.from_numbers("i", which)
        if (
            len(subjects) != rows
            or len(texts) != 6
            or not all(0 <= s < len(names) for s in subjects)
        ):
            raise frames.FrameError("columns and rows do not agree")
        for name in names:
            if not isinstance(name, str) or not is_subject(name):
                raise frames.FrameError(f"not a subject: {name!r}")
            to_raw(name)  # raises for half a character, which JSON may hold
            if not user.publish.may_publish(name):
                raise _forbidden(user, f"publish to {name}")
        payloads = frames.spans(texts[0], texts[1], rows)
        blocks = frames.spans(texts[2], texts[3], rows) if len(texts[2]) else [b""] * rows
        if len(texts[4]):
            ids = [(i, 0, i) for i in frames.spans(texts[4], texts[5], rows)]
        else:
            first = described["first"]
            if type(first) is not int or not isinstance(described["source"], str):
                raise frames.FrameError("source and first do not name rows")
            source = described["source"].encode()
            ids = [(source, n, b"%b/%d" % (source, n)) for n in range(first, first + rows)]
        most, found = self.broker.settings.max_payload, []
        for which_subject, payload, block, (name, number, shown) in zip(
            subjects, payloads, blocks, ids, strict=True
        ):
            headers = _with_id(block, shown)
            if len(headers) + len(payload) > most:
                raise too_large(most)
            message = Message(names[which_subject], payload, headers=headers, door=DOOR)
            found.append((name, number, message))
        return found


def _with_id(block: bytes, shown: bytes) -> bytes:
    """A header block that has the message's id, unless it has one already."""
    if b"\r" in shown or b"\n" in shown:
        raise frames.FrameError("an id cannot have a line end")
    if not block:
        return b"NATS/1.0\r\n%b: %b\r\n\r\n" % (_ID, shown)
    start, _, rest = block.partition(b"\r\n")
    if start != b"NATS/1.0" or not block.endswith(b"\r\n\r\n"):
        raise frames.FrameError("headers must begin with NATS/1.0 and end with an empty line")
    if b"\r\n%b:" % _ID.lower() in block.lower():
        return block
    return b"NATS/1.0\r\n%b: %b\r\n%b" % (_ID, shown, rest)


class Journalz(JournalEndpoint):
    """``/journalz``: the journal and its consumers."""

    def render_GET(self, request: Request) -> dict[str, Any]:
        journal: Journal | None = self.broker.journal
        return {"journal": journal.stats() if journal is not None else None}


def journal_table(broker: Broker) -> dict[str, Endpoint]:
    """What stands at which path."""
    return {
        "/journal": Read(broker),
        "/journal/position": Position(broker),
        "/journal/wait": Wait(broker),
        "/journal/leases/{consumer}": Leases(broker),
        "/journal/publish": Publish(broker),
        "/journalz": Journalz(broker),
    }
