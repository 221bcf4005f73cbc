"""Help for tests of the msgpack door: its frames, and a client of a broker in memory."""

from __future__ import annotations

from typing import Any

import msgpack
from twisted.trial.unittest import SynchronousTestCase

from rtmb.doors.msgpack.service import MsgpackService
from rtmb.test.support.memory import MemoryBroker, MemoryTransport


def packed(value: Any) -> bytes:
    data: bytes = msgpack.packb(value)
    return data


def publish(topic: str, value: Any) -> bytes:
    return packed({"Publish": [[topic, value]]})


def subscribe(pattern: str) -> bytes:
    return packed({"Subscribe": [pattern]})


def unsubscribe(pattern: str) -> bytes:
    return packed({"Unsubscribe": [pattern]})


def decoded(data: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(data)
    return list(unpacker)


class Client:
    """The other end of one connection to the msgpack door."""

    def __init__(self, service: MsgpackService, *frames: bytes) -> None:
        self.transport = MemoryTransport()
        self.protocol: Any = service.factory.buildProtocol(None)
        self.transport.protocol = self.protocol
        self.protocol.makeConnection(self.transport)
        self.send(*frames)

    def send(self, *frames: bytes) -> list[Any]:
        """Say something; returns what has come since the last time."""
        if frames:
            self.protocol.dataReceived(b"".join(frames))
        return self.heard()

    def raw(self) -> bytes:
        data: bytes = self.transport.value()
        self.transport.clear()
        return data

    def heard(self) -> list[Any]:
        return decoded(self.raw())

    @property
    def closed(self) -> bool:
        return self.transport.lost

    def read(self) -> list[Any]:
        """Begin to read again, until nothing more comes."""
        self.transport.stuck = False
        self.transport.read()
        while self.protocol.stalled:
            self.protocol.roster.reactor.advance(0)
        return self.heard()


class InMemory(SynchronousTestCase):
    def start(self, **options: Any) -> MemoryBroker:
        self.memory = MemoryBroker(**options)
        service = self.memory.broker.getServiceNamed("msgpack")
        assert isinstance(service, MsgpackService)
        self.service = service
        self.hub = self.memory.hub
        return self.memory

    def setUp(self) -> None:
        self.start()

    def client(self, *frames: bytes) -> Client:
        return Client(self.service, *frames)
