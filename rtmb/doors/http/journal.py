"""The journal over HTTP, for readers that keep count: Spark, or anything else. docs/journal.md
tells more of the calls.

| call | answer |
|---|---|
| ``GET /journal?from=&to=&subject=&partition=i/n&limit=`` | messages: Arrow, or JSON lines |
| ``GET /journal/position?at=earliest`` or ``latest``, or ``time=`` | where to begin |
| ``… &behind=`` a position | and how far that is behind |
| ``GET /journal/wait?from=&subject=&messages=&bytes=&least=&timeout=`` | how far to read |
| ``PUT /journal/leases/{consumer}`` ``{"position", "ttl"}``, ``DELETE`` | how far behind that is |
| ``POST /journal/publish`` | how many messages were new |
| ``GET /journalz`` | all of it for people |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from twisted.web.server import Request

from rtmb.auth import User
from rtmb.codecs import arrow, json_lines
from rtmb.core.journal import Journal, OverwrittenError
from rtmb.core.leases import Lease, LeaseError
from rtmb.core.segments import Excerpt
from rtmb.doors.http.journal_call import (
    EPOCH,
    FROM,
    JOURNAL_ERRORS,
    SUBJECT,
    JournalEndpoint,
    bounds,
    selected,
    selection,
)
from rtmb.doors.http.journal_publish import PublishBatch
from rtmb.doors.http.journal_wait import Wait
from rtmb.doors.http.kit import (
    Code,
    Endpoint,
    RefusedError,
    argument,
    bad,
    header,
    json_of,
    number_of_seconds,
    path_argument,
    user_of,
    whole_number,
)
from rtmb.doors.http.operations import (
    ChoiceParameter,
    NumberParameter,
    SwitchParameter,
    TextParameter,
    operation,
)
from rtmb.doors.http.slices import CutOffError, sliced_answer

if TYPE_CHECKING:
    from rtmb.broker import Broker

_PART = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")

Writer = arrow.StreamWriter | json_lines.LinesWriter


class Read(JournalEndpoint):
    """``/journal``: messages."""

    @operation(
        "Read messages of the journal",
        query=(
            EPOCH,
            SUBJECT,
            FROM,
            NumberParameter("to", "The number before which to end; the next one if left out", 0),
            TextParameter("partition", "i/n: the part i of n of that range", ""),
            NumberParameter("limit", "So many messages at most", 0),
            TextParameter("consumer", "Whose lease this renews", ""),
            SwitchParameter("headers", "0 leaves the headers out", True),
            ChoiceParameter("format", "The form of the answer", "arrow", ("arrow", "json")),
        ),
        answer=(arrow.StreamWriter.media_type, json_lines.LinesWriter.media_type),
        errors=JOURNAL_ERRORS,
    )
    def render_GET(self, request: Request) -> bytes | int:
        journal, wanted = self.same_epoch(request), selection(request)
        writer = _writer(request)
        start = whole_number(request, "from", journal.first) or 1
        end = min(whole_number(request, "to", journal.next) or 1, journal.next)
        start, end = _part(argument(request, "partition"), start, max(start, end))
        limit = whole_number(request, "limit")
        consumer = argument(request, "consumer")
        if consumer is not None:
            journal.leases.renew(consumer, user_of(request).name)
        told = {**bounds(journal), "from": start, "to": end}
        lost = min(journal.first, end)
        if start < lost:
            told["lost"] = f"{start}-{lost - 1}"
        for name, value in told.items():
            request.setHeader(f"rtmb-{name}".encode(), str(value).encode())
        request.setHeader(b"content-type", writer.media_type.encode())
        request.setHeader(b"cache-control", b"no-store")
        pieces = _written(writer, journal.read(start, end, wanted, limit=limit))
        return sliced_answer(request, pieces, self.broker.reactor)


def _writer(request: Request) -> Writer:
    """In which form: as the option says, else as the caller accepts, else Arrow."""
    headers = argument(request, "headers") != "0"
    form = argument(request, "format")
    if form is None:
        accepted = header(request, b"accept") or ""
        form = "json" if any(kind in accepted for kind in json_lines.MEDIA_TYPES) else "arrow"
    if form not in ("arrow", "json"):
        raise bad("format may be arrow or json")
    return json_lines.LinesWriter(headers) if form == "json" else arrow.StreamWriter(headers)


def _written(writer: Writer, batches: Iterator[Excerpt | None]) -> Iterator[bytes]:
    yield writer.start()
    try:
        for batch in batches:
            if batch is None:
                yield b""
            else:
                yield from writer.batch(batch)
    except OverwrittenError as error:
        raise CutOffError(f"the journal was faster than its reader: {error}") from None
    yield writer.end()


def _part(text: str | None, start: int, end: int) -> tuple[int, int]:
    """Part i of n of a range: parts follow each other, so that order stays within each."""
    if text is None:
        return start, end
    given = _PART.fullmatch(text)
    if given is None or int(given[1]) >= int(given[2]):
        raise bad("partition must be i/n, such as 0/4 for the first of four")
    part, parts = int(given[1]), int(given[2])
    length = end - start
    return start + length * part // parts, start + length * (part + 1) // parts


class Position(JournalEndpoint):
    """``/journal/position``: the number to begin with."""

    @operation(
        "The number to begin with",
        query=(
            ChoiceParameter("at", "Which end of the journal", "", ("earliest", "latest")),
            TextParameter("time", "Seconds since 1970: the first message that is not older", ""),
            NumberParameter("behind", "A position: tell how far it is behind", 0),
        ),
        errors=(Code.BAD_REQUEST, Code.NO_JOURNAL),
    )
    def render_GET(self, request: Request) -> dict[str, Any]:
        journal, at = self.journal, argument(request, "at")
        if b"time" in request.args:
            seq = journal.at_time(number_of_seconds(request, "time", 0))
        elif at in ("earliest", "latest"):
            seq = journal.first if at == "earliest" else journal.next
        else:
            raise bad("say at=earliest, at=latest or time=<seconds since 1970>")
        found = {**bounds(journal), "seq": seq}
        reader = whole_number(request, "behind")
        if reader is not None:
            lag = journal.lag(Lease("", reader, 0.0, 0.0))
            found |= {"lag": lag.lag, "lag_seconds": lag.lag_seconds}
        return found


class NewLease(msgspec.Struct):
    """A consumer's word that it has read all before a position, and still needs what follows."""

    position: Annotated[int, msgspec.Meta(ge=0)]
    #: Seconds that this is to be believed.
    ttl: Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
    subjects: list[str] = msgspec.field(default_factory=lambda: [">"])


class LeaseEndpoint(JournalEndpoint):
    """``/journal/leases/{consumer}``. Each user has consumers of their own."""

    def _consumer(self, request: Request) -> str:
        name = path_argument(request, "consumer")
        if not name or len(name) > 200:
            raise bad("a lease needs a consumer of at most 200 letters")
        return name

    @operation("The leases that you may see", errors=(Code.NO_JOURNAL,))
    def render_GET(self, request: Request) -> dict[str, Any]:
        return {"leases": _visible(user_of(request), self.journal.stats())["leases"]}

    @operation(
        "Take or renew a lease: the consumer has read all before a position",
        query=(EPOCH,),
        body=NewLease,
        errors=(*JOURNAL_ERRORS, Code.TOO_MANY),
    )
    def render_PUT(self, request: Request) -> dict[str, Any]:
        journal, consumer = self.same_epoch(request), self._consumer(request)
        given = json_of(request, NewLease, 'a lease is {"position": number, "ttl": seconds}')
        user = user_of(request)
        wanted = selected(user, given.subjects)
        try:
            lease = journal.lease(consumer, given.position, given.ttl, wanted.patterns, user.name)
        except LeaseError as error:
            raise RefusedError(Code.TOO_MANY, str(error)) from None
        return {**bounds(journal), **journal.lag(lease)._asdict()}

    render_POST = render_PUT

    @operation("Give a lease back", answer=dict[str, bool], errors=(Code.NO_JOURNAL,))
    def render_DELETE(self, request: Request) -> dict[str, Any]:
        user = user_of(request)
        return {"released": self.journal.leases.release(self._consumer(request), user.name)}


def _visible(user: User, stats: dict[str, Any]) -> dict[str, Any]:
    """What a user may see of the journal: who may not see everything sees no one else's leases."""
    if not user.restricted:
        return stats
    leases = [lease for lease in stats["leases"] if lease["user"] == user.name]
    return {**stats, "leases": leases, "consumers": len(leases)}


class Journalz(JournalEndpoint):
    """``/journalz``: the journal and its consumers."""

    @operation("The journal and its consumers, for people")
    def render_GET(self, request: Request) -> dict[str, Any]:
        journal: Journal | None = self.broker.journal
        if journal is None:
            return {"journal": None}
        return {"journal": _visible(user_of(request), journal.stats())}


def journal_table(broker: Broker) -> dict[str, Endpoint]:
    """What stands at which path."""
    return {
        "/journal": Read(broker),
        "/journal/position": Position(broker),
        "/journal/wait": Wait(broker),
        "/journal/leases/{consumer}": LeaseEndpoint(broker),
        "/journal/publish": PublishBatch(broker),
        "/journalz": Journalz(broker),
    }
