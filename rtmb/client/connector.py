"""How a client gets a connection: each server once, or again and again until one works."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from rtmb.client.address import ServerAddress
from rtmb.client.connection import Connection
from rtmb.client.errors import ConnectionClosed, ConnectionFailed
from rtmb.client.events import Event
from rtmb.client.options import ClientOptions
from rtmb.client.servers import ServerList
from rtmb.client.subscription import with_timeout

if TYPE_CHECKING:
    from rtmb.client.client import Client

_T = TypeVar("_T")
#: Connects to one server, and fires when it has let the client in.
Dial: TypeAlias = "Callable[[Client, ServerAddress], Deferred[Connection]]"


class Connector:
    """Dials for one client. The client hears of a connection by `_established`, and by `_finish`
    that there will be none."""

    log = Logger()

    def __init__(
        self, client: Client, servers: ServerList, options: ClientOptions, dial: Dial
    ) -> None:
        self._client = client
        self._servers = servers
        self._options = options
        self.dial = dial
        #: Spreads the clients that lost the same server.
        self.random = random.random
        #: What is waited for now.
        self._waiting: Deferred[Any] | None = None

    def cancel(self) -> None:
        """The client is closed: stop what is under way."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def once(self) -> None:
        """Try each server once."""
        why = ConnectionFailed("no server")
        for address in self._servers.all():
            try:
                await self._try(address)
                return
            except ConnectionFailed as error:
                why = error
        self._client._finish(ConnectionClosed(str(why)), tell=False)
        raise why

    def keep_trying(self, wait: float) -> None:
        """Try all servers, the next one first and after `wait` seconds, until one works."""
        trying = Deferred.fromCoroutine(self._keep_trying(wait))
        trying.addErrback(lambda failure: failure.trap(ConnectionClosed) and None)
        trying.addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        self.log.failure("cannot reconnect", failure)
        if not self._client.closed:
            self._client._finish(ConnectionClosed(failure.getErrorMessage()))

    async def _keep_trying(self, wait: float) -> None:
        client, options = self._client, self._options
        most = options["max_reconnects"]
        attempts = 0
        while not client.closed:
            if wait:
                pause = wait * (1 - self.random() / 2)
                await self._until(deferLater(client.reactor, pause))
            wait = min(wait * 2 or options["reconnect_wait"], options["reconnect_wait_max"])
            for address in self._servers.in_turn():
                attempts += 1
                try:
                    await self._try(address)
                    return
                except ConnectionFailed as error:
                    client._tell(Event("error", error=error))
                    if 0 <= most <= attempts and not client.closed:
                        why = f"gave up after {attempts} attempts: {error}"
                        client._finish(ConnectionClosed(why))
                if client.closed:
                    return

    async def _try(self, address: ServerAddress) -> None:
        client = self._client
        late = ConnectionFailed(f"{address.url}: no answer within {client.connect_timeout:g} s")
        dialing = self.dial(client, address)
        connection = await self._until(
            with_timeout(dialing, client.connect_timeout, client.reactor, late)
        )
        self._servers.choose(address)
        client._established(connection)

    async def _until(self, waiting: Deferred[_T]) -> _T:
        """Wait for something, unless the client is closed meanwhile."""
        self._waiting = waiting
        try:
            return await waiting
        except CancelledError:
            self._client._check_open()
            raise
        finally:
            self._waiting = None
