"""What doors that listen have in common: a service that binds a TCP port, says where, stops
accepting and drains; and a factory that knows its clients and closes them all in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger

from rtmb.config import SettingsError

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: Connections that may wait to be accepted: thousands come at once when a broker comes back.
BACKLOG = 1024


class Listener(Service):
    """Listens while it runs. Doors inherit it and say in `drain` how their clients are closed."""

    log = Logger()
    #: What the log says once the port is bound.
    greeting = "listening on {host}:{port}"
    #: The option that chooses the port.
    option = "--port"

    def __init__(
        self, reactor: Any, factory: IProtocolFactory, interface: str, port: int, tls: Any = None
    ) -> None:
        self.reactor = reactor
        self.site = factory
        #: Where it listens; the port is the real one once it does.
        self.host, self.port = interface, port
        self._tls = tls
        self.listening: IListeningPort | None = None

    def privilegedStartService(self) -> None:
        """Ports are bound here, while the process may still be root."""
        super().privilegedStartService()
        where = {"backlog": BACKLOG, "interface": self.host}
        try:
            if self._tls is None:
                self.listening = self.reactor.listenTCP(self.port, self.site, **where)
            else:
                self.listening = self.reactor.listenSSL(self.port, self.site, self._tls, **where)
        except CannotListenError as error:
            reason = getattr(error.socketError, "strerror", None) or error.socketError
            raise SettingsError(
                f"cannot listen on {self.host}:{self.port}: {reason}; see {self.option}"
            ) from None
        self.port = cast(Any, self.listening).getHost().port
        self.log.info(self.greeting, host=self.host, port=self.port)

    def startService(self) -> None:
        if self.listening is None:
            self.privilegedStartService()
        super().startService()

    def stop_accepting(self) -> Deferred[None]:
        listening, self.listening = self.listening, None
        if listening is None:
            return succeed(None)
        return maybeDeferred(cast(Callable[[], Deferred[None]], listening.stopListening))

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return DeferredList([self.stop_accepting(), self.drain()]).addCallback(lambda results: None)

    def drain(self) -> Deferred[None]:
        """Flush and close the clients; fires when the last has gone."""
        return succeed(None)


class Client(Protocol):
    """One connection, as a `Crowd` sees it."""

    def close(self, *, reason: str) -> None:
        """Send what waits, and close."""

    def abort(self) -> None:
        """Close at once."""


C = TypeVar("C", bound=Client)


class Crowd(ServerFactory, Generic[C]):
    """All clients of a door, and what they share."""

    log = Logger()
    noisy = False

    def __init__(self, broker: Broker) -> None:
        self.reactor = broker.reactor
        self.hub = broker.hub
        self.system = broker.system
        self.settings = broker.settings
        self.authenticator = broker.authenticator
        self.tls = broker.tls
        self.clients: dict[int, C] = {}
        self._empty: Deferred[None] | None = None

    def client_gone(self) -> None:
        """To be called when a client has left `clients`."""
        if not self.clients and self._empty is not None:
            empty, self._empty = self._empty, None
            empty.callback(None)

    def when_empty(self) -> Deferred[None]:
        """Fires when the last client has gone."""
        if not self.clients:
            return succeed(None)
        self._empty = Deferred()
        return self._empty

    def close_all(self, timeout: float) -> Deferred[None]:
        """Flush and close every client; those that do not take it in time are cut off."""
        empty = self.when_empty()
        late = self.reactor.callLater(timeout, self._abort_all)
        for client in list(self.clients.values()):
            client.close(reason="the broker is stopping")
        return empty.addCallback(lambda _: late.cancel() if late.active() else None)

    def _abort_all(self) -> None:
        for client in list(self.clients.values()):
            client.abort()
