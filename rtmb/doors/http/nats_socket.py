"""NATS clients over WebSockets: the text protocol in binary frames.

`NatsSocket` is the transport of a `NatsProtocol`. See docs/http.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IDelayedCall, IPullProducer
from twisted.python.failure import Failure
from twisted.web.server import Request

from rtmb.doors.http.kit import is_upgrade
from rtmb.doors.http.sockets import (
    BINARY,
    GOING_AWAY,
    NORMAL,
    Socket,
    SocketEndpoint,
    close_frame,
    frame,
)
from rtmb.doors.http.streams import MOST_ANSWERS
from rtmb.doors.nats.service import NatsFactory
from rtmb.doors.session import LAME_DUCK, LINGER, STOPPING

if TYPE_CHECKING:
    from rtmb.broker import Broker
    from rtmb.doors.http.site import HttpSite


class _Through:
    """Frames of a byte stream: what is in them is passed on as it comes, and nothing kept."""

    def __init__(self, socket: NatsSocket) -> None:
        self._socket = socket

    def add(self, new: str | bytes) -> None:
        if new and not self._socket.closing:
            data = new.encode() if isinstance(new, str) else bytes(new)
            self._socket.protocol.dataReceived(data)

    def done(self) -> Any:
        return b""


class NatsSocket(Socket):
    """The transport of one `NatsProtocol`: its bytes travel in binary frames.

    The protocol has an outbox of its own, which hands over a piece when ours is empty."""

    def __init__(self, request: Request, factory: NatsFactory) -> None:
        super().__init__(request)
        self._factory = factory
        self._producer: IPullProducer | None = None
        self._going_on = False
        self._linger: IDelayedCall | None = None
        self.protocol = factory.buildProtocol(None)
        self.protocol.takes_place = False  # the connection has one already

    def opened(self) -> None:
        through = _Through(self)
        limit = self._factory.settings.max_pending + MOST_ANSWERS
        self.take(limit, lambda last: self.abortConnection(), through, through)
        self.outbox.drained = self._drained
        self.protocol.makeConnection(self)

    def textMessageReceived(self, message: str) -> None:
        pass  # `_Through` has had it

    def bytesMessageReceived(self, data: bytes | bytearray) -> None:
        pass

    def connectionLost(self, reason: Failure) -> None:
        super().connectionLost(reason)
        self._producer = None
        if self._linger is not None and self._linger.active():
            self._linger.cancel()
        self.protocol.connectionLost(reason)
        self.outbox.discard()

    def hang_up(self, code: int, reason: str) -> None:
        self._finish(close_frame(code, reason))

    def peer_closed(self, answer: bytes) -> None:
        self.protocol.done = True
        self._finish(answer)

    def _finish(self, last: bytes) -> None:
        self.closing = True
        self.outbox.write(last)
        self._linger = self._factory.reactor.callLater(LINGER, self.raw.abortConnection)
        self.outbox.finish()

    # What `NatsProtocol` and its outbox want of a transport

    def getPeer(self) -> Any:
        return self.raw.getPeer()

    def getHost(self) -> Any:
        return self.raw.getHost()

    def write(self, data: bytes) -> None:
        self.outbox.write(frame(BINARY, data))

    def registerProducer(self, producer: IPullProducer, streaming: bool) -> None:
        self._producer = producer
        self._go_on()

    def unregisterProducer(self) -> None:
        self._producer = None

    def _drained(self) -> None:
        if self._producer is not None and not self._going_on:
            self._going_on = True
            self._factory.reactor.callLater(0, self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        while self._producer is not None and not self.outbox.pending:
            self._producer.resumeProducing()

    def loseConnection(self) -> None:
        if not self.closing:
            reason = self.protocol.closed_reason
            self.hang_up(GOING_AWAY if reason in (STOPPING, LAME_DUCK) else NORMAL, reason)

    def abortConnection(self) -> None:
        self.closing = True
        self.outbox.discard()
        self.raw.abortConnection()

    def pauseProducing(self) -> None:
        self.raw.pauseProducing()

    def resumeProducing(self) -> None:
        if not self.closing:
            self.raw.resumeProducing()


class NatsSocketFactory:
    """Makes the NATS clients that come over WebSockets."""

    def __init__(self, factory: NatsFactory) -> None:
        self.factory = factory

    def buildProtocol(self, request: Request) -> NatsSocket:
        return NatsSocket(request, self.factory)


class NatsSocketEndpoint(SocketEndpoint):
    """``/nats``: the text protocol over WebSockets."""

    def __init__(self, broker: Broker, site: HttpSite) -> None:
        super().__init__(
            broker, NatsSocketFactory(site.nats), "The text protocol in WebSocket frames"
        )
        self._site = site

    def is_open(self, request: Request) -> bool:
        return is_upgrade(request) and self._site.access.connect_decides
