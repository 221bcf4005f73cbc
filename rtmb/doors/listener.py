"""A service that binds a TCP port, says where, stops accepting and drains: doors inherit it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.logger import Logger
from zope.interface import implementer

from rtmb.config import Settings, SettingsError
from rtmb.doors.session import Roster
from rtmb.interfaces import IAuthenticator, IDoorService

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: Connections that may wait to be accepted: thousands come at once when a broker comes back.
BACKLOG = 1024


@implementer(IDoorService)
class Listener(Service):
    """Listens while it runs. Doors inherit it and say in `drain` how their clients are closed."""

    log = Logger()
    #: What the log says once the port is bound.
    greeting = "listening on {host}:{port}"
    #: The option that chooses the port.
    option = "--port"

    def __init__(
        self,
        broker: Broker,
        factory: IProtocolFactory,
        port: int,
        rosters: Sequence[Roster[Any]],
        tls: Any = None,
    ) -> None:
        self.reactor = broker.reactor
        self.settings = broker.settings
        self.factory = factory
        #: All clients that came by this door.
        self.rosters = rosters
        #: Where it listens; the port is the real one once it does.
        self.host, self.port = broker.settings.interface, port
        self._tls = tls
        self.listening: IListeningPort | None = None

    def privilegedStartService(self) -> None:
        """Ports are bound here, while the process may still be root."""
        super().privilegedStartService()
        where = {"backlog": BACKLOG, "interface": self.host}
        try:
            if self._tls is None:
                self.listening = self.reactor.listenTCP(self.port, self.factory, **where)
            else:
                self.listening = self.reactor.listenSSL(self.port, self.factory, self._tls, **where)
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
        for roster in self.rosters:
            roster.start()

    def stop_accepting(self) -> Deferred[None]:
        listening, self.listening = self.listening, None
        if listening is None:
            return succeed(None)
        return maybeDeferred(cast(Callable[[], Deferred[None]], listening.stopListening))

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return all_of([self.stop_accepting(), self.drain()])

    def drain(self) -> Deferred[None]:
        """Flush and close the clients; fires when the last has gone."""
        return all_of([roster.close_all(self.settings.drain_timeout) for roster in self.rosters])

    # IDoorService

    def reload(self, settings: Settings, authenticator: IAuthenticator) -> None:
        self.settings = settings
        for roster in self.rosters:
            roster.reload(settings, authenticator)

    def enter_lame_duck(self, grace: float) -> Deferred[None]:
        """A client that is told may come back at once: by then nobody listens."""

        def closed(_: None) -> Deferred[None]:
            return all_of([roster.enter_lame_duck(grace) for roster in self.rosters])

        return self.stop_accepting().addCallback(closed)


def all_of(waiting: list[Deferred[None]]) -> Deferred[None]:
    """Fires when all of these have."""
    return DeferredList(waiting).addCallback(lambda results: None)
