"""A client as a part of a Twisted application."""

from __future__ import annotations

from typing import Unpack

from twisted.application.service import Service
from twisted.internet.defer import Deferred

from rtmb.client.client import Client
from rtmb.client.options import ClientOptions


class ClientService(Service):
    """A client that connects when the service starts, however long that takes, and drains when it
    stops. It can be published and subscribed with before and while it connects."""

    #: Seconds that stopping may take while messages wait to be read or sent.
    drain_timeout = 5.0

    def __init__(
        self, url: str = "nats://127.0.0.1:4222", **options: Unpack[ClientOptions]
    ) -> None:
        self._url, self._settings = url, options
        self.client = Client(url, **options)

    def startService(self) -> None:
        super().startService()
        if self.client.closed:  # started again
            self.client = Client(self._url, **self._settings)
        self.client.start()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return self.client.drain(self.drain_timeout)

    def when_connected(self) -> Deferred[Client]:
        return self.client.when_connected()
