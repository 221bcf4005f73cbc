"""NATS over WebSocket: a `Connection` whose bytes travel in binary frames."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.python.failure import Failure
from twisted.web.iweb import IPolicyForHTTPS
from twisted.web.websocket import ConnectionRejected, WebSocketClientEndpoint
from zope.interface import implementer

from rtmb.client.address import ServerAddress, Tls, tls_options
from rtmb.client.errors import ConnectionFailed

if TYPE_CHECKING:
    from rtmb.client.client import Client
    from rtmb.client.connection import Connection


class WebSocketStream:
    """Looks like a `WebSocketProtocol` to Twisted and like a transport to the `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._frames: Any = None

    # WebSocketProtocol

    def negotiationStarted(self, transport: Any) -> None:
        self._frames = transport

    def negotiationFinished(self) -> None:
        self._connection.makeConnection(self)

    def pongReceived(self, payload: bytes) -> None:
        """Not asked for: the protocol inside has its own."""

    def textMessageReceived(self, message: str) -> None:
        self._connection.dataReceived(message.encode())

    def bytesMessageReceived(self, data: bytes | bytearray) -> None:
        self._connection.dataReceived(bytes(data))

    def connectionLost(self, reason: Failure) -> None:
        self._connection.connectionLost(reason)

    # A transport

    def write(self, data: bytes) -> None:
        self._frames.sendBytesMessage(data)

    def loseConnection(self) -> None:
        self._frames.loseConnection()

    def abortConnection(self) -> None:
        if self._frames is not None:
            self._frames.transport.abortConnection()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._frames.transport.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        self._frames.transport.unregisterProducer()


class _Streams:
    """What Twisted makes the one stream with."""

    def __init__(self, stream: WebSocketStream) -> None:
        self._stream = stream

    def buildProtocol(self, url: str) -> WebSocketStream:
        return self._stream


@implementer(IPolicyForHTTPS)
class TrustPolicy:
    """Whom Twisted's HTTP clients trust."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls

    def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:
        options: IOpenSSLClientConnectionCreator = tls_options(self._tls, hostname.decode())
        return options


async def open_websocket(client: Client, address: ServerAddress, connection: Connection) -> None:
    host = f"[{address.host}]" if ":" in address.host else address.host
    url = f"{address.scheme}://{host}:{address.port}{address.path}"
    endpoint = WebSocketClientEndpoint.new(
        client.reactor,
        url,
        TrustPolicy(client.tls),
        connectTimeout=math.ceil(client.connect_timeout),
    )
    stream = WebSocketStream(connection)
    try:
        await endpoint.connect(_Streams(stream))
    except Exception as error:
        stream.abortConnection()  # Twisted leaves it open
        if isinstance(error, ConnectionRejected):
            status = error.response.code
            raise ConnectionFailed(
                f"{address.url}: it answers with HTTP status {status}, not a WebSocket"
            ) from None
        raise
