"""The journal over HTTP, for readers that keep count: Spark, or anything else. docs/spark.md tells
more of the calls.

| call | answer |
|---|---|
| ``GET /journal?from=&to=&subject=&partition=i/n&limit=`` | messages, as `rtmb.frames` |
| ``GET /journal/position?at=earliest`` or ``latest``, or ``time=`` | where to begin |
| ``GET /journal/wait?from=&subject=&messages=&bytes=&least=&timeout=`` | how far to read; \
waits for news |
| ``PUT /journal/leases/{consumer}`` ``{"position", "ttl"}``, ``DELETE`` | keep others informed |
| ``POST /journal/publish`` | messages in, each id once |
| ``GET /journalz`` | all of it for people |

Whoever asks has been let in already: the user is `request.rtmb_user`.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.logger import Logger
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Request

from rtmb import frames
from rtmb.auth import ANYONE, User
from rtmb.config import seconds
from rtmb.journal import Journal, Lease, LeaseError, Repeats, Selection
from rtmb.message import ID_HEADER, Message
from rtmb.subjects import is_pattern, is_subject

if TYPE_CHECKING:
    from rtmb.service import Broker

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


class RefusedError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, text: str, **facts: Any) -> None:
        super().__init__(text)
        self.status = status
        self.body = {"error": {"code": _CODES[status], "message": text}, **facts}


_CODES = {
    400: "BAD_REQUEST", 403: "FORBIDDEN", 404: "NOT_FOUND", 409: "EPOCH_CHANGED",
    413: "TOO_LARGE", 429: "TOO_MANY",
}  # fmt: skip


def _whole(request: Request, name: str, default: int | None = None) -> int | None:
    """A whole number among the arguments of a call."""
    found = request.args.get(name.encode())
    if found is None:
        return default
    if not (found[-1].isdigit() and len(found[-1]) <= 18):
        raise RefusedError(400, f"{name} must be a whole number")
    return int(found[-1])


def _number(request: Request, name: str, default: float) -> float:
    found = request.args.get(name.encode())
    try:
        value = float(found[-1]) if found else default
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise RefusedError(400, f"{name} must be a number of seconds")
    return value


def _text(request: Request, name: str) -> str | None:
    found = request.args.get(name.encode())
    return found[-1].decode("utf-8", "replace") if found else None


def _body(request: Request) -> bytes:
    assert request.content is not None
    body: bytes = request.content.read(MOST_BODY + 1)
    if len(body) > MOST_BODY:
        raise RefusedError(413, f"at most {MOST_BODY} bytes at once")
    return body


def _user(request: Request) -> User:
    user: User = getattr(request, "rtmb_user", ANYONE)
    return user


def _checked(user: User, patterns: list[str]) -> Selection:
    """A selection of what this user may subscribe to."""
    deny: list[str] = []
    for pattern in patterns:
        if not is_pattern(pattern):
            raise RefusedError(400, f"not a subject or pattern: {pattern!r}")
        if not user.subscribe.may_subscribe(pattern):
            raise RefusedError(403, f"{user.name or 'this user'} may not subscribe to {pattern}")
        deny += user.subscribe.hidden(pattern)
    return Selection(patterns, deny)


def _selection(request: Request) -> Selection:
    given = [raw.decode("utf-8", "replace") for raw in request.args.get(b"subject", [b">"])]
    return _checked(_user(request), given)


class Call(Resource):
    """A resource whose answer is bytes, a dictionary for JSON, or a `RefusedError`."""

    isLeaf = True

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker

    @property
    def journal(self) -> Journal:
        journal: Journal | None = self.broker.journal
        if journal is None:
            raise RefusedError(404, "there is no journal: start the broker with --journal PATTERN")
        return journal

    def same_epoch(self, request: Request) -> Journal:
        """The journal, if it is the one that the caller means."""
        journal, epoch = self.journal, _text(request, "epoch")
        if epoch is not None and epoch != journal.epoch:
            text = f"the broker was restarted: its journal is no longer {epoch}"
            raise RefusedError(409, text, **_bounds(journal))
        return journal

    def render(self, request: Request) -> bytes | int:
        no_delay = getattr(request.transport, "setTcpNoDelay", None)
        if no_delay is not None:
            no_delay(True)
        try:
            answer = super().render(request)
        except RefusedError as refusal:
            return say(request, refusal.body, refusal.status)
        return say(request, answer) if isinstance(answer, dict) else answer


def say(request: Request, answer: dict[str, Any], status: int = 200) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json")
    return msgspec.json.encode(answer)


def _bounds(journal: Journal) -> dict[str, Any]:
    return {"epoch": journal.epoch, "first": journal.first, "next": journal.next}


class JournalRoot(Call):
    """``/journal``: messages; and what is below it."""

    isLeaf = False

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.putChild(b"position", Position(broker))
        self.putChild(b"wait", Wait(broker))
        self.putChild(b"leases", Leases(broker))
        self.putChild(b"publish", Publish(broker))

    def render_GET(self, request: Request) -> bytes:
        journal, wanted = self.same_epoch(request), _selection(request)
        start = _whole(request, "from", journal.first) or 1
        end = min(_whole(request, "to", journal.next) or 1, journal.next)
        start, end = _part(_text(request, "partition"), start, max(start, end))
        consumer = _text(request, "consumer")
        if consumer is not None:
            journal.renew(consumer)
        lost = [start, min(journal.first, end)] if start < min(journal.first, end) else None
        then, pieces = journal.read(
            start,
            end,
            wanted,
            limit=_whole(request, "limit"),
            headers=_text(request, "headers") != "0",
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
        raise RefusedError(400, "partition must be i/n, such as 0/4 for the first of four")
    length, part, parts = end - start, int(i), int(n)
    return start + length * part // parts, start + length * (part + 1) // parts


class Position(Call):
    """``/journal/position``: the number to begin with."""

    def render_GET(self, request: Request) -> dict[str, Any]:
        journal, at = self.journal, _text(request, "at")
        if b"time" in request.args:
            seq = journal.at_time(_number(request, "time", 0))
        elif at in ("earliest", "latest"):
            seq = journal.first if at == "earliest" else journal.next
        else:
            raise RefusedError(400, "say at=earliest, at=latest or time=<seconds since 1970>")
        return {**_bounds(journal), "seq": seq}


class Wait(Call):
    """``/journal/wait``: how far to read within limits, once there is enough to read."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._waiting: set[Waiting] = set()

    def render_GET(self, request: Request) -> dict[str, Any] | int:
        journal, wanted = self.same_epoch(request), _selection(request)
        waiting = Waiting(
            request,
            wanted,
            _whole(request, "from", journal.first) or 1,
            _whole(request, "messages"),
            _whole(request, "bytes"),
            max(1, _whole(request, "least", 1) or 1),
        )
        timeout = min(LONGEST_WAIT, _number(request, "timeout", 0))
        answer = waiting.answer(journal, final=timeout == 0)
        if answer is not None:
            return answer
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
            answer = waiting.answer(self.journal)
            if answer is not None:
                self._forget(waiting)
                waiting.request.write(say(waiting.request, answer))
                waiting.request.finish()
        if self._waiting:
            self.journal.on_news(self._news)

    def _finish(self, waiting: Waiting) -> None:
        self._forget(waiting)
        answer = waiting.answer(self.journal, final=True)
        assert answer is not None
        waiting.request.write(say(waiting.request, answer))
        waiting.request.finish()

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

    def answer(self, journal: Journal, *, final: bool = False) -> dict[str, Any] | None:
        """What there is to read, or None when it is worth waiting for more."""
        found = journal.measure(self.start, self.wanted, self.messages, self.size)
        enough = found.messages >= self.least or found.end < journal.next
        if not (enough or final):
            return None
        told = {"to": found.end, "messages": found.messages, "enough": enough}
        return {**_bounds(journal), **told}


class Leases(Call):
    """``/journal/leases/{consumer}``."""

    def _consumer(self, request: Request) -> str:
        name = b"/".join(request.postpath or ()).decode("utf-8", "replace")
        if not name or len(name) > 200:
            raise RefusedError(400, "a lease needs a consumer of at most 200 letters")
        return name

    def render_GET(self, request: Request) -> dict[str, Any]:
        return {"leases": self.journal.stats()["leases"]}

    def render_PUT(self, request: Request) -> dict[str, Any]:
        journal, consumer = self.same_epoch(request), self._consumer(request)
        try:
            found = msgspec.json.decode(_body(request))
            position, ttl = found["position"], seconds(found["ttl"])
            subjects = found.get("subjects", [">"])
            well = type(position) is int and position >= 0 and isinstance(subjects, list)
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError):
            well = False
        if not (well and all(isinstance(s, str) for s in subjects)):
            raise RefusedError(400, 'a lease is {"position": number, "ttl": seconds}')
        wanted = _checked(_user(request), subjects)
        try:
            lease = journal.lease(consumer, position, ttl, wanted.patterns)
        except LeaseError as error:
            raise RefusedError(429, str(error)) from None
        return {**_bounds(journal), **journal.lag(lease)}

    render_POST = render_PUT

    def render_DELETE(self, request: Request) -> dict[str, Any]:
        return {"released": self.journal.release(self._consumer(request))}


class Publish(Call):
    """``/journal/publish``: a body of messages, each with an id, each published once.

    One frame: ``rows``; ``subjects`` and, in the first column, which of them (32 bits); payloads
    and header blocks, each as offsets and bytes; and ids likewise, or ``source`` and ``first`` for
    ids that count up. All is looked at before anything is published."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.repeats = Repeats(broker.settings.dedup_window, broker.reactor.seconds)

    def render_POST(self, request: Request) -> dict[str, Any] | int:
        body = _body(request)
        try:
            messages = self._messages(body, _user(request))
        except (frames.FrameError, KeyError, TypeError, ValueError, IndexError) as error:
            raise RefusedError(400, f"not a body of messages: {error}") from None
        self.repeats.tick()
        hub, published = self.broker.hub, 0
        for name, number, message in messages:
            if self.repeats.fresh(name, number):
                hub.deliver(message)
                published += 1
        answer = {"published": published, "duplicates": len(messages) - published}
        if hub.flush():
            self.broker.reactor.callLater(_PAUSE, self._late, request, answer)
            return NOT_DONE_YET
        return answer

    def _late(self, request: Request, answer: dict[str, Any]) -> None:
        if request.channel is not None:  # else the publisher has gone
            request.write(say(request, answer))
            request.finish()

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
            if not user.publish.may_publish(name):
                raise RefusedError(403, f"{user.name or 'this user'} may not publish to {name}")
        payloads = frames.spans(texts[0], texts[1], rows)
        blocks = frames.spans(texts[2], texts[3], rows) if len(texts[2]) else [b""] * rows
        if len(texts[4]):
            ids = [(i, 0, i) for i in frames.spans(texts[4], texts[5], rows)]
        else:
            source, first = described["source"].encode(), int(described["first"])
            ids = [(source, n, b"%b/%d" % (source, n)) for n in range(first, first + rows)]
        most, found = self.broker.settings.max_payload, []
        for which_subject, payload, block, (name, number, shown) in zip(
            subjects, payloads, blocks, ids, strict=True
        ):
            headers = _with_id(block, shown)
            if len(headers) + len(payload) > most:
                raise RefusedError(
                    413, f"a message of {len(payload)} bytes; at most {most} are allowed"
                )
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


class Journalz(Call):
    """``/journalz``: the journal and its consumers."""

    def render_GET(self, request: Request) -> dict[str, Any]:
        journal: Journal | None = self.broker.journal
        return {"journal": journal.stats() if journal is not None else None}


class Alarm:
    """Says, before it is too late, that a consumer is about to lose messages."""

    log = Logger()

    def __init__(self, broker: Broker, journal: Journal) -> None:
        self._broker, self._journal = broker, journal

    def __call__(self, lease: Lease) -> None:
        facts = self._journal.lag(lease)
        self.log.warn(
            "journal: {consumer} is {lag} messages behind, and what it has not read is about to be "
            "overwritten; see --journal-bytes and --journal-messages",
            consumer=lease.consumer,
            **facts,
        )
        self._broker.system.tell(
            "journal_lag",
            consumer=lease.consumer,
            position=lease.position,
            first=self._journal.first,
            next=self._journal.next,
            lag=facts["lag"],
            lost=facts["lost"],
        )


def journaling(broker: Broker) -> dict[bytes, IResource]:
    """What the HTTP door mounts at its root."""
    if broker.journal is not None:
        broker.journal.alarm = Alarm(broker, broker.journal)
    return {b"journal": JournalRoot(broker), b"journalz": Journalz(broker)}
