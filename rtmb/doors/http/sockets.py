"""WebSocket connections, on Twisted's own WebSockets, with bounds.

Twisted parses the frames and refuses what is wrong in them (no mask, reserved bits, bad lengths,
bad UTF-8). What it leaves to `Socket`: how large a message may grow, what a peer that does not read
may make us hold, and silence once the connection closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from h11 import LocalProtocolError
from twisted.python.failure import Failure
from twisted.web.server import NOT_DONE_YET, Request
from twisted.web.websocket import WebSocketResource, WebSocketTransport

from rtmb.doors.http.kit import Code, Endpoint, RefusedError, bad, header
from rtmb.doors.http.operations import Operation
from rtmb.doors.http.streams import ROOM, own_connection
from rtmb.doors.outbox import Outbox

if TYPE_CHECKING:
    from rtmb.broker import Broker

# Frames, and why a connection may be closed (RFC 6455, 5.2 and 7.4.1)

TEXT, BINARY, CLOSE, PING = 0x81, 0x82, 0x88, 0x89
NORMAL, GOING_AWAY, POLICY, TOO_BIG = 1000, 1001, 1008, 1009


def frame(kind: int, payload: bytes) -> bytes:
    """One whole frame from a server; every client gets the same bytes."""
    size = len(payload)
    if size < 126:
        return bytes((kind, size)) + payload
    if size < 1 << 16:
        return b"%c\x7e%b%b" % (kind, size.to_bytes(2, "big"), payload)
    return b"%c\x7f%b%b" % (kind, size.to_bytes(8, "big"), payload)


def close_frame(code: int, reason: str = "") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason.encode()[:123])


class TooLargeError(Exception):
    """A message grew beyond what is allowed."""


class Parts:
    """A message that comes in pieces, in place of Twisted's: it has a limit, and a piece costs
    what the piece is long."""

    def __init__(self, nothing: Any, limit: int) -> None:
        self._nothing = nothing
        self._limit = limit
        self._parts: list[Any] = []
        self._size = 0

    def add(self, new: Any) -> None:
        if new:
            self._size += len(new)
            if self._size > self._limit:
                self._parts.clear()
                raise TooLargeError
            self._parts.append(new)

    def done(self) -> Any:
        whole = self._nothing.join(self._parts)
        self._parts, self._size = [], 0
        return whole


class _Wire(Protocol):
    """What we know of Twisted's side of a connection."""

    transport: Any
    _textBuffer: Any
    _bytesBuffer: Any

    def dataReceived(self, data: bytes) -> None: ...


class Socket:
    """One WebSocket connection, and what its transport is to Twisted: the way out for answers to
    pings and closes."""

    outbox: Outbox
    _wire: _Wire

    def __init__(self, request: Request) -> None:
        self.channel: Any = request.channel
        self.raw: Any = self.channel.transport
        self.closing = False

    def opened(self) -> None:
        """The handshake has been answered."""
        raise NotImplementedError

    def take(self, limit: int, overflowed: Any, text: Any, data: Any) -> None:
        """Make the connection ours: what goes out, what comes in, and what is kept in between."""
        self.outbox = own_connection(self.channel, limit, overflowed)
        self._wire.transport = _ControlFrames(self)
        self._wire._textBuffer, self._wire._bytesBuffer = text, data
        self.channel.dataReceived = self.dataReceived

    def dataReceived(self, data: bytes) -> None:
        if self.closing:
            return
        try:
            self._wire.dataReceived(data)
        except TooLargeError:
            self.hang_up(TOO_BIG, "message too big")

    def hang_up(self, code: int, reason: str) -> None:
        """Close the WebSocket, saying why."""
        raise NotImplementedError

    def peer_closed(self, answer: bytes) -> None:
        """The peer has closed it, or broke the rules; `answer` is the last frame for it."""
        raise NotImplementedError

    # What Twisted calls

    def negotiationStarted(self, transport: WebSocketTransport) -> None:
        self._wire = cast(_Wire, transport)

    def negotiationFinished(self) -> None:
        pass  # `SocketEndpoint` calls `opened` once the answer is on its way

    def pongReceived(self, payload: bytes) -> None:
        pass

    def textMessageReceived(self, message: str) -> None:
        raise NotImplementedError

    def bytesMessageReceived(self, data: bytes | bytearray) -> None:
        raise NotImplementedError

    def connectionLost(self, reason: Failure) -> None:
        self.closing = True
        self.channel.gone()


class _ControlFrames:
    """Where Twisted writes the frames that it makes by itself."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._last = b""

    def write(self, data: bytes) -> None:
        if data[0] == CLOSE:
            self._last = bytes(data)
        # Who sends pings and reads no pongs need not get them all.
        elif not self._socket.closing and self._socket.outbox.pending < ROOM:
            self._socket.outbox.write(bytes(data))

    def loseConnection(self) -> None:
        if not self._socket.closing:
            self._socket.peer_closed(self._last)


class SocketFactory(Protocol):
    """Makes the WebSockets of one kind; Twisted asks it."""

    def buildProtocol(self, request: Request) -> Socket: ...


class SocketEndpoint(Endpoint):
    """Where WebSockets of one kind are opened."""

    def __init__(self, broker: Broker, factory: SocketFactory, about: str) -> None:
        super().__init__(broker)
        self._factory = factory
        self._about = Operation(
            about,
            answer=None,
            status=101,
            errors=(Code.BAD_REQUEST, Code.UPGRADE_REQUIRED, Code.SHUTTING_DOWN),
        )

    @property
    def operations(self) -> dict[str, Operation]:
        return {"GET": self._about}

    def render_GET(self, request: Request) -> bytes | int:
        if (header(request, b"upgrade") or "").lower() != "websocket":
            request.setHeader(b"upgrade", b"websocket")
            raise RefusedError(Code.UPGRADE_REQUIRED, "this is for WebSockets")
        self.refuse_if_leaving()
        opening = _Opening(self._factory)
        try:
            result = WebSocketResource(opening).render_GET(request)
        except (LocalProtocolError, UnicodeError):
            result = b""
        if result != NOT_DONE_YET or opening.socket is None:
            raise bad("not a WebSocket handshake")
        opening.socket.opened()
        return result


class _Opening:
    """Keeps the socket that is made for one request."""

    def __init__(self, factory: SocketFactory) -> None:
        self._factory = factory
        self.socket: Socket | None = None

    def buildProtocol(self, request: Request) -> Any:
        self.socket = self._factory.buildProtocol(request)
        return self.socket
