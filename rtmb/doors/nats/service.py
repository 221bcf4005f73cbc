"""The text door as a service: all its clients, the port, and what INFO tells them."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import ServerFactory
from zope.interface import implementer

from rtmb import __version__
from rtmb.doors.listener import Listener
from rtmb.doors.nats.connection import NatsConnection
from rtmb.doors.nats.protocol import NatsProtocol
from rtmb.doors.session import Roster
from rtmb.interfaces import IDoor, IDoorService

if TYPE_CHECKING:
    from rtmb.broker import Broker


class NatsFactory(Roster[NatsProtocol], ServerFactory):
    """All clients of the text door, and what they share: the hub with its trie and queue groups,
    the limits, the timers."""

    noisy = False

    def __init__(self, broker: Broker, tls: Any = None) -> None:
        super().__init__(broker)
        self.server_id = broker.server_id
        self.server_name = broker.name
        self.tls = tls
        #: The address that INFO tells; set when the port is known.
        self.host, self.port = self.settings.interface, self.settings.port

    def buildProtocol(self, addr: IAddress | None) -> NatsProtocol:  # type: ignore[override]
        return NatsProtocol(self)

    def info_for(self, client: NatsConnection) -> dict[str, Any]:
        settings, tls = self.settings, self.tls is not None
        found: dict[str, Any] = {
            "server_id": self.server_id,
            "server_name": self.server_name,
            "version": __version__,
            "go": f"python{platform.python_version()}",
            "host": self.host,
            "port": self.port,
            "headers": True,
            "max_payload": settings.max_payload,
            "proto": 1,
            "client_id": client.number,
            "client_ip": client.host,
        }
        if self.authenticator.required:
            found["auth_required"] = True
        if self.authenticator.nonce_needed:
            found["nonce"] = client.nonce()
        if tls:
            found["tls_required"] = True
            found["tls_verify"] = settings.tls_verify
        if self.clients.leaving:
            found["ldm"] = True
        return found


class NatsService(Listener):
    """Listens for the text door."""

    greeting = "text door: nats://{host}:{port}"
    factory: NatsFactory

    def __init__(self, broker: Broker) -> None:
        factory = NatsFactory(broker, broker.tls)
        super().__init__(broker, factory, broker.settings.port, [factory])

    def privilegedStartService(self) -> None:
        super().privilegedStartService()
        self.factory.host, self.factory.port = self.host, self.port


@implementer(IDoor)
class NatsDoor:
    """The text door."""

    name = "nats"

    def open(self, broker: Broker, options: dict[str, Any]) -> IDoorService | None:
        return NatsService(broker)
