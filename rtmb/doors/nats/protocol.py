"""The text door: the NATS client protocol over TCP, for telnet and every NATS client.

`NatsProtocol` is one connection: a method for each operation. `NatsFactory` is all of them: the
hub, the limits, the timers. `NatsDoor` makes a service of it. `Dialect` is the one place that knows
how typing people and libraries want to be treated differently. docs/protocol.md tells the protocol.
"""

from __future__ import annotations

import base64
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twisted.application.service import IService
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IAddress, IDelayedCall, IHandshakeListener
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rtmb import __version__
from rtmb.auth import ANYONE, Credentials, User
from rtmb.codecs import nats as wire
from rtmb.codecs.nats import ProtocolError
from rtmb.config import Settings
from rtmb.core.hub import INBOX, split_past
from rtmb.core.message import Message
from rtmb.core.subjects import Counters, Subscription, is_pattern, is_subject
from rtmb.doors.listener import Crowd, Listener
from rtmb.doors.nats.walk import BulkReceiver, Known
from rtmb.doors.outbox import Outbox
from rtmb.interfaces import IAuthenticator, IDoor, ISubscriber

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: Read this much at a time. Four times Twisted's own: each read costs a turn of the reactor
#: (benchmarks: 1→1 at 1 KiB and 16 KiB).
READ_SIZE = 256 * 1024
#: The longest that a publisher is made to wait for a subscriber that is behind, each time.
PAUSE = 0.01
#: How long a client that is being closed may take to read its last bytes.
_LINGER = 5.0
#: The first byte of a TLS handshake.
_TLS_HELLO = 0x16
_MSG_LINE = re.compile(rb"(?:^|\n)H?MSG (\S+) ")
#: What a reply must not be: the hub would answer it, or nobody can hear it.
_RESERVED = ("$LAST.", "$REPLAY.", "_R_.")


@dataclass(frozen=True)
class Dialect:
    """All that differs between a person (or a small script) and a NATS library."""

    #: Seconds from CONNECT to the first PING.
    first_ping: float
    #: Whether the maximum of UNSUB counts from now or from SUB.
    maximum_from_now: bool
    #: What to answer to a SUB whose sid is taken, and an UNSUB whose sid is not; None: nothing.
    sid_taken: str | None
    sid_unknown: str | None


BARE = Dialect(0.0, True, "Subscription ID already exists", "Subscription ID does not exist")
LIBRARY = Dialect(2.0, False, None, None)


@implementer(ISubscriber, IHandshakeListener)
class NatsProtocol(BulkReceiver):
    """One client."""

    log = Logger()
    door = "nats"
    factory: NatsFactory
    transport: Any

    def __init__(self, factory: NatsFactory) -> None:
        super().__init__()
        self.factory = factory
        self.hub = factory.hub
        self.settings = factory.settings
        self.MAX_LENGTH = self.settings.max_control_line + 1  # with its `\r`
        self.counters = Counters()
        self.lines, self.subjects, self.sizes = {}, {}, {}
        self.subscriptions: dict[bytes, Subscription] = {}
        self.cid = 0
        self.name = "?"
        self.user: User | None = None if factory.authenticator.required else ANYONE
        self.started = self.last_input = self.hub.clock()
        self.rtt: float | None = None
        self.closed_reason = ""

        # What CONNECT may change.
        self.options: dict[str, Any] = {}
        self.dialect = BARE
        self.verbose = False
        self.echo = True
        self.headers = False
        self.no_responders = False

        self._nonce = ""
        self._tls_expected = False
        self._timers: dict[str, IDelayedCall] = {}
        self._pings_out = 0
        self._ping_sent = 0.0
        self._next_ping = self.started + self.settings.ping_interval
        self._pong_sent = False
        #: Publishers that wait until this client has caught up.
        self._waiting: list[NatsProtocol] = []

    # Coming and going

    def connectionMade(self) -> None:
        settings, transport = self.settings, self.transport
        self.outbox = Outbox(transport, settings.max_pending, self._overflowed)
        self.outbox.drained = self._caught_up
        self.batch = self.outbox.batch
        peer = transport.getPeer()
        self.host, self.port = getattr(peer, "host", ""), getattr(peer, "port", 0)
        self.name = f"{self.host}:{self.port}"
        if hasattr(transport, "bufferSize"):
            transport.bufferSize = READ_SIZE
        if hasattr(transport, "setTcpNoDelay"):
            transport.setTcpNoDelay(True)
        if len(self.factory.clients) >= settings.max_connections:
            self.close("maximum connections exceeded")
            return
        if self.factory.lame_duck:  # It came over the WebSocket, which still listens.
            self.close(reason="lame duck mode")
            return
        self.cid = self.hub.join(self)
        self.factory.clients[self.cid] = self
        self.name = f"{self.host}:{self.port} - cid:{self.cid}"
        self.factory.system.connected(self)
        if self.factory.tls is not None and settings.tls_first:
            self._start_tls(b"")
        elif self.factory.tls is not None:
            self._tls_expected = True
            self._later("tls", settings.auth_timeout, self._tls_timeout)
        self.send_info()
        if self.user is None:
            self._later("auth", settings.auth_timeout, self._auth_timeout)
        else:
            self._let_in(self.user)

    def connectionLost(self, reason: Failure = Failure(ConnectionDone())) -> None:  # noqa: B008
        self.done = True
        self._forget()
        self.outbox.discard()
        if self.factory.clients.pop(self.cid, None) is not None:
            self.hub.leave(self.cid)
            why = self.closed_reason or (
                "client closed" if reason.check(ConnectionDone) else reason.getErrorMessage()
            )
            self.factory.system.disconnected(self, why)
            self.factory.client_gone()

    def _forget(self) -> None:
        """Leave no trace in the hub and no timer."""
        for subscription in self.subscriptions.values():
            self.hub.unsubscribe(subscription)
        self.subscriptions.clear()
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        self._timers.clear()

    def close(self, error: str = "", reason: str = "") -> None:
        """Say why, send what waits, and close."""
        if self.done:
            return
        self.done = True
        self.closed_reason = self.closed_reason or reason or error
        self._forget()
        if error:
            self.batch.append(wire.err(error))
        self._later("linger", _LINGER, self.abort)
        self.outbox.finish()

    def abort(self) -> None:
        self.done = True
        self._forget()
        self.outbox.discard()
        self.transport.abortConnection()

    def _later(self, name: str, delay: float, call: Callable[[], Any]) -> None:
        self._timers[name] = self.factory.reactor.callLater(delay, call)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None and timer.active():
            timer.cancel()

    # Talking

    def send_info(self) -> None:
        self._send(wire.info(self.factory.info_for(self)))

    def _send(self, data: bytes) -> None:
        if not self.batch:
            self.hub.wake(self)
        self.batch.append(data)
        if not self._busyReceiving:
            self.hub.flush()

    def _refuse(self, error: ProtocolError) -> None:
        if error.closes:
            self.log.warn("protocol error: {name}: {error}", name=self.name, error=error.text)
            self.close(error.text, f"protocol error: {error.text}")
        else:
            self.log.info("refused: {name}: {error}", name=self.name, error=error.text)
            self._send(wire.err(error.text))

    def _ok(self) -> None:
        if self.verbose:
            self._send(wire.OK)

    # Reading: see `BulkReceiver` for how the bytes get here.

    def dataReceived(self, data: bytes) -> None:
        if self._tls_expected:
            if data[0] == _TLS_HELLO:
                self._start_tls(data)
                return
            self._tls_expected = False
            self._refuse(ProtocolError("Secure Connection - TLS Required"))
            return
        super().dataReceived(data)
        behind = self.behind + self.hub.flush()
        if behind:
            self.behind = []
            self._wait_for(behind)

    def lineReceived(self, line: bytes) -> None:
        if self.done:
            return
        operation, arguments = wire.split_line(line)
        if not operation:
            return  # an empty line: someone pressed Enter once more
        try:
            command = self._commands.get(operation)
            if command is None:
                raise ProtocolError("Unknown Protocol Operation")
            if self.user is None and operation != b"CONNECT":
                guest = self.factory.authenticator.guest
                if guest is None:
                    raise ProtocolError("Authorization Violation")
                self._let_in(guest)
            command(self, arguments, line)
        except ProtocolError as error:
            self._refuse(error)

    def lineLengthExceeded(self, line: bytes) -> None:
        self._refuse(ProtocolError("maximum control line exceeded"))

    def payload_misfit(self) -> None:
        self._refuse(ProtocolError("Payload does not end where its size says"))

    # The operations

    def _connect(self, arguments: bytes, line: bytes) -> None:
        options = wire.parse_json_object(arguments)
        protocol = options.get("protocol", 0)
        if not isinstance(protocol, int) or not 0 <= protocol <= 1:
            raise ProtocolError("invalid client protocol")
        headers, no_responders = bool(options.get("headers")), bool(options.get("no_responders"))
        if no_responders and not headers:
            raise ProtocolError("no responders requires headers support")
        self.options = options
        self.dialect = LIBRARY if options.get("lang") else BARE
        self.verbose = bool(options.get("verbose"))
        self.echo = bool(options.get("echo", True))
        self.headers, self.no_responders = headers, no_responders

        def text(key: str) -> str:
            value = options.get(key)
            return value if isinstance(value, str) else ""

        label = " ".join(filter(None, (text("name"), text("lang"), text("version"))))[:200]
        if label:
            self.name = f"{self.host}:{self.port} - cid:{self.cid} - {label}"
        credentials = Credentials(
            text("user"), text("pass"), text("auth_token"), text("nkey"), text("sig"), self._nonce
        )
        # Paused, so that what comes after CONNECT waits for its answer; most answers are at once.
        self.pauseProducing()
        self.factory.authenticator.authenticate(credentials).addCallbacks(
            self._authenticated, self._authentication_failed
        )

    def _authenticated(self, user: User | None) -> None:
        if self.done:
            return
        if user is None or user.expired(self.hub.clock()):
            # A user without a password may be a token, which is a secret.
            said = self.options.get("user") if self.options.get("pass") else ""
            said = said or self.options.get("nkey")
            self.log.warn(
                "authentication failed: {name}{user}",
                name=self.name,
                user=f", as {said!r}" if isinstance(said, str) else "",
            )
            self.close("Authorization Violation")
            return
        self._let_in(user)
        self._ok()
        if self.dialect.first_ping:
            self._later("ping", self.dialect.first_ping, self._first_ping)
        else:
            self._send_ping()
        self.resumeProducing()

    def _authentication_failed(self, failure: Failure) -> None:
        self.log.failure("the authenticator failed", failure)
        self.close("Authorization Violation")

    def _let_in(self, user: User) -> None:
        self._cancel("auth")
        self.user = user
        if user.expires is not None:
            left = user.expires.timestamp() - self.hub.clock()
            self._cancel("expiry")
            self._later("expiry", max(0.0, left), self._expired)
        # Who may do everything shares what is known of lines. Where each message needs a thought
        # (an answer, a look at who sent it) nothing is kept, see `payload_received`.
        alone = user.restricted or self.verbose or not self.echo
        self.lines = {} if alone else self.factory.lines
        self.subjects = {} if alone else self.factory.subjects
        self.sizes = {} if alone else self.factory.sizes

    def _expired(self) -> None:
        self._refuse(ProtocolError("User Authentication Expired"))

    def _auth_timeout(self) -> None:
        self._refuse(ProtocolError("Authentication Timeout"))

    def _ping(self, arguments: bytes, line: bytes) -> None:
        self._pong_sent = True
        self._send(wire.PONG)

    def _pong(self, arguments: bytes, line: bytes) -> None:
        if self._ping_sent:
            self.rtt = self.last_input - self._ping_sent
            self._ping_sent = 0.0
        self._pings_out = 0

    def _sub(self, arguments: bytes, line: bytes) -> None:
        subject, group, sid = wire.parse_sub(arguments)
        asked = wire.from_wire(subject)
        pattern, past = split_past(asked)
        queue = wire.from_wire(group) if group is not None else None
        if not is_pattern(pattern):
            raise ProtocolError("Invalid Subject", closes=False)
        if sid in self.subscriptions:
            if self.dialect.sid_taken is not None:
                raise ProtocolError(self.dialect.sid_taken, closes=False)
            self._ok()
            return
        limit = self.settings.max_subscriptions
        if limit and len(self.subscriptions) >= limit:
            raise ProtocolError("maximum subscriptions exceeded", closes=False)
        rule = self.user.subscribe if self.user is not None else ANYONE.subscribe
        if not rule.may_subscribe(pattern, queue):
            using = f' using queue "{queue}"' if queue is not None else ""
            raise ProtocolError(
                f'Permissions Violation for Subscription to "{asked}"{using}', closes=False
            )
        subscription = Subscription(self, pattern, queue, sid, rule.hidden(pattern, queue))
        self.subscriptions[sid] = subscription
        self._ok()
        if past:
            before = sum(map(len, self.batch))
            self.hub.subscribe(subscription, past)
            self.outbox.allowance += sum(map(len, self.batch)) - before
        else:
            self.hub.subscribe(subscription)

    def _unsub(self, arguments: bytes, line: bytes) -> None:
        sid, maximum = wire.parse_unsub(arguments)
        subscription = self.subscriptions.get(sid)
        if subscription is None:
            if self.dialect.sid_unknown is not None:
                raise ProtocolError(self.dialect.sid_unknown, closes=False)
        elif not maximum:
            self.hub.unsubscribe(subscription)
            del self.subscriptions[sid]
        elif self.hub.limit(subscription, maximum, from_now=self.dialect.maximum_from_now):
            del self.subscriptions[sid]
        self._ok()

    def _pub(self, arguments: bytes, line: bytes) -> None:
        self._expect(wire.parse_pub(arguments), line)

    def _hpub(self, arguments: bytes, line: bytes) -> None:
        self._expect(wire.parse_hpub(arguments), line)

    def _expect(self, publication: wire.Publication, line: bytes) -> None:
        if publication.size > self.settings.max_payload:
            raise ProtocolError("Maximum Payload Violation")
        self.expect_payload(line, publication)

    _commands: dict[bytes, Callable[[NatsProtocol, bytes, bytes], None]] = {
        b"CONNECT": _connect,
        b"PING": _ping,
        b"PONG": _pong,
        b"SUB": _sub,
        b"UNSUB": _unsub,
        b"PUB": _pub,
        b"HPUB": _hpub,
    }

    def payload_received(self, publication: wire.Publication, payload: bytes) -> bool:
        try:
            return self._publish(publication, payload)
        except ProtocolError as error:
            self._refuse(error)
            return False

    def _publish(self, publication: wire.Publication, payload: bytes) -> bool:
        subject = wire.from_wire(publication.subject)
        reply = wire.from_wire(publication.reply) if publication.reply is not None else None
        assert self.user is not None
        if not is_subject(subject):
            raise ProtocolError("Invalid Publish Subject", closes=False)
        if not self.user.publish.may_publish(subject):
            raise ProtocolError(f'Permissions Violation for Publish to "{subject}"', closes=False)
        if reply is not None and (not is_subject(reply) or reply.startswith(_RESERVED)):
            raise ProtocolError(
                f'Permissions Violation for Publish with Reply of "{reply}"', closes=False
            )
        headers = None
        if publication.header_size:
            headers = payload[: publication.header_size]
            payload = payload[publication.header_size :]
            wire.check_headers(headers)
        # The time of the whole chunk, as the bulk walk has it: the history stays in order.
        message = Message(
            subject, payload, reply=reply, headers=headers, time=self.last_input, door="nats"
        )
        count = self.hub.deliver(message, self)
        self._ok()
        if not count and reply is not None and self.no_responders:
            self._tell_no_responders(subject, reply)
        return (
            reply is None
            and headers is None
            and self.echo
            and not (self.verbose or subject.startswith(INBOX))
        )

    def _tell_no_responders(self, subject: str, reply: str) -> None:
        headers = wire.encode_headers([("Nats-Subject", subject)], "503")
        for subscription in self.hub.trie.search(reply).plain:
            if subscription.subscriber is self:
                self.hub.deliver_to(subscription, Message(reply, b"", headers=headers))
                return

    # ISubscriber: what the hub calls.

    @property
    def stalled(self) -> bool:
        return self.outbox.congested

    def deliver(self, subscription: Subscription, message: Message) -> None:
        if self.done:
            return
        batch = self.batch
        if not batch:
            self.hub.wake(self)
        subject = wire.to_wire(message.subject)
        reply = wire.to_wire(message.reply) if message.reply is not None else None
        sid = subscription.key
        if message.headers is not None and self.headers:
            batch.append(wire.hmsg(subject, sid, reply, message.headers, message.payload))
        else:
            batch.append(wire.msg(subject, sid, reply, message.payload))

    def flush(self) -> bool:
        self.outbox.flush()
        return self.outbox.worth_a_pause()

    def ended(self, subscription: Subscription, reason: str) -> None:
        self.subscriptions.pop(subscription.key, None)

    # Slow consumers

    def _overflowed(self, last: bytes) -> None:
        if self.closed_reason:
            return
        found = _MSG_LINE.search(last)  # not always at its start: a part may have been sent
        subject = wire.from_wire(found[1]) if found is not None else "?"
        self.closed_reason = "slow consumer"
        self.factory.system.slow(self, "close", subject, self.outbox.pending)
        self.abort()

    def _wait_for(self, behind: list[ISubscriber]) -> None:
        """Read no more until these have caught up, or for a moment at most."""
        if self.done or "pause" in self._timers:
            return
        for subscriber in behind:
            if isinstance(subscriber, NatsProtocol):
                subscriber._waiting.append(self)
        self._later("pause", PAUSE, self._go_on)
        self.transport.pauseProducing()

    def _caught_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        for publisher in waiting:
            publisher._go_on()

    def _go_on(self) -> None:
        if "pause" in self._timers:
            self._cancel("pause")
            if not self.paused:
                self.transport.resumeProducing()

    # Keeping alive

    def tick(self, now: float) -> None:
        """Called every second or so: PING who was silent, close who does not answer."""
        self.forget_if_full()
        if now < self._next_ping or self.done:
            return
        interval = self.settings.ping_interval
        if now - self.last_input < interval and not self._pings_out:
            self._next_ping = self.last_input + interval
            return
        if self._pings_out >= self.settings.ping_max:
            self._refuse(ProtocolError("Stale Connection"))
            return
        self._pings_out += 1
        self._next_ping = now + interval
        self._send_ping()

    def _first_ping(self) -> None:
        if not self._pong_sent:  # a PING before the first PONG would break the handshake
            self._later("ping", self.dialect.first_ping, self._first_ping)
        else:
            self._send_ping()

    def _send_ping(self) -> None:
        self._ping_sent = self.hub.clock()
        self._send(wire.PING)

    # Who it is

    def nonce(self) -> str:
        """What a client with an nkey must sign."""
        if not self._nonce:
            self._nonce = base64.urlsafe_b64encode(os.urandom(11)).decode().rstrip("=")
        return self._nonce

    # TLS

    def _start_tls(self, data: bytes) -> None:
        self._tls_expected = False
        self._cancel("tls")
        self._later("tls", self.settings.auth_timeout, self._tls_timeout)
        self.outbox.started_tls()
        self.transport.startTLS(self.factory.tls)
        if data:
            self.transport.protocol.dataReceived(data)

    def handshakeCompleted(self) -> None:
        self._cancel("tls")

    def _tls_timeout(self) -> None:
        self.closed_reason = "TLS handshake timeout"
        self.abort()

    # Reloading

    def reloaded(self, settings: Settings, user: User | None) -> None:
        """The settings have changed, and `user` is who this client is now."""
        changed = settings.max_payload != self.settings.max_payload
        self.settings = settings
        self.MAX_LENGTH = settings.max_control_line + 1
        self.outbox.limit = settings.max_pending
        if self.user is None:
            return  # not in yet: it will be judged by the new rules
        if user is None:
            self._refuse(ProtocolError("Authorization Violation"))
            return
        self._let_in(user)
        for sid, subscription in list(self.subscriptions.items()):
            pattern, queue = subscription.pattern, subscription.queue
            if not user.subscribe.may_subscribe(pattern, queue):
                self.hub.unsubscribe(subscription)
                del self.subscriptions[sid]
                using = f' using queue "{queue}"' if queue is not None else ""
                self._refuse(
                    ProtocolError(
                        f'Permissions Violation for Subscription to "{pattern}"{using}',
                        closes=False,
                    )
                )
                continue
            subscription.deny = user.subscribe.hidden(pattern, queue)
            self.hub.trie.invalidate(pattern)
        if changed and self.options.get("protocol"):
            self.send_info()


class NatsFactory(Crowd["NatsProtocol"]):
    """All clients of the text door, and what they share: the hub with its trie and queue groups,
    the limits, the timers."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.server_id = broker.server_id
        self.server_name = broker.name
        #: The address that INFO tells; set when the port is known.
        self.host, self.port = self.settings.interface, self.settings.port
        #: What the bulk walk knows of lines, for all clients that may publish anything.
        self.lines: dict[bytes, tuple[Known, int, int]] = {}
        self.subjects: dict[bytes, Known] = {}
        self.sizes: dict[bytes, int] = {}
        self.lame_duck = False
        self._ticking = LoopingCall(self._tick)
        self._ticking.clock = self.reactor

    def buildProtocol(self, addr: IAddress | None) -> NatsProtocol:  # type: ignore[override]
        return NatsProtocol(self)

    def doStart(self) -> None:
        super().doStart()
        if not self._ticking.running:
            self._ticking.start(min(1.0, self.settings.ping_interval / 4), now=False)

    def doStop(self) -> None:
        super().doStop()
        if self._ticking.running and not self.clients:
            self._ticking.stop()

    def _tick(self) -> None:
        now = self.hub.clock()
        for client in list(self.clients.values()):
            client.tick(now)

    def info_for(self, client: NatsProtocol) -> dict[str, Any]:
        settings, tls = self.settings, self.tls is not None
        found: dict[str, Any] = {
            "server_id": self.server_id,
            "server_name": self.server_name,
            "version": __version__,
            "go": f"python{platform.python_version()}",
            "host": self.host,
            "port": self.port,
            "headers": True,
            "max_payload": settings.max_payload,
            "proto": 1,
            "client_id": client.cid,
            "client_ip": client.host,
        }
        if self.authenticator.required:
            found["auth_required"] = True
        if self.authenticator.nonce_needed:
            found["nonce"] = client.nonce()
        if tls:
            found["tls_required"] = True
            found["tls_verify"] = settings.tls_verify
        if self.lame_duck:
            found["ldm"] = True
        return found

    def reload(self, settings: Settings, authenticator: IAuthenticator) -> None:
        """Take new users, permissions and limits, and hold every client to them."""
        self.settings, self.authenticator = settings, authenticator
        self.lines.clear()
        self.subjects.clear()
        self.sizes.clear()
        for client in list(self.clients.values()):
            client.reloaded(settings, authenticator.recheck(client.user))

    # Ending

    def close_all(self, timeout: float) -> Deferred[None]:
        if self._ticking.running:
            self._ticking.stop()
        return super().close_all(timeout)

    def start_lame_duck(self, grace: float) -> Deferred[None]:
        """Tell the clients to go elsewhere, then close them one by one over `grace` seconds."""
        self.lame_duck = True
        leaving = list(self.clients.values())
        for client in leaving:
            if client.options.get("protocol"):
                client.send_info()
        for i, client in enumerate(leaving):
            self.reactor.callLater(
                grace * (i + 1) / len(leaving), client.close, "", "lame duck mode"
            )
        return self.when_empty()


class NatsService(Listener):
    """Listens for the text door, and drains it at the end."""

    greeting = "text door: nats://{host}:{port}"

    def __init__(self, factory: NatsFactory) -> None:
        settings = factory.settings
        super().__init__(factory.reactor, factory, settings.interface, settings.port)
        self.factory = factory

    def privilegedStartService(self) -> None:
        super().privilegedStartService()
        self.factory.host, self.factory.port = self.host, self.port

    def drain(self) -> Deferred[None]:
        return self.factory.close_all(self.factory.settings.drain_timeout)

    def enter_lame_duck(self, grace: float) -> Deferred[None]:
        """A client that is told may come back at once: by then nobody listens."""
        return self.stop_accepting().addCallback(lambda _: self.factory.start_lame_duck(grace))

    def reload(self, settings: Settings, authenticator: IAuthenticator) -> None:
        self.factory.reload(settings, authenticator)


@implementer(IDoor)
class NatsDoor:
    """The text door."""

    name = "nats"

    def open(self, broker: Broker, options: dict[str, Any]) -> IService | None:
        return NatsService(NatsFactory(broker))
