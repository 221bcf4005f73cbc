"""`rtmb.testing.MemoryBroker` for the tests of the text door: what its clients say is bytes."""

from __future__ import annotations

from typing import Any

import rtmb.testing
from rtmb.doors.nats.service import NatsFactory
from rtmb.testing.memory import MemoryTransport

__all__ = ["MemoryBroker", "MemoryTransport", "Peer"]


class Peer:
    """The other end of one connection to the text door."""

    def __init__(self, factory: NatsFactory, *, walking: bool = True) -> None:
        self.transport = MemoryTransport()
        self.protocol = factory.buildProtocol(None)
        self.protocol.walking = walking
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


class MemoryBroker(rtmb.testing.MemoryBroker):
    """A broker with no ports, whose clients are `Peer`s: tests that say each byte themselves."""

    def __init__(self, *, walking: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.walking = walking

    def connect(self, first: bytes = b"") -> Peer:  # type: ignore[override]
        """A new client that has read INFO, and said and heard the answer to `first`."""
        peer = Peer(self.factory, walking=self.walking)
        peer.heard()
        if first:
            peer.send(first)
        return peer

    def library(self, **options: Any) -> Peer:
        """A client that says it is a NATS library."""
        import json

        said = {"lang": "test", "protocol": 1, "headers": True, **options}
        return self.connect(b"CONNECT " + json.dumps(said).encode() + b"\r\n")
