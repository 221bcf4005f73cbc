"""The HTTP door: requests, WebSockets, event streams, monitoring and the page, on one port.

`HttpSite` is all connections of the door, with the table of what stands at which path;
`HttpService` runs it, `HttpDoor` makes a service of it. docs/http.md tells what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, succeed
from twisted.web.server import Request, Site
from zope.interface import implementer

from rtmb.config import Settings
from rtmb.doors.http.access import Access
from rtmb.doors.http.api_page import ApiPage, api_page
from rtmb.doors.http.connection import HttpChannel, HttpRequest
from rtmb.doors.http.connz import Connection, Connz, Leafz
from rtmb.doors.http.journal import journal_table
from rtmb.doors.http.json_socket import JsonSocketFactory
from rtmb.doors.http.kit import Endpoint
from rtmb.doors.http.metrics import Metrics
from rtmb.doors.http.monitor import Healthz, Ratez, Routez, Subsz, Varz
from rtmb.doors.http.nats_socket import NatsSocketEndpoint
from rtmb.doors.http.openapi import Description, asyncapi, openapi
from rtmb.doors.http.page import Page
from rtmb.doors.http.rest import rest_table
from rtmb.doors.http.router import NotFound, Router
from rtmb.doors.http.sockets import SocketEndpoint
from rtmb.doors.http.sse import Events
from rtmb.doors.http.streams import Streams
from rtmb.doors.http.topicz import Topicz
from rtmb.doors.http.visitors import Visitors
from rtmb.doors.listener import Listener, all_of
from rtmb.doors.nats.service import NatsFactory
from rtmb.doors.session import Roster
from rtmb.interfaces import IAuthenticator, IDoor, IDoorService

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: Seconds that a connection may be silent between requests, or in the middle of one.
IDLE = 60


class HttpSite(Site):
    """All connections of the door, and what they share."""

    protocol = HttpChannel  # type: ignore[assignment]
    noisy = False

    def __init__(self, broker: Broker) -> None:
        self.hub = broker.hub
        self.clients = broker.clients
        self.settings = broker.settings
        self.access = Access(broker.settings, broker.authenticator)
        self.streams = Streams(broker, self)
        self.visitors = Visitors(broker, self)
        #: NATS clients over WebSockets. TLS is the door's business, not theirs.
        self.nats = NatsFactory(broker)
        self.channels: set[HttpChannel] = set()
        #: Bytes of all bodies that are held just now.
        self.bodies = 0
        self._empty: Deferred[None] | None = None
        self.router = Router(self._table(broker), NotFound(broker))
        super().__init__(
            NotFound(broker),
            requestFactory=HttpRequest,
            reactor=broker.reactor,
            timeout=IDLE,
            parsePOSTFormSubmission=False,
        )

    def _table(self, broker: Broker) -> dict[str, Endpoint]:
        """What stands where."""
        nats = NatsSocketEndpoint(broker, self)
        requests, sockets, page = Description(broker), Description(broker), ApiPage(broker)
        table: dict[str, Endpoint] = {
            "/": Page(broker, nats),
            "/nats": nats,
            "/ws": SocketEndpoint(broker, JsonSocketFactory(self.streams), "JSON over WebSocket"),
            "/events/{pattern}": Events(broker, self.streams),
            **rest_table(broker, self.visitors),
            "/healthz": Healthz(broker),
            "/varz": Varz(broker),
            "/connz": Connz(broker),
            "/connections/{cid}": Connection(broker),
            "/subsz": Subsz(broker),
            "/topicz": Topicz(broker),
            "/ratez": Ratez(broker),
            "/routez": Routez(broker),
            "/leafz": Leafz(broker),
            "/metrics": Metrics(broker),
            **journal_table(broker),
            "/openapi.json": requests,
            "/asyncapi.json": sockets,
            "/api": page,
        }
        requests.document, sockets.document = openapi(table), asyncapi()
        page.page = api_page(requests.document, sockets.document).encode()
        return table

    def getResourceFor(self, request: Request) -> Endpoint:
        assert isinstance(request, HttpRequest)
        return request.endpoint

    def acceptableProtocols(self) -> list[bytes]:
        return [b"http/1.1"]  # what WebSockets and event streams are made on here

    def log(self, request: object) -> None:
        """A line for each request would cost more than the request."""

    def reload(self, settings: Settings, authenticator: IAuthenticator) -> None:
        """Take a new key, users, permissions and limits."""
        self.settings = settings
        self.access = Access(settings, authenticator)

    # Ending

    def channel_gone(self, channel: HttpChannel) -> None:
        self.channels.discard(channel)
        if not self.channels and self._empty is not None:
            empty, self._empty = self._empty, None
            empty.callback(None)

    def close_channels(self, timeout: float) -> Deferred[None]:
        """Close the connections on which requests come; those that do not end in time, of clients
        that stay as well, are cut off. Fires when the last has gone."""
        if not self.channels:
            return succeed(None)
        self._empty = empty = Deferred[None]()
        late = self.reactor.callLater(timeout, self._abort_all)
        for channel in list(self.channels):
            if not channel.taken:
                channel.finish_up()
        return empty.addCallback(lambda _: late.cancel() if late.active() else None)

    def _abort_all(self) -> None:
        for channel in list(self.channels):
            channel.transport.abortConnection()


class HttpService(Listener):
    """Listens for the HTTP door."""

    option = "--http-port"

    def __init__(self, broker: Broker) -> None:
        self.site = site = HttpSite(broker)
        rosters: list[Roster[Any]] = [site.streams, site.nats, site.visitors]
        super().__init__(broker, site, broker.settings.http_port, rosters, broker.tls)
        scheme = "http" if broker.tls is None else "https"
        self.greeting = f"http door: {scheme}://{{host}}:{{port}}"

    def privilegedStartService(self) -> None:
        super().privilegedStartService()
        self.site.nats.host, self.site.nats.port = self.host, self.port

    def reload(self, settings: Settings, authenticator: IAuthenticator) -> None:
        self.site.reload(settings, authenticator)
        super().reload(settings, authenticator)

    def enter_lame_duck(self, grace: float) -> Deferred[None]:
        """The port stays open: ``/healthz`` says there that the broker is about to stop. Plain
        requests are answered to the end; whoever wants to stay is refused."""
        staying = (self.site.streams, self.site.nats)
        return all_of([roster.enter_lame_duck(grace) for roster in staying])

    def drain(self) -> Deferred[None]:
        timeout = self.settings.drain_timeout
        return all_of([super().drain(), self.site.close_channels(timeout)])


@implementer(IDoor)
class HttpDoor:
    """The HTTP door."""

    name = "http"

    def open(self, broker: Broker, options: dict[str, Any]) -> IDoorService | None:
        return None if broker.settings.no_http else HttpService(broker)
