"""One connection and one request: what they may hold, and who sends them.

`HttpRequest.process` is the one place where access is checked; it leaves the `User` in
`request.sender` for the endpoints. `HttpChannel` keeps bodies and headers within bounds.
"""

from __future__ import annotations

from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import maybeDeferred
from twisted.internet.interfaces import IDelayedCall, ITCPTransport
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel

from rtmb.auth import ANYONE, User
from rtmb.doors.http.kit import (
    ApiRequest,
    Code,
    Endpoint,
    RefusedError,
    error_body,
    forbidden,
    header,
    is_upgrade,
    nothing_here,
    refuse,
    too_large,
)

if TYPE_CHECKING:
    from rtmb.doors.http.site import HttpSite

#: The most that all bodies together may hold, since who sends them is asked when they are there.
MOST_BODIES = 256 << 20
#: Seconds that a client may go on sending a body that has been refused: it reads the answer then.
_LINGER = 2.0


class HttpChannel(HTTPChannel):
    """One connection, until it becomes a WebSocket or an event stream."""

    site: HttpSite
    transport: Any
    requests: list[Any]
    #: Set when it has become something that stays: a WebSocket, an event stream.
    taken = False
    _has_place = False
    _refused: IDelayedCall | None = None

    def connectionMade(self) -> None:
        super().connectionMade()
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)  # the head of an answer does not wait for its body
        self.site.channels.add(self)
        self._has_place = self.site.clients.take_place()
        if not self._has_place:
            self.refuse(RefusedError(Code.OVERLOADED, "too many connections"))

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        super().connectionLost(reason)
        self.gone()

    def gone(self) -> None:
        """The connection is lost, whatever had become of it."""
        if self._refused is not None and self._refused.active():
            self._refused.cancel()
        if self._has_place:
            self._has_place = False
            self.site.clients.free_place()
        self.site.channel_gone(self)

    @property
    def refused(self) -> bool:
        """Whether an error has been answered before a request was all there."""
        return self._refused is not None

    def refuse(self, error: RefusedError) -> None:
        """Answer before the request is there, and read no more of it."""
        if self.refused:
            return
        body, status = error_body(error), error.code.status
        self.transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b"
            % (status, HTTPStatus(status).phrase.encode(), len(body), body)
        )
        self._refused = self.site.reactor.callLater(_LINGER, self.loseConnection)

    def dataReceived(self, data: bytes) -> None:
        if not self.refused:
            super().dataReceived(data)

    def lineReceived(self, line: bytes) -> None:
        if not self.refused:
            super().lineReceived(line)

    def rawDataReceived(self, data: bytes) -> None:
        if not self.refused:
            super().rawDataReceived(data)

    def allHeadersReceived(self) -> None:
        limit = self.requests[-1].find_endpoint(self._path)
        if self.length is not None and self.length > limit:
            self.refuse(too_large(limit))
            return
        super().allHeadersReceived()

    def lineLengthExceeded(self, line: bytes) -> None:
        self.refuse(RefusedError(Code.HEADERS_TOO_LARGE, "a header is too long"))

    def _respondToBadRequestAndDisconnect(self) -> None:
        self.refuse(RefusedError(Code.BAD_REQUEST, "that is no request of HTTP"))

    def finish_up(self) -> None:
        """Close, after the request that is being answered if there is one."""
        if self.requests:
            self.persistent = 0
        else:
            self.loseConnection()


class HttpRequest(ApiRequest):
    """One request."""

    log = Logger()
    channel: HttpChannel
    content: BytesIO
    #: What stands at its path.
    endpoint: Endpoint
    _limit = 0
    _size = 0

    # The body

    def find_endpoint(self, uri: bytes) -> int:
        """See what it asks for; returns the largest body for that."""
        site = self.channel.site
        self.endpoint, self.path_arguments = site.router.find(uri.partition(b"?")[0])
        most = self.endpoint.most_body
        self._limit = most if most is not None else site.settings.max_payload
        return self._limit

    def gotLength(self, length: int | None) -> None:
        self.content = BytesIO()  # bounded, so no file is needed
        if length != 0:
            self.notifyFinish().addBoth(self._release, self.channel.site)

    def handleContentChunk(self, data: bytes) -> None:
        self._size += len(data)
        self.channel.site.bodies += len(data)
        if self._size > self._limit:
            self.channel.refuse(too_large(self._limit))
        elif self.channel.site.bodies > MOST_BODIES:
            self.channel.refuse(RefusedError(Code.OVERLOADED, "too much at once"))
        else:
            self.content.write(data)

    def _release(self, result: object, site: HttpSite) -> None:
        site.bodies -= self._size

    # Access

    def process(self) -> None:
        if self.channel.refused:
            return
        access = self.channel.site.access
        origin = header(self, b"origin")
        allowed = origin is not None and access.allows_origin(origin)
        if origin is not None and allowed:
            self.setHeader(b"access-control-allow-origin", origin.encode())
            self.setHeader(b"access-control-expose-headers", b"*")
            self.setHeader(b"vary", b"origin")
        foreign = access.is_foreign(self)
        if self.method == b"OPTIONS":
            self._tell_options(foreign)
        elif foreign and (is_upgrade(self) or self.method not in (b"GET", b"HEAD")):
            self._refuse(forbidden("not from a page of another site"))
        elif self.endpoint.is_open(self):
            self._let_in(ANYONE)
        else:
            admitting = maybeDeferred(access.admit, self).addCallback(self._admitted)
            admitting.addErrback(self.processingFailed)

    def _admitted(self, user: User | None) -> None:
        if self._disconnected:
            return
        if user is None or user.expired(self.channel.site.hub.clock()):
            self.setHeader(b"www-authenticate", b'Bearer realm="rtmb"')
            text = "who are you? Give X-API-Key, or Authorization"
            self._refuse(RefusedError(Code.UNAUTHORIZED, text))
            return
        self._let_in(user)

    def _let_in(self, user: User) -> None:
        self.sender = user
        super().process()

    def _tell_options(self, foreign: bool) -> None:
        """What is known here: a browser asks on behalf of a page of another site, or anyone."""
        if foreign:
            self._refuse(forbidden("not from a page of another site"))
            return
        if not self.endpoint.methods:
            self._refuse(nothing_here())
            return
        wanted = self.getHeader(b"access-control-request-headers")
        self.setHeader(b"allow", self.endpoint.allow)
        self.setHeader(b"access-control-allow-methods", self.endpoint.allow)
        if wanted:
            self.setHeader(b"access-control-allow-headers", wanted)
        self.setHeader(b"access-control-max-age", b"600")
        self.setResponseCode(204)
        self._answer(b"")

    # Answers

    def _refuse(self, error: RefusedError) -> None:
        self._answer(refuse(self, error))

    def _answer(self, body: bytes) -> None:
        if body:
            self.setHeader(b"content-length", b"%d" % len(body))
        self.write(body)
        self.finish()

    def processingFailed(self, reason: Failure) -> None:
        self.log.failure("the HTTP door failed at {uri}", reason, uri=self.uri)
        if not self._disconnected and not self.startedWriting:
            text = "that was our mistake; the log has it"
            self._refuse(RefusedError(Code.INTERNAL, text))
        elif not self._disconnected:
            self.channel.loseConnection()
