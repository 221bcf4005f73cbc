"""A broker and its clients without sockets, and with a clock that the test winds."""

from __future__ import annotations

from typing import Any, Unpack

from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from rtmb.broker import Broker
from rtmb.client import Client, ClientOptions, ConnectionFailed
from rtmb.client.address import ServerAddress
from rtmb.client.connection import Connection
from rtmb.config import Settings
from rtmb.doors.nats.service import NatsService


class MemoryTransport(StringTransport):
    """A `StringTransport` whose peer reads at once, unless it is `stuck`."""

    protocol: Any
    stuck = False
    lost = False

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        super().registerProducer(producer, streaming)
        producer.resumeProducing()  # as real transports do
        self.read()

    def read(self) -> None:
        """The peer reads whatever is there."""
        while self.producer is not None and not self.stuck:
            self.producer.resumeProducing()
        if self.disconnecting and self.producer is None:
            self.lose(ConnectionDone())

    def loseConnection(self) -> None:
        self.disconnecting = True
        self.read()

    def abortConnection(self) -> None:
        super().abortConnection()
        self.lose(ConnectionAborted())

    def lose(self, why: Exception) -> None:
        """The connection ends here."""
        if not self.lost:
            self.lost = True
            self.protocol.connectionLost(Failure(why))


class _MemoryConnection:
    """The two ends of a connection."""

    def __init__(self, client: Connection, server: Any) -> None:
        self.ends = (self._end(client), self._end(server))

    @staticmethod
    def _end(protocol: Any) -> MemoryTransport:
        transport = MemoryTransport()
        transport.protocol = protocol
        protocol.makeConnection(transport)
        return transport

    def carry(self) -> bool:
        """Take what each end has written to the other; whether there was anything."""
        busy = False
        for here, there in (self.ends, self.ends[::-1]):
            data = here.value()
            here.clear()
            if data and not there.lost:
                busy = True
                there.protocol.dataReceived(data)
            if here.lost and not there.lost:
                busy = True
                there.lose(ConnectionDone())
        return busy

    @property
    def over(self) -> bool:
        return all(end.lost for end in self.ends)


class MemoryBroker:
    """A broker with no ports. Nothing moves by itself: `advance` carries all bytes to where they
    go and winds the clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock = MemoryReactorClock()
        self.clock.advance(1_000_000)
        self.broker = Broker(Settings(**settings), self.clock)
        service = self.broker.doors["nats"]
        assert isinstance(service, NatsService)
        self.service = service
        self.factory = service.factory
        self.factory.start()
        self.hub = self.broker.hub
        #: Whether new connections find the broker; see `lose_connections`.
        self.reachable = True
        self._links: list[_MemoryConnection] = []

    def connect(self, **options: Unpack[ClientOptions]) -> Client:
        """A client that is connected."""
        client = self.client(**options)
        results: list[object] = []
        client.connect().addBoth(results.append)
        self.advance()
        (result,) = results
        if isinstance(result, Failure):
            result.raiseException()
        return client

    def client(self, **options: Unpack[ClientOptions]) -> Client:
        """A client that is not connected yet."""
        options.setdefault("reactor", self.clock)
        return Client("nats://memory:4222", dial=self._dial, **options)

    def _dial(self, client: Client, address: ServerAddress) -> Deferred[Connection]:
        if not self.reachable:
            return fail(ConnectionFailed(f"{address.url}: not reachable"))
        connection = Connection(client, address)
        ready = connection.ready = Deferred(lambda _: connection.abort())
        self._links.append(_MemoryConnection(connection, self.factory.buildProtocol(None)))
        return ready

    def advance(self, seconds: float = 0.0) -> None:
        """Wind the clock, and let all that is on its way arrive."""
        self._carry()
        self.clock.advance(seconds)
        self._carry()

    def _carry(self) -> None:
        # A client sends when its turn ends, which is a call that the clock makes.
        busy = True
        while busy:
            self.clock.advance(0)
            busy = False
            for link in list(self._links):
                busy = link.carry() or busy
        self._links = [link for link in self._links if not link.over]

    def lose_connections(self, *, reachable: bool = True) -> None:
        """Every connection is lost, as when a network fails; what was on its way is gone."""
        self.reachable = reachable
        for link in self._links:
            for end in link.ends:
                end.clear()
                end.lose(ConnectionLost())
        self._links.clear()
