"""The HTTP door: requests, WebSockets, event streams, monitoring and the page, on one port.

`HttpRequest.process` is the one place where access is checked; it leaves the `User` in
`request.rtmb_user` for the resources, which stand each in a module of its own. `HttpChannel` keeps
bodies and headers within bounds. docs/http.md tells what there is.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import msgspec
from twisted.application.service import IService
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel
from twisted.web.resource import IResource, Resource
from twisted.web.server import Request, Site
from zope.interface import implementer

from rtmb.auth import ANYONE, User
from rtmb.config import Settings
from rtmb.doors.http.access import Access
from rtmb.doors.http.journal import journaling
from rtmb.doors.http.journal_publish import MOST_BODY
from rtmb.doors.http.kit import error_body, header, refuse
from rtmb.doors.http.monitor import monitoring
from rtmb.doors.http.rest import rest
from rtmb.doors.http.sse import Events
from rtmb.doors.http.streams import Streams
from rtmb.doors.http.websocket import JsonSockets, NatsSockets
from rtmb.doors.listener import Listener
from rtmb.doors.nats.protocol import NatsFactory
from rtmb.interfaces import IAuthenticator, IDoor

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: Seconds that a connection may be silent between requests, or in the middle of one.
IDLE = 60
#: The most that all bodies together may hold, since who sends them is asked when they are there.
MOST_BODIES = 256 << 20
#: Seconds that a client may go on sending a body that has been refused: it reads the answer then.
_LINGER = 2.0
#: Who anyone may ask for: the page (it asks for the key itself), and whether the broker lives.
_OPEN = (b"/health", b"/healthz")
#: Where an upgrade speaks the text protocol.
_NATS = (b"/", b"/nats")
#: What only someone without restrictions may do, since it is done to others.
_FOR_KEEPERS = (b"connections",)
_METHODS = b"GET, POST, PUT, DELETE, OPTIONS"


class HttpChannel(HTTPChannel):
    """One connection, until it becomes a WebSocket."""

    site: HttpSite
    transport: Any
    requests: list[Any]
    _refused: IDelayedCall | None = None

    def connectionMade(self) -> None:
        super().connectionMade()
        self.site.channels.add(self)
        if len(self.site.channels) > self.site.settings.max_connections:
            self.refuse(b"503 Service Unavailable", "TOO_MANY", "too many connections")

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        super().connectionLost(reason)
        self.gone()

    def gone(self) -> None:
        if self._refused is not None and self._refused.active():
            self._refused.cancel()
        self.site.channel_gone(self)

    def refuse(self, status: bytes, code: str, text: str) -> None:
        """Answer before the request is there, and read no more of it."""
        if self._refused is not None:
            return
        body = msgspec.json.encode(error_body(code, text)) + b"\n"
        self.transport.write(
            b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b" % (status, len(body), body)
        )
        self._refused = self.site.reactor.callLater(_LINGER, self.loseConnection)

    def too_large(self) -> None:
        self.refuse(b"413 Content Too Large", "TOO_LARGE", "the body is too large")

    def body_limit(self) -> int:
        is_journal = self._path.startswith(b"/journal/")
        return MOST_BODY if is_journal else self.site.settings.max_payload

    def dataReceived(self, data: bytes) -> None:
        if self._refused is None:
            super().dataReceived(data)

    def rawDataReceived(self, data: bytes) -> None:
        if self._refused is None:
            super().rawDataReceived(data)

    def allHeadersReceived(self) -> None:
        if self.length is not None and self.length > self.body_limit():
            self.too_large()
            return
        super().allHeadersReceived()

    def lineLengthExceeded(self, line: bytes) -> None:
        self.refuse(b"431 Request Header Fields Too Large", "TOO_LARGE", "a header is too long")

    def finish_up(self) -> None:
        """Close, after the request that is being answered if there is one."""
        if self.requests:
            self.persistent = 0
        else:
            self.loseConnection()


class HttpRequest(Request):
    """One request."""

    log = Logger()
    channel: HttpChannel
    content: BytesIO
    #: Who sent it.
    rtmb_user: User
    _size = 0
    _limit = 0

    def gotLength(self, length: int | None) -> None:
        self._limit = self.channel.body_limit()
        self.content = BytesIO()  # bounded, so no file is needed
        if length != 0:
            self.notifyFinish().addBoth(self._release, self.channel.site)

    def handleContentChunk(self, data: bytes) -> None:
        self._size += len(data)
        self.channel.site.bodies += len(data)
        if self._size > self._limit:
            self.channel.too_large()
        elif self.channel.site.bodies > MOST_BODIES:
            self.channel.refuse(b"503 Service Unavailable", "TOO_MANY", "too much at once")
        else:
            self.content.write(data)

    def _release(self, result: object, site: HttpSite) -> None:
        site.bodies -= self._size

    # Access

    def process(self) -> None:
        if self.channel._refused is not None:
            return
        access = self.channel.site.access
        origin = header(self, b"origin")
        allowed = origin is not None and access.allows_origin(origin)
        if origin is not None and allowed:
            self.setHeader(b"access-control-allow-origin", origin.encode())
            self.setHeader(b"access-control-expose-headers", b"*")
            self.setHeader(b"vary", b"origin")
        if self.method == b"OPTIONS":
            self._preflight(allowed or origin is None)
            return
        upgrade = header(self, b"upgrade") is not None
        if access.is_foreign(self) and (upgrade or self.method not in (b"GET", b"HEAD")):
            self._answer(refuse(self, 403, "UNAUTHORIZED", "not from a page of another site"))
        elif self._is_open(access, upgrade):
            self._let_in(ANYONE)
        else:
            admitting = maybeDeferred(access.admit, self).addCallback(self._admitted)
            admitting.addErrback(self._failed)

    def _is_open(self, access: Access, upgrade: bool) -> bool:
        if upgrade:
            return self.path in _NATS and access.users  # CONNECT says who it is
        return self.path in _OPEN or self.path == b"/"

    def _admitted(self, user: User | None) -> None:
        if self._disconnected:
            return
        if user is None or user.expired(self.channel.site.hub.clock()):
            self.setHeader(b"www-authenticate", b'Bearer realm="rtmb"')
            text = "who are you? Give X-API-Key, or Authorization"
            self._answer(refuse(self, 401, "UNAUTHORIZED", text))
            return
        first = unquote_to_bytes(self.path[1:].partition(b"/")[0])
        if user.restricted and first in _FOR_KEEPERS:
            self._answer(refuse(self, 403, "UNAUTHORIZED", "you may not do this to others"))
            return
        self._let_in(user)

    def _failed(self, failure: Failure) -> None:
        self.processingFailed(failure)

    def _let_in(self, user: User) -> None:
        self.rtmb_user = user
        super().process()

    def _preflight(self, allowed: bool) -> None:
        """A browser asks whether a page of another site may do something."""
        if not allowed:
            self._answer(refuse(self, 403, "UNAUTHORIZED", "not from a page of another site"))
            return
        wanted = self.getHeader(b"access-control-request-headers")
        self.setHeader(b"allow", _METHODS)
        self.setHeader(b"access-control-allow-methods", _METHODS)
        if wanted:
            self.setHeader(b"access-control-allow-headers", wanted)
        self.setHeader(b"access-control-max-age", b"600")
        self.setResponseCode(204)
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        if body:
            self.setHeader(b"content-length", b"%d" % len(body))
        self.write(body)
        self.finish()

    # Answers that Twisted would give in HTML

    def render(self, resrc: IResource) -> None:
        method = self.method.decode("ascii", "replace")
        known = [name[7:] for name in dir(resrc) if name.startswith("render_")]
        if "GET" not in known and "HEAD" in known:
            known.remove("HEAD")  # every resource of Twisted's has it, as GET without a body
        if method not in known:
            self.setHeader(b"allow", ", ".join(sorted(known)).encode())
            self._answer(refuse(self, 405, "BAD_REQUEST", f"{', '.join(sorted(known))} only"))
        else:
            super().render(resrc)

    def processingFailed(self, reason: Failure) -> Failure:
        self.log.failure("the HTTP door failed at {uri}", reason, uri=self.uri)
        if not self._disconnected and not self.startedWriting:
            self._answer(refuse(self, 500, "INTERNAL", "that was our mistake; the log has it"))
        elif not self._disconnected:
            self.loseConnection()
        return reason


class NotFound(Resource):
    isLeaf = True

    def render(self, request: Request) -> bytes:
        return refuse(request, 404, "NOT_FOUND", "there is nothing here")

    render_GET = render_POST = render_PUT = render_DELETE = render


class Page(Resource):
    """The page at ``/``. It may use nothing from elsewhere, and run nothing but itself."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self._page = (resources.files("rtmb.doors.http.dashboard") / "index.html").read_bytes()
        scripts, styles = (self._hashes(name) for name in (b"script", b"style"))
        self._policy = (
            "default-src 'none'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
            f"form-action 'none'; frame-ancestors 'none'; script-src {scripts}; style-src {styles}"
        ).encode()

    def _hashes(self, name: bytes) -> str:
        """The elements of that name that stand in the page, as the policy names them."""
        found = re.findall(b"<%b[^>]*>(.*?)</%b>" % (name, name), self._page, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in found)
        return " ".join(["'self'", *(f"'sha256-{digest}'" for digest in digests)])

    def render_GET(self, request: Request) -> bytes:
        request.setHeader(b"content-type", b"text/html; charset=utf-8")
        request.setHeader(b"content-security-policy", self._policy)
        request.setHeader(b"x-content-type-options", b"nosniff")
        request.setHeader(b"referrer-policy", b"no-referrer")
        request.setHeader(b"cache-control", b"no-cache")
        return self._page


class Root(Resource):
    """What stands where."""

    def __init__(self, site: HttpSite, broker: Broker) -> None:
        super().__init__()
        self._page = Page()
        self._nats = NatsSockets(site.nats).resource()
        mounted = {
            b"ws": JsonSockets(site.streams).resource(),
            b"nats": self._nats,
            b"events": Events(site.streams),
            **rest(broker),
            **monitoring(broker),
            **journaling(broker),
        }
        for name, resource in mounted.items():
            self.putChild(name, resource)

    def getChild(self, path: bytes, request: Request) -> IResource:
        if request.path == b"/":
            is_upgrade = header(request, b"upgrade") is not None
            return self._nats if is_upgrade else self._page
        return NotFound()


class HttpSite(Site):
    """All connections of the door, and what they share."""

    protocol = HttpChannel  # type: ignore[assignment]
    noisy = False

    def __init__(self, broker: Broker) -> None:
        self.hub = broker.hub
        self.settings = broker.settings
        self.access = Access(broker.settings, broker.authenticator)
        self.streams = Streams(broker)
        #: NATS clients over WebSockets. TLS is the door's business, not theirs.
        self.nats = NatsFactory(broker)
        self.nats.tls = None
        self.channels: set[HttpChannel] = set()
        #: Bytes of all bodies that are held just now.
        self.bodies = 0
        self._empty: Deferred[None] | None = None
        super().__init__(
            Root(self, broker),
            requestFactory=HttpRequest,
            reactor=broker.reactor,
            timeout=IDLE,
            parsePOSTFormSubmission=False,
        )

    def startFactory(self) -> None:
        super().startFactory()
        self.nats.doStart()

    def stopFactory(self) -> None:
        super().stopFactory()
        self.nats.doStop()

    def acceptableProtocols(self) -> list[bytes]:
        return [b"http/1.1"]  # what WebSockets and event streams are made on here

    def log(self, request: object) -> None:
        """A line for each request would cost more than the request."""

    def reload(self, settings: Settings, authenticator: IAuthenticator) -> None:
        """Take a new key, users, permissions and limits, and hold every client to them."""
        before, self.access = self.access, Access(settings, authenticator)
        self.settings = self.streams.settings = settings
        self.nats.reload(settings, authenticator)
        for stream in list(self.streams.clients.values()):
            stream.reloaded(self.access.still(stream.user, before))

    # Ending

    def channel_gone(self, channel: HttpChannel) -> None:
        self.channels.discard(channel)
        if not self.channels and self._empty is not None:
            empty, self._empty = self._empty, None
            empty.callback(None)

    def close_all(self, timeout: float) -> Deferred[None]:
        """Flush and close every client; those that do not take it in time are cut off."""
        if not self.channels:
            return succeed(None)
        empty: Deferred[None] = Deferred()
        self._empty = empty
        late = self.reactor.callLater(timeout, self._abort_all)
        nats = self.nats.close_all(timeout)
        for stream in list(self.streams.clients.values()):
            stream.shut_down()
        streams = {stream.channel for stream in self.streams.clients.values()}
        sockets = {client.transport.channel for client in self.nats.clients.values()}
        for channel in list(self.channels - streams - sockets):
            channel.finish_up()

        def done(results: object) -> None:
            if late.active():
                late.cancel()

        return DeferredList([empty, nats]).addCallback(done)

    def _abort_all(self) -> None:
        for channel in list(self.channels):
            channel.transport.abortConnection()


class HttpService(Listener):
    """Listens for the HTTP door, and drains it at the end."""

    option = "--http-port"
    site: HttpSite

    def __init__(self, broker: Broker) -> None:
        settings, site = broker.settings, HttpSite(broker)
        super().__init__(broker.reactor, site, settings.interface, settings.http_port, broker.tls)
        scheme = "http" if broker.tls is None else "https"
        self.greeting = f"http door: {scheme}://{{host}}:{{port}}"

    def privilegedStartService(self) -> None:
        super().privilegedStartService()
        self.site.nats.host, self.site.nats.port = self.host, self.port

    def drain(self) -> Deferred[None]:
        return self.site.close_all(self.site.settings.drain_timeout)

    def reload(self, settings: Settings, authenticator: IAuthenticator) -> None:
        self.site.reload(settings, authenticator)


@implementer(IDoor)
class HttpDoor:
    """The HTTP door."""

    name = "http"

    def open(self, broker: Broker, options: dict[str, Any]) -> IService | None:
        return None if broker.settings.no_http else HttpService(broker)
