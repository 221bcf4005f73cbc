"""The client: publishing, subscribing, asking, and staying connected."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack

from twisted.internet.defer import CancelledError, Deferred, DeferredList, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from rtmb.client.address import Address, Login, Nkey, parse_url
from rtmb.client.confirmations import Confirmations
from rtmb.client.connection import Connection, dial
from rtmb.client.errors import (
    BadSubject,
    BufferFull,
    ClientError,
    ConnectionClosed,
    ConnectionFailed,
    Disconnected,
    PayloadTooLarge,
    PermissionViolation,
    RequestTimeout,
    ServerError,
    Timeout,
)
from rtmb.client.message import HeadersLike, Message, header_block
from rtmb.client.options import DEFAULTS, Event, Options, Stats
from rtmb.client.outgoing import PIECE, Outgoing
from rtmb.client.requests import INBOX, Requests
from rtmb.client.subscription import (
    PENDING_BYTES,
    PENDING_MESSAGES,
    Callback,
    Subscription,
    with_timeout,
)
from rtmb.codecs import nats as wire
from rtmb.core.subjects import is_pattern, is_subject

_T = TypeVar("_T")

#: What a server takes in one message, until it has said so itself.
_MAX_PAYLOAD = 1 << 20
#: The longest subject: a line of the protocol has 4096 bytes, and holds more than the subject.
_MAX_SUBJECT = 1024
#: How many subjects' ready-made beginnings of PUB are kept.
_STARTS = 4096
#: How long a closing connection may take to send its last bytes.
_LINGER = 5.0


class Client:
    """A client of one broker, or of one at a time of several.

    Use `connect` to make one that is connected. Subscriptions last across reconnects."""

    log = Logger()

    def __init__(
        self,
        url: str = "nats://127.0.0.1:4222",
        *,
        dial: Callable[[Client, Address], Deferred[Connection]] = dial,
        **options: Unpack[Options],
    ) -> None:
        for key in options:
            if key not in DEFAULTS:
                raise TypeError(f"a client has no option {key!r}")
        chosen: Options = {**DEFAULTS, **options}
        reactor = chosen["reactor"]
        if reactor is None:
            from twisted.internet import reactor
        self.reactor = reactor
        self.name = chosen["name"]
        self.echo = chosen["echo"]
        self.tls = chosen["tls"]
        self.tls_first = chosen["tls_first"]
        self.connect_timeout = chosen["connect_timeout"]
        seed = chosen["nkey_seed"]
        self.login = Login(
            chosen["user"], chosen["password"], chosen["token"], Nkey(seed) if seed else None
        )
        self.stats = Stats()
        #: What the server said of itself, last.
        self.server_info: Mapping[str, Any] = {}
        self._options = chosen
        self._on_event = chosen["on_event"]
        self._dial = dial
        self._random = random.random

        first = parse_url(url)
        self._servers = [first, *(parse_url(other, first) for other in chosen["servers"])]
        #: Where in the list the present or last server stands.
        self._at = -1
        self._connection: Connection | None = None
        #: What connecting waits for now.
        self._held: Deferred[Any] | None = None
        self._connected_before = False
        self._closed: ConnectionClosed | None = None
        self._closing: list[Deferred[None]] = []
        self._linger: IDelayedCall | None = None
        self._when_connected: list[Deferred[Client]] = []

        self._outgoing = Outgoing(chosen["pending_limit"])
        self._scheduled = False
        self._starts: dict[str, bytes] = {}
        self._max_payload = _MAX_PAYLOAD
        self._confirmations = Confirmations()
        self._beat = LoopingCall(self._ping)
        self._beat.clock = reactor

        self._subscriptions: dict[bytes, Subscription] = {}
        self._sids = itertools.count(1)
        self._woken: list[Subscription] = []
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
        return Deferred.fromCoroutine(self._connect())

    async def _connect(self) -> Client:
        why = ConnectionFailed("no server")
        for at, address in enumerate(list(self._servers)):
            try:
                await self._try(at, address)
                return self
            except ConnectionFailed as error:
                why = error
        self._finish(ConnectionClosed(str(why)), tell=False)
        raise why

    def start(self) -> None:
        """Begin to connect, and go on trying until it works."""
        self._come_back(0.0)

    def when_connected(self) -> Deferred[Client]:
        """Fires when there is a connection; fails when there will be none."""
        if self._closed is not None:
            return fail(self._closed)
        if self._connection is not None:
            return succeed(self)
        waiting: Deferred[Client] = Deferred()
        self._when_connected.append(waiting)
        return waiting

    async def _try(self, at: int, address: Address) -> None:
        late = ConnectionFailed(f"{address.url}: no answer within {self.connect_timeout:g} s")
        dialing = self._dial(self, address)
        connection = await self._hold(
            with_timeout(dialing, self.connect_timeout, self.reactor, late)
        )
        self._at = at
        self._established(connection)

    async def _hold(self, waiting: Deferred[_T]) -> _T:
        """Wait for something, unless the client is closed meanwhile."""
        self._held = waiting
        try:
            return await waiting
        except CancelledError:
            if self._closed is not None:
                raise self._closed from None
            raise
        finally:
            self._held = None

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
            outgoing.say(b"".join(s.announce() for s in self._subscriptions.values()), first=True)
        for waiting in self._confirmations.connected():
            self._send_ping(waiting)
        outgoing.flush()
        self._beat.start(self._options["ping_interval"], now=False)
        if again:
            self.stats.reconnects += 1
        self._tell("reconnected" if again else "connected", url=connection.address.url)
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
            here = self._connection.address
            urls = info.get("ws_connect_urls" if here.websocket else "connect_urls") or ()
            known = {(a.host, a.port) for a in self._servers}
            for url in urls:
                try:
                    found = parse_url(str(url), here)
                except ValueError:
                    continue
                if (found.host, found.port) not in known:
                    self._servers.append(found)
        if leaving and self._connection is not None:
            self._tell("lame_duck", url=self._connection.address.url)

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
        self._tell("disconnected", url=connection.address.url, error=error)
        if not self._options["reconnect"] or self._options["max_reconnects"] == 0:
            self._finish(ConnectionClosed(f"the connection to {connection.address.url} was lost"))
        elif self._closed is None:
            self._come_back(self._options["reconnect_wait"])

    def _come_back(self, wait: float) -> None:
        trying = Deferred.fromCoroutine(self._keep_trying(wait))
        trying.addErrback(lambda failure: failure.trap(ConnectionClosed) and None)
        trying.addErrback(self._broke)

    def _broke(self, failure: Failure) -> None:
        self.log.failure("cannot reconnect", failure)
        if self._closed is None:
            self._finish(ConnectionClosed(failure.getErrorMessage()))

    async def _keep_trying(self, wait: float) -> None:
        """Go through the servers, the next one first, again and again."""
        most = self._options["max_reconnects"]
        attempts = 0
        while self._closed is None:
            if wait:
                pause = wait * (1 - self._random() / 2)
                await self._hold(deferLater(self.reactor, pause))
            wait = min(
                wait * 2 or self._options["reconnect_wait"], self._options["reconnect_wait_max"]
            )
            count = len(self._servers)
            for at in [(self._at + 1 + i) % count for i in range(count)]:
                attempts += 1
                try:
                    await self._try(at, self._servers[at])
                    return
                except ConnectionFailed as error:
                    self._tell("error", error=error)
                    if 0 <= most <= attempts and self._closed is None:
                        why = f"gave up after {attempts} attempts: {error}"
                        self._finish(ConnectionClosed(why))
                if self._closed is not None:
                    return

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
        ends = [s.drain(timeout) for s in list(self._subscriptions.values())]
        waiting: Deferred[Any] = DeferredList(ends, consumeErrors=True)
        waiting.addCallback(lambda _: self._confirm(timeout))
        return waiting.addBoth(lambda _: self.close())

    def _finish(self, why: ConnectionClosed, *, asked: bool = False, tell: bool = True) -> None:
        """No more connections, because someone `asked` for it or because it cannot be helped."""
        self._closed = why
        if self._held is not None:
            self._held.cancel()
        for subscription in list(self._subscriptions.values()):
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
            self._tell("closed", error=None if asked else why)
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
        start = self._starts.get(subject) or self._start(subject)
        if isinstance(payload, str):
            payload = payload.encode()
        size = len(payload)
        if headers:
            block = header_block(headers)
            answer = wire.to_wire(_checked(reply)) if reply is not None else None
            data = wire.hpub(start[4:-1], answer, block, payload)
            size += len(block)
        elif reply is None:
            data = b"%b%d\r\n%b\r\n" % (start, size, payload)
        else:
            data = b"%b%b %d\r\n%b\r\n" % (start, wire.to_wire(_checked(reply)), size, payload)
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

    def _start(self, subject: str) -> bytes:
        """The beginning of PUB for a subject that was not used lately."""
        start = wire.pub_start(wire.to_wire(_checked(subject)))
        if not subject.startswith(INBOX):  # those do not come twice
            if len(self._starts) >= _STARTS:
                self._starts.clear()
            self._starts[subject] = start
        return start

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

    def _pong(self) -> None:
        self._confirmations.pong()

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
        if not is_pattern(subject) or not _fits(subject):
            raise BadSubject(f"cannot subscribe to {_short(subject)}")
        if queue is not None and not (is_pattern(queue) and _fits(queue)):
            raise BadSubject(f"not a queue's name: {_short(queue)}")
        if last and replay:
            raise ValueError("last and replay do not go together: a replay holds the last")
        if replay < 0 or pending_messages < 1 or pending_bytes < 1:
            raise ValueError("replay may not be below 0, nor the pending limits below 1")
        sid = b"%d" % next(self._sids)
        subscription = Subscription(
            self,
            subject,
            queue,
            callback,
            sid,
            last=last,
            replay=replay,
            pending_messages=pending_messages,
            pending_bytes=pending_bytes,
        )
        self._subscriptions[sid] = subscription
        if self._connection is not None:
            self._say(subscription.announce())
        return subscription

    def _forget(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription.sid, None)
        if self._connection is not None:
            self._connection.forget_lines()

    def _wake(self, subscription: Subscription) -> None:
        """Its readers should have a look once all that came has been read."""
        self._woken.append(subscription)

    def _read(self) -> None:
        """All that came has been dealt with."""
        while self._woken:
            self._woken.pop(0).wake()

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
        except (ClientError, ValueError) as error:
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
        self._tell("error", error=error)
        if permission and said.lower().startswith("permissions violation for subscription"):
            subject = said.partition('"')[2].partition('"')[0]
            for subscription in list(self._subscriptions.values()):
                if subject in (subscription.subject, subscription.asked):
                    self._forget(subscription)
                    subscription.end(error)
        return error

    def _tell(
        self,
        name: str,
        *,
        url: str = "",
        error: Exception | None = None,
        subject: str = "",
        dropped: int = 0,
    ) -> None:
        event = Event(name, url, error, subject, dropped)
        worrying = name in ("disconnected", "slow_reader", "error")
        level = LogLevel.warn if worrying else LogLevel.info
        self.log.emit(level, "{client}{event}", client=_label(self.name), event=event)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            self.log.failure("on_event failed")


def _label(name: str) -> str:
    return f"{name}: " if name else ""


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "…")


def _fits(text: str) -> bool:
    return len(wire.to_wire(text)) <= _MAX_SUBJECT


def _checked(subject: str) -> str:
    if not is_subject(subject) or not _fits(subject):
        raise BadSubject(f"cannot publish to {_short(subject)}")
    return subject


def connect(url: str = "nats://127.0.0.1:4222", **options: Unpack[Options]) -> Deferred[Client]:
    """A connected client. Fails with `ConnectionFailed` when no server lets it in."""
    return Client(url, **options).connect()
