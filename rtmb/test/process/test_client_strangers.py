"""`rtmb.client` and servers that are something else."""

from __future__ import annotations

from typing import Any, Unpack

from twisted.internet import reactor as _reactor
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase

from rtmb.client import (
    ClientOptions,
    ConnectionFailed,
    connect,
)
from rtmb.test.support.processes import PATIENCE

reactor: Any = _reactor


class StrangersTests(TestCase):
    """Servers that are something else."""

    timeout = 3 * PATIENCE

    async def answers(
        self, said: bytes, scheme: str = "nats", **options: Unpack[ClientOptions]
    ) -> str:
        class Stranger(Protocol):
            def connectionMade(self) -> None:
                self.transport.write(said)  # type: ignore[union-attr]

        port = reactor.listenTCP(0, Factory.forProtocol(Stranger), interface="127.0.0.1")
        try:
            await connect(f"{scheme}://127.0.0.1:{port.getHost().port}", **options)
        except ConnectionFailed as error:
            return str(error)
        finally:
            await port.stopListening()
        raise self.failureException("connected")

    async def test_not_a_broker(self) -> None:
        said = await self.answers(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        self.assertIn("broke the protocol", said)
        said = await self.answers(b"", connect_timeout=0.1)
        self.assertIn("no answer within 0.1 s", said)

    async def test_not_a_websocket(self) -> None:
        said = await self.answers(
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", scheme="ws"
        )
        self.assertIn("404", said)
        said = await self.answers(b"", scheme="ws", connect_timeout=0.1)
        self.assertIn("no answer", said)
