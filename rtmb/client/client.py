"""The client: publishing, subscribing, asking, and what happens when a connection comes or goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from twisted.internet.defer import Deferred, DeferredList, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall

from rtmb.client.address import Login
from rtmb.client.confirmations import Confirmations
from rtmb.client.connection import Connection, dial
from rtmb.client.connector import Connector, Dial
from rtmb.client.errors import (
    BufferFull,
    ClientError,
    ConnectionClosed,
    Disconnected,
    PayloadTooLarge,
    PermissionViolation,
    RequestTimeout,
    ServerError,
    Timeout,
)
from rtmb.client.events import Event, EventReporter
from rtmb.client.message import HeadersLike, Message, header_block
from rtmb.client.options import ClientOptions, Stats, with_defaults
from rtmb.client.outgoing import PIECE, Outgoing
from rtmb.client.publications import (
    PublicationStarts,
    check_subscription,
    payload_bytes,
    subject_bytes,
)
from rtmb.client.requests import Requests
from rtmb.client.servers import ServerList
from rtmb.client.subscription import (
    PENDING_BYTES,
    PENDING_MESSAGES,
    Callback,
    Subscription,
    with_timeout,
)
from rtmb.client.subscriptions import SubscriptionTable
from rtmb.codecs import nats as wire

#: What a server takes in one message, until it has said so itself.
_MAX_PAYLOAD = 1 << 20
#: How long a closing connection may take to send its last bytes.
_LINGER = 5.0


class Client:
    """A client of one broker, or of one at a time of several.

    Use `connect` to make one that is connected. Subscriptions last across reconnects."""

    def __init__(
        self,
        url: str = "nats://127.0.0.1:4222",
        *,
        dial: Dial = dial,
        **options: Unpack[ClientOptions],
    ) -> None:
        chosen = with_defaults(options)
        reactor = chosen["reactor"]
        if reactor is None:
            from twisted.internet import reactor
        self.reactor = reactor
        self.name = chosen["name"]
        self.echo = chosen["echo"]
        self.tls = chosen["tls"]
        self.tls_first = chosen["tls_first"]
        self.connect_timeout = chosen["connect_timeout"]
        self.login = Login.from_options(chosen)
        self.stats = Stats()
        #: What the server said of itself, last.
        self.server_info: Mapping[str, Any] = {}
        self._options = chosen
        self._tell = EventReporter(chosen["name"], chosen["on_event"]).report

        self._servers = ServerList(url, chosen["servers"])
        self._connector = Connector(self, self._servers, chosen, dial)
        self._connection: Connection | None = None
        self._connected_before = False
        self._closed: ConnectionClosed | None = None
        self._closing: list[Deferred[None]] = []
        self._linger: IDelayedCall | None = None
        self._when_connected: list[Deferred[Client]] = []

        self._outgoing = Outgoing(chosen["pending_limit"])
        self._scheduled = False
        self._starts = PublicationStarts()
        self._max_payload = _MAX_PAYLOAD
        self._confirmations = Confirmations()
        self._beat = LoopingCall(self._ping)
        self._beat.clock = reactor

        self._subscriptions = SubscriptionTable()
        self._requests = Requests()
        self._answers: Subscription | None = None

    def __repr__(self) -> str:
        return f"<Client {self.name or 'unnamed'} {self.connected_url or 'not connected'}>"

    @property
    def connected_url(self) -> str | None:
        """The server that this client is connected to, without secrets."""
        return self._connection.address.url if self._connection is not None else None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def closed(self) -> bool:
        return self._closed is not None

    @property
    def pending(self) -> int:
        """Bytes that wait to be sent."""
        return self._outgoing.size

    # Connecting

    def connect(self) -> Deferred[Client]:
        """Try each server once; fires with this client, or fails with `ConnectionFailed`."""
        return Deferred.fromCoroutine(self._connector.once()).addCallback(lambda _: self)

    def start(self) -> None:
        """Begin to connect, and go on trying until it works."""
        self._connector.keep_trying(0.0)

    def when_connected(self) -> Deferred[Client]:
        """Fires when there is a connection; fails when there will be none."""
        if self._closed is not None:
            return fail(self._closed)
        if self._connection is not None:
            return succeed(self)
        waiting: Deferred[Client] = Deferred()
        self._when_connected.append(waiting)
        return waiting

    def _established(self, connection: Connection) -> None:
        if self._closed is not None:
            connection.abort()
            return
        self._connection = connection
        self._informed(connection.info)
        outgoing = self._outgoing
        outgoing.attach(connection.transport)
        again = self._connected_before
        self._connected_before = True
        if self._subscriptions:
            outgoing.say(self._subscriptions.announce(), first=True)
        for waiting in self._confirmations.connected():
            self._send_ping(waiting)
        outgoing.flush()
        self._beat.start(self._options["ping_interval"], now=False)
        if again:
            self.stats.reconnects += 1
        self._tell(Event("reconnected" if again else "connected", url=connection.address.url))
        waiting_for_it, self._when_connected = self._when_connected, []
        for one in waiting_for_it:
            one.callback(self)

    def _informed(self, info: Mapping[str, Any]) -> None:
        """The server has said what it is, or what has changed."""
        leaving = info.get("ldm") and not self.server_info.get("ldm")
        self.server_info = info
        limit = info.get("max_payload")
        self._max_payload = limit if isinstance(limit, int) and limit > 0 else _MAX_PAYLOAD
        if self._connection is not None:
            self._servers.learn(info, self._connection.address)
        if leaving and self._connection is not None:
            self._tell(Event("lame_duck", url=self._connection.address.url))

    # Losing the connection

    def _lost(self, connection: Connection, why: BaseException | None) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if self._beat.running:
            self._beat.stop()
        outgoing = self._outgoing
        outgoing.detach()
        self._confirmations.lost(outgoing.total - outgoing.size)
        if self._closed is not None:
            self._gone()
            return
        error = why if isinstance(why, Exception) else None
        self._tell(Event("disconnected", url=connection.address.url, error=error))
        if not self._options["reconnect"] or self._options["max_reconnects"] == 0:
            self._finish(ConnectionClosed(f"the connection to {connection.address.url} was lost"))
        elif self._closed is None:
            self._connector.keep_trying(self._options["reconnect_wait"])

    # Closing

    def close(self) -> Deferred[None]:
        """Send what waits, and close. What was received can still be read."""
        closing: Deferred[None] = Deferred()
        self._closing.append(closing)
        if self._closed is None:
            self._finish(ConnectionClosed("the client is closed"), asked=True)
        elif self._connection is None:
            self._gone()
        return closing

    def drain(self, timeout: float = 30.0) -> Deferred[None]:
        """Close when all that was received has been read and all that was published has arrived."""
        if self._closed is not None or (self._connection is None and not self._outgoing.size):
            return self.close()
        ends = [s.drain(timeout) for s in self._subscriptions.all()]
        waiting: Deferred[Any] = DeferredList(ends, consumeErrors=True)
        waiting.addCallback(lambda _: self._confirm(timeout))
        return waiting.addBoth(lambda _: self.close())

    def _finish(self, why: ConnectionClosed, *, asked: bool = False, tell: bool = True) -> None:
        """No more connections, because someone `asked` for it or because it cannot be helped."""
        self._closed = why
        self._connector.cancel()
        for subscription in self._subscriptions.all():
            self._forget(subscription)
            subscription.end(None if asked else why)
        self._requests.fail(why)
        self._confirmations.fail(why)
        connecting, self._when_connected = self._when_connected, []
        for waiting in connecting:
            waiting.errback(why)
        connection = self._connection
        if connection is None:
            self._outgoing.fail(why)
        else:
            self._outgoing.flush()
            connection.transport.loseConnection()
            self._linger = self.reactor.callLater(_LINGER, connection.abort)
        if tell:
            self._tell(Event("closed", error=None if asked else why))
        if connection is None:
            self._gone()

    def _gone(self) -> None:
        """The last connection has closed."""
        assert self._closed is not None
        if self._linger is not None and self._linger.active():
            self._linger.cancel()
        self._outgoing.fail(self._closed)
        closing, self._closing = self._closing, []
        for one in closing:
            one.callback(None)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    # Publishing

    def publish(
        self,
        subject: str,
        payload: bytes | str = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """Send a message, soon: all of one turn of the reactor go together. `flush` tells whether
        they arrived. While there is no connection they wait, within `pending_limit`."""
        if self._closed is not None:
            raise self._closed
        start = self._starts[subject]
        if type(payload) is not bytes:
            payload = payload_bytes(payload)
        size = len(payload)
        if headers:
            block = header_block(headers)
            answer = subject_bytes(reply) if reply is not None else None
            data = wire.hpub(start[4:-1], answer, block, payload)
            size += len(block)
        elif reply is None:
            data = b"%b%d\r\n%b\r\n" % (start, size, payload)
        else:
            data = b"%b%b %d\r\n%b\r\n" % (start, subject_bytes(reply), size, payload)
        if size > self._max_payload:
            raise PayloadTooLarge(f"{size} bytes: the server takes {self._max_payload}")
        outgoing = self._outgoing
        if outgoing.joined + outgoing.batch_size + size > outgoing.limit:
            raise BufferFull(f"{outgoing.size} bytes wait to be sent already")
        stats = self.stats
        stats.out_msgs += 1
        stats.out_bytes += size
        outgoing.batch.append(data)
        outgoing.batch_size += len(data)
        if outgoing.batch_size >= PIECE:
            outgoing.flush()
        elif not self._scheduled:
            self._schedule()

    def _say(self, data: bytes) -> None:
        """Tell the server something, if there is one: with the next it is told anew."""
        if self._connection is not None:
            self._outgoing.say(data)
            if not self._scheduled:
                self._schedule()

    def _schedule(self) -> None:
        connection = self._connection
        if connection is not None and not connection.reading:
            self._scheduled = True
            self.reactor.callLater(0, self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self._outgoing.flush()

    def ready(self) -> Deferred[None]:
        """Fires when little waits to be sent: what a fast publisher should wait for now and then,
        so that `pending_limit` is not reached."""
        if self._closed is not None:
            return fail(self._closed)
        self._outgoing.flush()
        return self._outgoing.ready()

    def flush(self, timeout: float = 10.0) -> Deferred[None]:
        """Fires when the server has dealt with all that was published and subscribed before. Fails
        with `Timeout`, or `Disconnected` when a connection was lost since the last time with
        messages on it that no server confirmed: these may be missing."""
        if self._closed is not None:
            return fail(self._closed)
        if self._confirmations.in_doubt():
            return fail(
                Disconnected("a connection was lost since the last flush, and maybe messages")
            )
        return self._confirm(timeout)

    def _confirm(self, timeout: float) -> Deferred[None]:
        if self._closed is not None:
            return fail(self._closed)
        waiting: Deferred[None] = Deferred()
        if self._connection is None:
            self._confirmations.wait_for_connection(waiting)
        else:
            self._send_ping(waiting)
            if not self._connection.reading:
                self._outgoing.flush()
        late = Timeout(f"the server did not answer within {timeout:g} s")
        return with_timeout(waiting, timeout, self.reactor, late)

    def _send_ping(self, waiting: Deferred[None] | None) -> None:
        self._confirmations.sent(self._outgoing.total, waiting)
        self._say(wire.PING)

    def _ping(self) -> None:
        """Called every `ping_interval`."""
        connection, confirmations = self._connection, self._confirmations
        if connection is None:
            return
        if confirmations.unanswered >= self._options["max_pings_out"]:
            connection.error = ServerError(f"{confirmations.unanswered} PINGs were not answered")
            connection.abort()
            return
        confirmations.unanswered += 1
        self._send_ping(None)

    # Subscribing

    def subscribe(
        self,
        subject: str,
        *,
        queue: str | None = None,
        callback: Callback | None = None,
        last: bool = False,
        replay: int = 0,
        pending_messages: int = PENDING_MESSAGES,
        pending_bytes: int = PENDING_BYTES,
    ) -> Subscription:
        """Receive what is published on a subject or pattern, now and after each reconnect.

        With `queue`, each message goes to one member of that queue group. With `last`, the last
        message of each subject comes first; with `replay`, the last so many (rtmb only). See
        `Subscription` for `callback` and what may be pending."""
        self._check_open()
        check_subscription(subject, queue)
        subscription = Subscription(
            self,
            subject,
            queue,
            callback,
            last=last,
            replay=replay,
            pending_messages=pending_messages,
            pending_bytes=pending_bytes,
        )
        self._subscriptions.add(subscription)
        if self._connection is not None:
            self._say(subscription.announce())
        return subscription

    def _forget(self, subscription: Subscription) -> None:
        self._subscriptions.remove(subscription)
        if self._connection is not None:
            self._connection.forget_lines()

    # Asking

    def request(
        self,
        subject: str,
        payload: bytes | str = b"",
        timeout: float = 2.0,
        headers: HeadersLike | None = None,
    ) -> Deferred[Message]:
        """Publish a question; fires with the first answer. Fails with `NoResponders` when nobody
        subscribes to the subject, or `RequestTimeout`."""
        requests = self._requests
        reply, answer = requests.add()
        try:
            if self._answers is None:
                self._answers = self.subscribe(requests.inbox + "*", callback=requests.answered)
            self.publish(subject, payload, reply=reply, headers=headers)
        except (ClientError, ValueError, TypeError) as error:
            requests.discard(reply)
            return fail(error)
        late = RequestTimeout(f"no answer on {subject} within {timeout:g} s")
        return with_timeout(answer, timeout, self.reactor, late)

    # Telling

    def _error(self, said: str) -> ServerError:
        """The server said ``-ERR``. What it says of one subject leaves the connection open."""
        self.stats.errors += 1
        permission = said.lower().startswith("permissions violation")
        error = PermissionViolation(said) if permission else ServerError(said)
        self._tell(Event("error", error=error))
        if permission and said.lower().startswith("permissions violation for subscription"):
            for subscription in self._subscriptions.asking_for(said.partition('"')[2]):
                self._forget(subscription)
                subscription.end(error)
        return error


def connect(
    url: str = "nats://127.0.0.1:4222", **options: Unpack[ClientOptions]
) -> Deferred[Client]:
    """A connected client. Fails with `ConnectionFailed` when no server lets it in."""
    return Client(url, **options).connect()
