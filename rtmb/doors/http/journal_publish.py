"""``POST /journal/publish``: messages with ids, each published once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger
from twisted.web.server import NOT_DONE_YET, Request

from rtmb.codecs import arrow
from rtmb.codecs.arrow_reader import ArrowError, Rows, read_rows
from rtmb.core.dedup import Dedup, Ids
from rtmb.core.message import ID_HEADER, Message
from rtmb.core.subjects import is_subject
from rtmb.doors.http.journal_call import JournalEndpoint, finish, may_not
from rtmb.doors.http.kit import Code, RefusedError, argument, bad, body_of, user_of, whole_number
from rtmb.doors.http.operations import Number, Text, operation
from rtmb.doors.http.slices import work

if TYPE_CHECKING:
    from rtmb.auth import User
    from rtmb.broker import Broker

#: The door that messages published here come by.
DOOR = "spark"
#: The largest body, and the most messages in it.
MOST_BODY = 32 << 20
MOST_MESSAGES = 8192
#: The longest id of a message.
LONGEST_ID = 1024
#: How long a publisher waits for its answer when subscribers are far behind.
_PAUSE = 0.2
#: Messages published in one step.
_STEP = 256

_ID = ID_HEADER.encode()


class Publish(JournalEndpoint):
    """An Arrow stream with the columns `subject` and `data`, and, if there, `headers`, `reply` and
    `id`. Without ids, ``source`` and ``first`` in the query name the rows: ``source/first``, and so
    on. All is looked at before anything is published. Ids are of the user who gave them."""

    log = Logger()
    most_body = MOST_BODY

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.dedup = Dedup(broker.settings.dedup_window, broker.reactor.seconds)

    @operation("What a publisher must keep to", answer=dict[str, int])
    def render_GET(self, request: Request) -> dict[str, Any]:
        """What a publisher must keep to."""
        return {
            "max_payload": self.broker.settings.max_payload,
            "max_messages": MOST_MESSAGES,
            "max_body": MOST_BODY,
            "max_id": LONGEST_ID,
        }

    @operation(
        "Publish many messages, each with an id, each once",
        query=(
            Text("source", "The name of the rows that have no ids", ""),
            Number("first", "The number of the first of them", 0),
        ),
        body=arrow.StreamWriter.media_type,
        answer=dict[str, int],
        errors=(Code.BAD_REQUEST, Code.FORBIDDEN, Code.TOO_LARGE),
    )
    def render_POST(self, request: Request) -> int:
        user = user_of(request)
        try:
            rows = read_rows(body_of(request), MOST_MESSAGES)
            posted = Posted(rows, argument(request, "source"), whole_number(request, "first"))
            posted.check(user, self.broker.settings.max_payload)
        except ArrowError as error:
            raise bad(f"not a body of messages: {error}") from None
        forgotten = self.dedup.forgotten
        ids = self.dedup.of(user.name, posted.count)
        if self.dedup.forgotten > forgotten:
            self.log.warn(
                "too many message ids: {count} were forgotten before {window} seconds were over",
                count=self.dedup.forgotten - forgotten,
                window=self.dedup.window,
            )
        steps = self._publish(posted, ids)
        work(self.broker.reactor, steps, lambda: self._done(request, posted), request)
        return NOT_DONE_YET

    def _publish(self, posted: Posted, ids: Ids) -> Iterator[None]:
        deliver, clients = self.broker.hub.deliver, self.broker.clients
        for start in range(0, posted.count, _STEP):
            for row in range(start, min(start + _STEP, posted.count)):
                if ids.fresh(*posted.key(row)):
                    message = posted.message(row)
                    deliver(message)
                    clients.count_in(DOOR, 1, message.size)
                    posted.published += 1
            posted.behind = bool(self.broker.hub.flush())
            yield

    def _done(self, request: Request, posted: Posted) -> None:
        consumer, journal = argument(request, "dead_letters_of"), self.broker.journal
        if consumer is not None and journal is not None:
            user = user_of(request).name
            journal.leases.count_dead_letters(consumer, user, posted.published)
        duplicates = posted.count - posted.published
        told = {"published": posted.published, "duplicates": duplicates}
        if posted.behind:
            self.broker.reactor.callLater(_PAUSE, self._late, request, told)
        else:
            finish(request, told)

    def _late(self, request: Request, told: dict[str, Any]) -> None:
        if request.channel is not None:  # else the publisher has gone
            finish(request, told)


def _too_large(text: str) -> RefusedError:
    return RefusedError(Code.TOO_LARGE, text)


class Posted:
    """A body of messages that is being published."""

    def __init__(self, rows: Rows, source: str | None, first: int | None) -> None:
        self.count = len(rows.payloads)
        self.published = 0
        #: Whether some subscriber is far behind.
        self.behind = False
        self._rows = rows
        if rows.ids is None and (source is None or first is None):
            raise ArrowError("without a column id, source and first must name the rows")
        self._source = (source or "").encode()
        self._first = first or 0

    def key(self, row: int) -> tuple[bytes, int]:
        """A row's id as it is remembered."""
        ids = self._rows.ids
        return (self._source, self._first + row) if ids is None else (ids[row], 0)

    def _id(self, row: int) -> bytes:
        ids = self._rows.ids
        return b"%b/%d" % (self._source, self._first + row) if ids is None else ids[row]

    def message(self, row: int) -> Message:
        rows = self._rows
        return Message(
            rows.subjects[row],
            rows.payloads[row],
            reply=rows.replies.get(row),
            headers=self._headers(row),
            door=DOOR,
        )

    def _headers(self, row: int) -> bytes:
        """A row's header block; it has the message's id, unless there is one in it already."""
        block = self._rows.headers.get(row, b"")
        if b"\r\n%b:" % _ID.lower() in block.lower():
            return b"NATS/1.0%b\r\n\r\n" % block
        return b"NATS/1.0\r\n%b: %b%b\r\n\r\n" % (_ID, self._id(row), block)

    def check(self, user: User, max_payload: int) -> None:
        """Raise unless all of it may be published."""
        for name in {*self._rows.subjects, *self._rows.replies.values()}:
            if not is_subject(name):
                raise ArrowError(f"not a subject: {name!r}")
        for name in set(self._rows.subjects):
            if not user.publish.may_publish(name):
                raise may_not(user, f"publish to {name}")
        for name_of_row in self._rows.ids or [self._source]:
            if len(name_of_row) > LONGEST_ID:
                raise ArrowError(f"an id has at most {LONGEST_ID} bytes")
            if b"\r" in name_of_row or b"\n" in name_of_row:
                raise ArrowError("an id cannot have a line end")
        if sum(map(len, self._rows.payloads)) > MOST_BODY:  # a dictionary may say much with little
            raise _too_large(f"at most {MOST_BODY} bytes of messages at once")
        near = max_payload - LONGEST_ID - 64  # there is no need to look at the rest
        for row, payload in enumerate(self._rows.payloads):
            if len(payload) + len(self._rows.headers.get(row, b"")) <= near:
                continue
            size = len(payload) + len(self._headers(row))
            if size > max_payload:
                raise _too_large(
                    f"message {self._id(row).decode('utf-8', 'replace')} on "
                    f"{self._rows.subjects[row]} has {size} bytes with its headers; at most "
                    f"{max_payload} are allowed"
                )
