"""A broker without sockets and with a clock that the test winds: for tests of one process."""

from __future__ import annotations

from typing import Any

from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from rtmb.config import Settings
from rtmb.doors.nats import NatsFactory, NatsProtocol, NatsService
from rtmb.service import Broker


class MemoryTransport(StringTransport):
    """A `StringTransport` whose peer reads at once, unless it is `stuck`."""

    protocol: NatsProtocol
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
            self._lose(ConnectionDone())

    def loseConnection(self) -> None:
        self.disconnecting = True
        self.read()

    def abortConnection(self) -> None:
        super().abortConnection()
        self._lose(ConnectionAborted())

    def _lose(self, why: Exception) -> None:
        if not self.lost:
            self.lost = True
            self.protocol.connectionLost(Failure(why))


class Peer:
    """The other end of one connection to the text door."""

    def __init__(self, factory: NatsFactory, *, bulk: bool = True) -> None:
        self.transport = MemoryTransport()
        self.protocol = factory.buildProtocol(None)
        self.protocol.bulk = bulk
        self.transport.protocol = self.protocol
        self.protocol.makeConnection(self.transport)

    def send(self, data: bytes) -> bytes:
        """Say something; returns what the broker has said since the last time."""
        self.protocol.dataReceived(data)
        return self.heard()

    def heard(self) -> bytes:
        said: bytes = self.transport.value()
        self.transport.clear()
        return said

    @property
    def closed(self) -> bool:
        return self.transport.lost

    def leave(self) -> None:
        self.transport.loseConnection()


class MemoryBroker:
    """A broker with no ports."""

    def __init__(self, *, bulk: bool = True, **settings: Any) -> None:
        self.clock = MemoryReactorClock()
        self.clock.advance(1_000_000)
        self.bulk = bulk
        self.broker = Broker(Settings(**settings), self.clock)
        service = self.broker.getServiceNamed("nats")
        assert isinstance(service, NatsService)
        self.service = service
        self.factory = service.factory
        self.factory.doStart()
        self.hub = self.broker.hub

    def connect(self, first: bytes = b"") -> Peer:
        """A new client that has read INFO, and said and heard the answer to `first`."""
        peer = Peer(self.factory, bulk=self.bulk)
        peer.heard()
        if first:
            peer.send(first)
        return peer

    def library(self, **options: Any) -> Peer:
        """A client that says it is a NATS library."""
        import json

        said = {"lang": "test", "protocol": 1, "headers": True, **options}
        return self.connect(b"CONNECT " + json.dumps(said).encode() + b"\r\n")
