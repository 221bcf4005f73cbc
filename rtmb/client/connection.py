"""One connection to one server: dialing, the handshake, TLS, and reading in bulk.

It outlives nothing: when it is lost, the `Client` makes another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.tcp import Connection as TCPConnection
from twisted.python.failure import Failure

from rtmb import __version__
from rtmb.client.address import ServerAddress, tls_options
from rtmb.client.errors import AuthenticationFailed, ConnectionFailed, ServerError, explain
from rtmb.client.message import Message
from rtmb.client.subscription import Subscription
from rtmb.codecs import nats as wire
from rtmb.codecs.nats import ProtocolError
from rtmb.core.subjects import from_raw

if TYPE_CHECKING:
    from rtmb.client.client import Client

#: Read this much at a time: each read costs a turn of the reactor (benchmarks/client.py, receive).
READ_SIZE = 256 * 1024
#: How many different lines of messages are remembered before all are forgotten.
_LINES = 4096
#: The longest line that a server may send: INFO can be long where there are many servers.
_MAX_LINE = 1 << 20
#: What servers say when they do not let a client in.
_AUTHENTICATION = ("authorization violation", "authentication", "user authentication")
#: What they say and stay.
_STAYS_OPEN = ("permissions violation", "invalid subject", "invalid publish", "maximum subscr")


class _Line(NamedTuple):
    """What the line before a payload says."""

    subscription: Subscription | None
    subject: str
    reply: str | None
    header_size: int
    size: int


class Connection(Protocol):
    """The NATS protocol, seen from a client."""

    transport: Any

    def __init__(self, client: Client, address: ServerAddress) -> None:
        self.client = client
        self.address = address
        self.info: dict[str, Any] = {}
        #: Fires when the server has let this client in.
        self.ready: Deferred[Connection] | None = None
        self.lost = False
        #: What the server said was wrong, last.
        self.error: ServerError | None = None
        #: Whether bytes are being read now: what is said meanwhile is sent afterwards.
        self.reading = False
        self._lines: dict[bytes, _Line] = {}
        self._rest: list[bytes] = []
        self._missing = 0

    # Coming and going

    def connectionMade(self) -> None:
        transport = self.transport
        if isinstance(transport, TCPConnection):  # and not a WebSocket, or a test
            transport.bufferSize = READ_SIZE
            transport.setTcpNoDelay(True)
            transport.setTcpKeepAlive(True)
        if self.client.tls_first and not self.address.websocket:
            self._start_tls()

    def connectionLost(self, reason: Failure = Failure(ConnectionDone())) -> None:  # noqa: B008
        if self.lost:
            return
        self.lost = True
        if self.ready is not None:
            ready, self.ready = self.ready, None
            ready.errback(self._why(reason))
        else:
            self.client._lost(self, self.error or reason.value)

    def _why(self, reason: Failure) -> Exception:
        """Why this server could not be used."""
        where = self.address.url
        if self.error is not None:
            said = str(self.error)
            kind = AuthenticationFailed if _is_refusal(said) else ConnectionFailed
            return kind(f"{where}: {said}")
        if reason.check(ConnectionDone):
            return ConnectionFailed(f"{where}: the server closed the connection")
        return ConnectionFailed(f"{where}: {explain(reason.value)}")

    def give_up(self, why: Exception) -> None:
        """There will be no connection."""
        self.lost = True
        if self.ready is not None:
            ready, self.ready = self.ready, None
            ready.errback(why)

    def abort(self) -> None:
        if not self.lost and self.transport is not None:
            self.transport.abortConnection()

    def forget_lines(self) -> None:
        """Subscriptions have changed: the lines that are known may be wrong."""
        self._lines.clear()

    # The handshake

    def _start_tls(self) -> bool:
        try:
            options = tls_options(self.client.tls, self.address.host)
        except (OSError, ValueError) as error:
            self._refuse(str(error))
            return False
        self.transport.startTLS(options)
        return True

    def _first_info(self) -> None:
        info = self.info
        client, address = self.client, self.address
        if not address.websocket and not client.tls_first:
            offered = info.get("tls_required") or info.get("tls_available")
            wanted = address.secure or client.tls not in (None, False)
            if wanted and not offered:
                self._refuse("the server has no TLS")
                return
            if (wanted or info.get("tls_required")) and not self._start_tls():
                return
        self.transport.write(
            wire.connect(
                {
                    "verbose": False,
                    "pedantic": False,
                    "lang": "python-twisted",
                    "version": __version__,
                    "protocol": 1,
                    "headers": True,
                    "no_responders": True,
                    "echo": client.echo,
                    **({"name": client.name} if client.name else {}),
                    **client.login.fields(address, info),
                }
            )
            + wire.PING
        )

    def _refuse(self, why: str) -> None:
        """This server cannot be used."""
        if self.error is None:
            self.error = ServerError(why)
        self.abort()

    # Reading

    def dataReceived(self, data: bytes) -> None:
        if self._missing > len(data):
            self._rest.append(data)
            self._missing -= len(data)
            return
        if self._rest:
            data = b"".join([*self._rest, data])
            self._rest.clear()
        self._missing = 0
        self.reading = True
        try:
            end = self._walk(data)
            if end < len(data):
                self._rest.append(data[end:])
            self.client._subscriptions.all_read()
        except ProtocolError as error:
            self._refuse(f"the server broke the protocol: {error.text}")
            return
        finally:
            self.reading = False
        self.client._turn()

    def _walk(self, data: bytes) -> int:
        """Deal with all that is whole; where the rest begins."""
        client, lines, find = self.client, self._lines, data.find
        length, position = len(data), 0
        messages = size_of_all = 0
        while not self.lost:
            end = find(b"\r\n", position)
            if end < 0:
                if length - position > _MAX_LINE:
                    raise ProtocolError("a line without an end")
                break
            line = data[position:end]
            known = lines.get(line)
            if known is None:
                known = self._line(line)
                if known is None:
                    position = end + 2
                    continue
            subscription, subject, reply, header_size, size = known
            start = end + 2
            position_after = start + size + 2
            if position_after > length:
                self._missing = position_after - length
                break
            block = None
            if header_size:
                block = data[start : start + header_size]
                start += header_size
            payload = data[start : position_after - 2]
            position = position_after
            messages += 1
            size_of_all += size
            if subscription is not None:
                subscription.receive(Message(client, subject, payload, reply, block))
        client.stats.in_msgs += messages
        client.stats.in_bytes += size_of_all
        return position

    def _line(self, line: bytes) -> _Line | None:
        """A line that is not known: what it says of a payload, or None if there is none."""
        operation, arguments = wire.split_line(line)
        if operation == b"MSG":
            publication = wire.parse_msg(arguments)
        elif operation == b"HMSG":
            publication = wire.parse_hmsg(arguments)
        else:
            self._control(operation, arguments)
            return None
        subject, reply, header_size, size, sid = publication
        known = _Line(
            self.client._subscriptions.get(sid),
            from_raw(subject),
            from_raw(reply) if reply is not None else None,
            header_size,
            size,
        )
        if reply is None:  # those with a reply do not come twice
            if len(self._lines) >= _LINES:
                self._lines.clear()
            self._lines[line] = known
        return known

    def _control(self, operation: bytes, arguments: bytes) -> None:
        client = self.client
        if operation == b"PING":
            client._say(wire.PONG) if self.ready is None else self.transport.write(wire.PONG)
        elif operation == b"PONG":
            if self.ready is not None:
                ready, self.ready = self.ready, None
                ready.callback(self)
            else:
                client._confirmations.pong()
        elif operation == b"INFO":
            first = not self.info
            self.info = wire.parse_json_object(arguments)
            if first:
                self._first_info()
            else:
                client._informed(self.info)
        elif operation == b"-ERR":
            said = wire.parse_err(arguments)
            error = ServerError(said) if self.ready is not None else client._error(said)
            if not said.lower().startswith(_STAYS_OPEN):
                self.error = error
        elif operation not in (b"+OK", b""):
            raise ProtocolError(f"unknown operation {operation[:20]!r}")


def _is_refusal(said: str) -> bool:
    return said.lower().startswith(_AUTHENTICATION)


def dial(client: Client, address: ServerAddress) -> Deferred[Connection]:
    """Connect to a server; fires when it has let the client in."""
    connection = Connection(client, address)
    dialing: Deferred[Any]
    if address.websocket:
        # Not at the top: twisted.web takes a while, and few need it.
        from rtmb.client.websocket import open_websocket

        dialing = ensureDeferred(open_websocket(client, address, connection))
    else:
        endpoint = HostnameEndpoint(
            client.reactor, address.host, address.port, timeout=client.connect_timeout
        )
        factory = Factory.forProtocol(lambda: connection)
        factory.noisy = False
        dialing = endpoint.connect(factory)

    def cannot(failure: Failure) -> None:
        why = failure.value
        if not isinstance(why, ConnectionFailed):
            why = ConnectionFailed(f"{address.url}: {explain(why)}")
        connection.give_up(why)

    def cancel(ready: Deferred[Connection]) -> None:
        connection.ready = None
        dialing.cancel()
        connection.abort()

    ready = connection.ready = Deferred(cancel)
    dialing.addErrback(cannot)
    return ready
