"""One client of the text door: the NATS protocol, a method for each operation. docs/protocol.md
tells the protocol."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHandshakeListener
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rtmb.auth import ANYONE, Credentials, Rule, User
from rtmb.codecs import nats as wire
from rtmb.codecs.nats import ProtocolError
from rtmb.core.message import Message
from rtmb.core.publication import Publication
from rtmb.core.subjects import from_raw, is_pattern, split_past
from rtmb.core.subscriptions import Subscription
from rtmb.doors.nats.dialect import BARE, LIBRARY
from rtmb.doors.nats.outlet import NatsOutlet
from rtmb.doors.nats.receiver import Receiver
from rtmb.doors.nats.walk import Walk
from rtmb.doors.outbox import Outbox
from rtmb.doors.session import LAME_DUCK, LINGER, Session
from rtmb.interfaces import ISubscriber

if TYPE_CHECKING:
    from rtmb.doors.nats.service import NatsFactory

#: Read this much at a time. Four times Twisted's own: each read costs a turn of the reactor
#: (benchmarks: 1→1 at 1 KiB and 16 KiB).
READ_SIZE = 256 * 1024
#: The longest that a publisher is made to wait for a subscriber that is behind, each time.
PAUSE = 0.01
#: The first byte of a TLS handshake.
_TLS_HELLO = 0x16


@implementer(ISubscriber, IHandshakeListener)
class NatsProtocol(Session, Receiver):
    """One client."""

    log = Logger()
    door = "nats"
    factory: NatsFactory
    transport: Any

    def __init__(self, factory: NatsFactory) -> None:
        Receiver.__init__(self)
        Session.__init__(self, factory, None if factory.authenticator.required else ANYONE)
        self.factory = factory
        self.by_sid: dict[bytes, Subscription] = {}

        # What CONNECT may change.
        self.options: dict[str, Any] = {}
        self.dialect = BARE
        self.verbose = False
        self.echo = True
        self.headers = False
        self.no_responders = False

        self._nonce = ""
        self._tls_expected = False
        self._pings_out = 0
        self._ping_sent = 0.0
        self._next_ping = self.started + self.settings.ping_interval
        self._pong_sent = False
        #: Publishers that wait until this client has caught up.
        self._waiting: list[NatsProtocol] = []

    def _set_limits(self) -> None:
        settings = self.settings
        self.MAX_LENGTH = settings.max_control_line + 1  # with its `\r`
        self.walk.max_line, self.walk.max_payload = self.MAX_LENGTH, settings.max_payload
        self.walk.max_subscriptions = settings.max_subscriptions
        self.outbox.limit = settings.max_pending

    # Coming and going

    def connectionMade(self) -> None:
        settings, transport = self.settings, self.transport
        self.outbox = Outbox(transport, settings.max_pending, self._overflowed)
        self.outbox.drained = self._caught_up
        self.batch = self.outbox.batch
        self.outlet = NatsOutlet(self.hub, self, self.batch)
        self.outbox.outlet = self.outlet
        self.walk = Walk(self.hub, self, self.outlet, self.by_sid)
        self.walk.tell = self._published
        self._set_limits()
        self.come_from(transport.getPeer())
        if hasattr(transport, "bufferSize"):
            transport.bufferSize = READ_SIZE
        if hasattr(transport, "setTcpNoDelay"):
            transport.setTcpNoDelay(True)
        refusal = self.join()
        if refusal:
            self.refuse_entry(refusal)
            return
        if self.factory.tls is not None and settings.tls_first:
            self._start_tls(b"")
        elif self.factory.tls is not None:
            self._tls_expected = True
            self.later("tls", settings.auth_timeout, self._tls_timeout)
        self.send_info()
        if self.user is None:
            self.later("auth", settings.auth_timeout, self._auth_timeout)
        else:
            self.let_in(self.user)

    def refuse_entry(self, reason: str) -> None:
        """There is no room, or nobody is let in any more."""
        if reason == LAME_DUCK:
            self.close(reason)
        else:
            self.close_for(reason)

    def connectionLost(self, reason: Failure = Failure(ConnectionDone())) -> None:  # noqa: B008
        self.outbox.discard()
        self.leave("client closed" if reason.check(ConnectionDone) else reason.getErrorMessage())

    def forget(self) -> None:
        super().forget()
        self.by_sid.clear()

    def close(self, reason: str) -> None:
        """Send what waits, and close. The protocol has no word for why, but for errors."""
        self.close_for("", reason)

    def close_for(self, error: str, reason: str = "") -> None:
        """Say what was wrong, send what waits, and close."""
        if self.done:
            return
        self.done = self.outlet.closed = True
        self.closed_reason = self.closed_reason or reason or error
        self.forget()
        if error:
            self.batch.append(wire.err(error))
        self.later("linger", LINGER, self.abort)
        self.outbox.finish()

    def abort(self) -> None:
        self.done = self.outlet.closed = True
        self.forget()
        self.outbox.discard()
        self.transport.abortConnection()

    def not_welcome(self, why: str) -> None:
        self._refuse(ProtocolError(why))

    def not_allowed(self, subscription: Subscription) -> None:
        self.by_sid.pop(subscription.key, None)
        queue = subscription.queue
        using = f' using queue "{queue}"' if queue is not None else ""
        text = f'Permissions Violation for Subscription to "{subscription.pattern}"{using}'
        self._refuse(ProtocolError(text, closes=False))

    # IClient

    @property
    def pending(self) -> int:
        return self.outbox.pending

    @property
    def subscriptions(self) -> Collection[Subscription]:
        return self.by_sid.values()

    def describe(self) -> Mapping[str, str]:
        said = {name: self.options.get(name) for name in ("name", "lang", "version")}
        return {name: text for name, text in said.items() if isinstance(text, str) and text}

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
            self.close_for(error.text, f"protocol error: {error.text}")
        else:
            self.log.info("refused: {name}: {error}", name=self.name, error=error.text)
            self._send(wire.err(error.text))

    def _ok(self) -> None:
        if self.verbose:
            self._send(wire.OK)

    # Reading: see `Receiver` for how the bytes get here.

    def dataReceived(self, data: bytes) -> None:
        if self._tls_expected:
            if data[0] == _TLS_HELLO:
                self._start_tls(data)
                return
            self._tls_expected = False
            self._refuse(ProtocolError("Secure Connection - TLS Required"))
            return
        super().dataReceived(data)
        behind = self.walk.behind + self.hub.flush()
        if behind:
            self.walk.behind = []
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
                self.let_in(guest)
            command(self, arguments)
        except ProtocolError as error:
            self._refuse(error)

    def lineLengthExceeded(self, line: bytes) -> None:
        self._refuse(ProtocolError("maximum control line exceeded"))

    def payload_misfit(self) -> None:
        self._refuse(ProtocolError("Payload does not end where its size says"))

    # The operations

    def _connect(self, arguments: bytes) -> None:
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
        self.outlet.headers = headers
        self.walk.mute = None if self.echo else self
        self.walk.verbose, self.walk.no_responders = self.verbose, no_responders

        def text(key: str) -> str:
            value = options.get(key)
            return value if isinstance(value, str) else ""

        label = " ".join(filter(None, (text("name"), text("lang"), text("version"))))[:200]
        if label:
            self.name = f"{self.host}:{self.port} - cid:{self.number} - {label}"
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
            self.close_for("Authorization Violation")
            return
        self.let_in(user)
        self._ok()
        if self.dialect.first_ping:
            self.later("ping", self.dialect.first_ping, self._first_ping)
        else:
            self._send_ping()
        self.resumeProducing()

    def _authentication_failed(self, failure: Failure) -> None:
        self.log.failure("the authenticator failed", failure)
        self.close_for("Authorization Violation")

    def let_in(self, user: User) -> None:
        self.cancel("auth")
        super().let_in(user)
        self.walk.may_publish = user.publish.may_publish if user.publish != Rule() else None
        self.walk.allowed = {}
        self.walk.restricted = user.subscribe != Rule()
        self.may_walk = True

    def _auth_timeout(self) -> None:
        self._refuse(ProtocolError("Authentication Timeout"))

    def _ping(self, arguments: bytes) -> None:
        self._pong_sent = True
        self._send(wire.PONG)

    def _pong(self, arguments: bytes) -> None:
        if self._ping_sent:
            self.rtt = self.last_input - self._ping_sent
            self._ping_sent = 0.0
        self._pings_out = 0

    def _sub(self, arguments: bytes) -> None:
        subject, group, sid = wire.parse_sub(arguments)
        asked = from_raw(subject)
        pattern, past = split_past(asked)
        queue = from_raw(group) if group is not None else None
        if not is_pattern(pattern):
            raise ProtocolError("Invalid Subject", closes=False)
        if sid in self.by_sid:
            if self.dialect.sid_taken is not None:
                raise ProtocolError(self.dialect.sid_taken, closes=False)
            self._ok()
            return
        limit = self.settings.max_subscriptions
        if limit and len(self.by_sid) >= limit:
            raise ProtocolError("maximum subscriptions exceeded", closes=False)
        rule = self.user.subscribe if self.user is not None else ANYONE.subscribe
        if not rule.may_subscribe(pattern, queue):
            using = f' using queue "{queue}"' if queue is not None else ""
            raise ProtocolError(
                f'Permissions Violation for Subscription to "{asked}"{using}', closes=False
            )
        hidden = rule.hidden(pattern, queue)
        subscription = Subscription(self, pattern, queue, sid, hidden, self.outlet)
        self.by_sid[sid] = subscription
        self._ok()
        if past:
            before = self.batch.size()
            self.hub.subscribe(subscription, past)
            self.outbox.allowance += self.batch.size() - before
        else:
            self.hub.subscribe(subscription)

    def _unsub(self, arguments: bytes) -> None:
        sid, maximum = wire.parse_unsub(arguments)
        subscription = self.by_sid.get(sid)
        if subscription is None:
            if self.dialect.sid_unknown is not None:
                raise ProtocolError(self.dialect.sid_unknown, closes=False)
        elif not maximum:
            self.hub.unsubscribe(subscription)
            del self.by_sid[sid]
        elif self.hub.limit(subscription, maximum, from_now=self.dialect.maximum_from_now):
            del self.by_sid[sid]
        self._ok()

    def _pub(self, arguments: bytes) -> None:
        self._expect(wire.parse_pub(arguments))

    def _hpub(self, arguments: bytes) -> None:
        self._expect(wire.parse_hpub(arguments))

    def _expect(self, publication: wire.Publication) -> None:
        if publication.size > self.settings.max_payload:
            raise ProtocolError("Maximum Payload Violation")
        self.expect_payload(publication)

    _commands: dict[bytes, Callable[[NatsProtocol, bytes], None]] = {
        b"CONNECT": _connect,
        b"PING": _ping,
        b"PONG": _pong,
        b"SUB": _sub,
        b"UNSUB": _unsub,
        b"PUB": _pub,
        b"HPUB": _hpub,
    }

    def payload_received(self, publication: wire.Publication, payload: bytes) -> None:
        try:
            self.walk.publish(
                publication.subject,
                publication.reply,
                publication.header_size,
                payload,
                # The time of the whole chunk, as the walk has it: the history stays in order.
                self.last_input,
                self.door,
            )
        except ProtocolError as error:
            self._refuse(error)

    def _published(self, subject: bytes, reply: bytes | None, count: int) -> None:
        """What is to be said after a publication."""
        self._ok()
        if not count and reply is not None and self.no_responders:
            self._tell_no_responders(from_raw(subject), from_raw(reply))

    def _tell_no_responders(self, subject: str, reply: str) -> None:
        headers = wire.encode_headers([("Nats-Subject", subject)], "503")
        for subscription in self.hub.subscriptions_of(reply):
            if subscription.subscriber is self and subscription.raw_queue is None:
                self.hub.deliver_to(subscription, Message(reply, b"", headers=headers))
                return

    # ISubscriber: what the hub calls.

    @property
    def stalled(self) -> bool:
        return self.outbox.congested

    def deliver(self, subscription: Subscription, message: Message) -> None:
        publication = Publication(message.time, message.door)
        publication.place_message(message)
        self.outlet.take(subscription, publication)

    def flush(self) -> bool:
        self.outbox.flush()
        return self.outbox.worth_a_pause()

    def ended(self, subscription: Subscription, reason: str) -> None:
        self.by_sid.pop(subscription.key, None)

    # Slow consumers

    def _overflowed(self, last: bytes) -> None:
        if self.closed_reason:
            return
        subject = from_raw(self.outlet.last) or "?"
        self.closed_reason = "slow consumer"
        self.factory.announcements.slow(self, "close", subject, self.outbox.pending)
        self.abort()

    def _wait_for(self, behind: list[ISubscriber]) -> None:
        """Read no more until these have caught up, or for a moment at most."""
        if self.done or self.has_timer("pause"):
            return
        for subscriber in behind:
            if isinstance(subscriber, NatsProtocol):
                subscriber._waiting.append(self)
        self.later("pause", PAUSE, self._read_on)
        self.transport.pauseProducing()

    def _caught_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        for publisher in waiting:
            publisher._go_on()

    def _go_on(self) -> None:
        if self.has_timer("pause"):
            self.cancel("pause")
            self._read_on()

    def _read_on(self) -> None:
        if not self.paused:
            self.transport.resumeProducing()

    # Keeping alive

    def tick(self, now: float) -> None:
        """Called every second or so: PING who was silent, close who does not answer."""
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
            self.later("ping", self.dialect.first_ping, self._first_ping)
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
        self.cancel("tls")
        self.later("tls", self.settings.auth_timeout, self._tls_timeout)
        self.outbox.started_tls()
        self.transport.startTLS(self.factory.tls)
        if data:
            self.transport.protocol.dataReceived(data)

    def handshakeCompleted(self) -> None:
        self.cancel("tls")

    def _tls_timeout(self) -> None:
        self.closed_reason = "TLS handshake timeout"
        self.abort()

    # Reloading

    def reloaded(self, user: User | None) -> None:
        before = self.settings.max_payload
        super().reloaded(user)
        self._set_limits()
        if self.settings.max_payload != before and self.user is not None:
            self._tell_news()

    def tell_lame_duck(self) -> None:
        self._tell_news()

    def _tell_news(self) -> None:
        """Another INFO, for clients that have said that they understand one."""
        if self.options.get("protocol") and not self.done:
            self.send_info()
