"""The walk: how publications get from a chunk of bytes into the hub, all in one way.

`Walk.go` takes whole ``PUB`` and ``HPUB`` messages and plain ``SUB`` and ``UNSUB`` lines as long as
they follow each other. It leaves to `NatsProtocol` the other commands, what has to be thought
about, what is wrong, and a payload that goes on in the next chunk: that comes back by
`Walk.publish` when it is there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from rtmb.codecs.nats import ProtocolError, check_headers
from rtmb.core import raw
from rtmb.core.counters import Counters
from rtmb.core.hub import Hub
from rtmb.core.publication import Publication
from rtmb.core.subjects import NO_REPLY, from_raw, to_raw
from rtmb.core.subscriptions import Outlet, Subscription

if TYPE_CHECKING:
    from rtmb.interfaces import ISubscriber

#: The words that begin a line, as `raw.verb` makes numbers of them.
_PUB, _HPUB = int.from_bytes(b"PUB", "big"), int.from_bytes(b"HPUB", "big")
_SUB, _UNSUB = int.from_bytes(b"SUB", "big"), int.from_bytes(b"UNSUB", "big")
#: Subjects that a restricted user may publish on, as was found before: so many are kept.
MOST_ALLOWED = 4096

_NO_REPLY = tuple(map(to_raw, NO_REPLY))
#: Where the fields of a line are found; one for all, as it is read before anything else happens.
_SPANS = array("q", [0] * 10)
_DOLLAR, _UNDERLINE = ord("$"), ord("_")


class Walk:
    """The way in for one client of the text door."""

    __slots__ = ("allowed", "behind", "by_sid", "client", "counters", "hub", "max_line",
                 "max_payload", "max_subscriptions", "may_publish", "mute", "no_responders",
                 "outlet", "restricted", "tell", "verbose")  # fmt: skip

    def __init__(
        self,
        hub: Hub,
        client: ISubscriber,
        outlet: Outlet,
        by_sid: dict[bytes, Subscription],
    ) -> None:
        self.hub = hub
        self.client = client
        self.outlet = outlet
        self.counters: Counters = client.counters
        #: What the client has subscribed to.
        self.by_sid = by_sid
        self.max_subscriptions = 0
        #: Whether there are patterns that it may not subscribe to: then the client is asked.
        self.restricted = False
        #: Who is to get nothing: the client itself, if it wants no echo.
        self.mute: ISubscriber | None = None
        #: Asked whether the client may publish on a subject; None: it may on any.
        self.may_publish: Callable[[str], bool] | None = None
        #: Subjects that it may publish on, as far as was asked.
        self.allowed: dict[bytes, bool] = {}
        #: Called with subject, reply and count after a publication: each, if the client is verbose,
        #: or those that ask something of nobody.
        self.tell: Callable[[bytes, bytes | None, int], None] | None = None
        self.verbose = False
        self.no_responders = False
        self.max_line = 0
        self.max_payload = 0
        #: Subscribers found to be far behind.
        self.behind: list[ISubscriber] = []

    def go(self, data: bytes, pos: int, now: float, door: str) -> int:
        """Publish what there is from `pos` on; returns where it ends."""
        end = len(data)
        spans = _SPANS
        publication = Publication(now, door)
        while True:
            eol = raw.find_line_end(data, pos, end)
            if eol < 0 or eol - pos > self.max_line:
                break
            fields = raw.split_fields(data, pos, eol, spans)
            if fields < 2 or fields > 5:
                break
            word = raw.verb(data, raw.long_at(spans, 0), raw.long_at(spans, 1))
            if word in (_SUB, _UNSUB):
                if not self._change(data, word, fields):
                    break
                pos = eol + 1
                continue
            if fields < 3:
                break
            if word == _PUB and fields < 5:
                head = 0
                last = 2 * fields - 2
                second = fields == 4
            elif word == _HPUB and fields > 3:
                last = 2 * fields - 2
                head = raw.number(data, raw.long_at(spans, last - 2), raw.long_at(spans, last - 1))
                second = fields == 5
                if head < 0:
                    break
            else:
                break
            size = raw.number(data, raw.long_at(spans, last), raw.long_at(spans, last + 1))
            if size < head or size > self.max_payload:
                break
            start = eol + 1
            stop = start + size
            after = raw.end_of_payload(data, stop, end)
            if after < 0:
                break
            subject = raw.cut(data, raw.long_at(spans, 2), raw.long_at(spans, 3))
            reply = raw.cut(data, raw.long_at(spans, 4), raw.long_at(spans, 5)) if second else None
            try:
                self._publish(publication, subject, reply, head, data, start, stop)
            except ProtocolError:
                break  # it comes again by the other way, which tells what is wrong
            pos = after
        return pos

    def _change(self, data: bytes, word: int, fields: int) -> bool:
        """Do what a SUB or UNSUB says, if there is nothing to think about; returns whether there
        was not."""
        spans = _SPANS
        last = 2 * fields - 2
        sid = raw.cut(data, raw.long_at(spans, last), raw.long_at(spans, last + 1))
        if self.verbose:
            return False
        if word == _UNSUB:
            return fields == 2 and self._unsubscribe(sid)
        if fields in (2, 5):
            return False
        pattern = raw.cut(data, raw.long_at(spans, 2), raw.long_at(spans, 3))
        queue = None
        if fields == 4:
            queue = raw.cut(data, raw.long_at(spans, 4), raw.long_at(spans, 5))
        return self._subscribe(pattern, queue, sid)

    def _subscribe(self, pattern: bytes, queue: bytes | None, sid: bytes) -> bool:
        kind = raw.kind_of(pattern, 0, len(pattern))
        if (
            self.restricted
            or kind == raw.INVALID
            or pattern[0] == _DOLLAR
            or sid in self.by_sid
            or 0 < self.max_subscriptions <= len(self.by_sid)
        ):
            return False
        subscription = Subscription(self.client, pattern, queue, sid, (), self.outlet)
        self.by_sid[sid] = subscription
        self.hub.routing.add(subscription, kind == raw.WILDCARD)
        self.counters.changes += 1
        return True

    def _unsubscribe(self, sid: bytes) -> bool:
        subscription = self.by_sid.get(sid)
        if subscription is None:
            return False
        del self.by_sid[sid]
        if self.hub.routing.remove(subscription):
            self.counters.changes += 1
        return True

    def publish(
        self, subject: bytes, reply: bytes | None, head: int, data: bytes, now: float, door: str
    ) -> None:
        """Publish one message, whose header block is the first `head` bytes of `data`. Raises
        `ProtocolError` when that may not be."""
        self._publish(Publication(now, door), subject, reply, head, data, 0, len(data))

    def _publish(
        self,
        publication: Publication,
        subject: bytes,
        reply: bytes | None,
        head: int,
        data: bytes,
        start: int,
        stop: int,
    ) -> None:
        hub = self.hub
        topic = hub.history.topics.get(subject)
        if topic is None and raw.kind_of(subject, 0, len(subject)) != raw.LITERAL:
            raise ProtocolError("Invalid Publish Subject", closes=False)
        if self.may_publish is not None:
            self._check(subject)
        if reply is not None:
            _check_reply(reply)
        headers = None
        if head:
            headers = raw.cut(data, start, start + head)
            if not raw.is_header_block(headers):
                check_headers(headers)
        route = hub.find(subject) if topic is None else topic
        if route.made != hub.routing.generation_of(route.share):
            hub.routing.make(route)
        publication.place(subject, reply, headers, data, start + head, stop)
        count = hub.pass_on(route, publication, self.mute, self.counters)
        if self.verbose or (count == 0 and reply is not None and self.no_responders):
            assert self.tell is not None
            self.tell(subject, reply, count)
        if hub.collected > hub.spread:
            self.behind += hub.flush()

    def _check(self, subject: bytes) -> None:
        """Raise when the client may not publish on a subject."""
        if subject in self.allowed:
            return
        name = from_raw(subject)
        assert self.may_publish is not None
        if not self.may_publish(name):
            raise ProtocolError(f'Permissions Violation for Publish to "{name}"', closes=False)
        if len(self.allowed) >= MOST_ALLOWED:
            del self.allowed[next(iter(self.allowed))]
        self.allowed[subject] = True


def _check_reply(reply: bytes) -> None:
    first = reply[0]
    if raw.kind_of(reply, 0, len(reply)) != raw.LITERAL or (
        first in (_DOLLAR, _UNDERLINE) and reply.startswith(_NO_REPLY)
    ):
        raise ProtocolError(
            f'Permissions Violation for Publish with Reply of "{from_raw(reply)}"', closes=False
        )
