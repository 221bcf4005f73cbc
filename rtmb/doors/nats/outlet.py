"""What goes out to a client of the text door: publications become ``MSG`` and ``HMSG``, written
into its batch."""

from __future__ import annotations

from rtmb.core import raw
from rtmb.core.batch import Batch
from rtmb.core.hub import Hub
from rtmb.core.publication import WHOLE, Publication
from rtmb.core.subscriptions import Outlet, Subscription
from rtmb.interfaces import ISubscriber

#: The most bytes of a line beyond subject, sid and reply: ``HMSG``, blanks, two sizes, line ends.
_LINE = 64

_MSG, _HMSG = b"MSG ", b"HMSG "
_BLANK, _END = b" ", b"\r\n"
_WHOLE = WHOLE


class NatsOutlet(Outlet):
    """The way out to one client."""

    __slots__ = ("batch", "closed", "headers", "hub", "last", "subscriber")

    def __init__(self, hub: Hub, subscriber: ISubscriber, batch: Batch) -> None:
        super().__init__()
        self.hub = hub
        self.subscriber = subscriber
        self.batch = batch
        #: Whether the client understands headers; who does not gets the payload alone.
        self.headers = False
        #: Set when the client is to get nothing more.
        self.closed = False
        #: The subject of the last message.
        self.last = b""

    def take(self, subscription: Subscription, publication: Publication) -> None:
        if self.closed:
            return
        if publication.start < 0:
            publication.lay_out()
        batch = self.batch
        hub = self.hub
        if batch.size() == 0:
            hub.wake(self.subscriber)
        subject = self.last = publication.subject
        sid = subscription.key
        reply = publication.reply
        headers = publication.headers if self.headers else None
        size = publication.end - publication.start
        length = _LINE + len(subject) + len(sid)
        if reply is not None:
            length += len(reply)
        if headers is not None:
            length += len(headers)
        if size < _WHOLE:
            length += size
        hub.collected += length
        room = batch.room(length)
        at = batch.used()
        at = raw.put(room, at, _MSG if headers is None else _HMSG)
        at = raw.put(room, at, subject)
        at = raw.put(room, at, _BLANK)
        at = raw.put(room, at, sid)
        at = raw.put(room, at, _BLANK)
        if reply is not None:
            at = raw.put(room, at, reply)
            at = raw.put(room, at, _BLANK)
        if headers is not None:
            at = raw.put_number(room, at, len(headers))
            at = raw.put(room, at, _BLANK)
            at = raw.put_number(room, at, len(headers) + size)
            at = raw.put(room, at, _END)
            at = raw.put(room, at, headers)
        else:
            at = raw.put_number(room, at, size)
            at = raw.put(room, at, _END)
        if size < _WHOLE:
            at = raw.put_part(room, at, publication.data, publication.start, publication.end)
            batch.wrote(raw.put(room, at, _END))
        else:
            batch.wrote(at)
            batch.append(publication.payload())
            batch.append(_END)
