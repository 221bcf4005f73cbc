"""The connection of one client of the text door: it comes and goes, is kept alive, encrypted,
paused for, and talked to. What the client says is understood in `rtmb.doors.nats.protocol`."""

from __future__ import annotations

import base64
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHandshakeListener
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rtmb.auth import ANYONE, User
from rtmb.codecs import nats as wire
from rtmb.codecs.nats import ProtocolError
from rtmb.core.message import Message
from rtmb.core.publication import Publication
from rtmb.core.subjects import from_raw
from rtmb.core.subscriptions import Subscription
from rtmb.doors.nats.dialect import BARE
from rtmb.doors.nats.outlet import NatsOutlet
from rtmb.doors.nats.receiver import Receiver
from rtmb.doors.nats.walk import Walk
from rtmb.doors.outbox import Outbox
from rtmb.doors.session import LAME_DUCK, LINGER, Session
from rtmb.interfaces import ISubscriber

if TYPE_CHECKING:
    from rtmb.doors.nats.service import NatsFactory

#: Read this much at a time. Eight times Twisted's own: each read costs a turn of the reactor, and
#: what it brings is sent with one call (benchmarks: 1→1 at 1 KiB and 16 KiB).
READ_SIZE = 512 * 1024
#: The longest that a publisher is made to wait for a subscriber that is behind, each time.
PAUSE = 0.01
#: The first byte of a TLS handshake.
TLS_HELLO = 0x16


@implementer(ISubscriber, IHandshakeListener)
class NatsConnection(Session, Receiver):
    """One client. Who inherits it gives `lineReceived` and `payload_received`."""

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
        self.tls_expected = False
        self.pings_out = 0
        self.ping_sent = 0.0
        self._next_ping = self.started + self.settings.ping_interval
        self.pong_sent = False
        #: Publishers that wait until this client has caught up.
        self._waiting: list[NatsConnection] = []

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
        self.walk.tell = self.published
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
            self.start_tls(b"")
        elif self.factory.tls is not None:
            self.tls_expected = True
            self.later("tls", settings.auth_timeout, self._tls_timeout)
        self.send_info()
        if self.user is None:
            self.later("auth", settings.auth_timeout, self._auth_timeout)
        else:
            self.let_in(self.user)

    def _auth_timeout(self) -> None:
        self.refuse(ProtocolError("Authentication Timeout"))

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
        self.refuse(ProtocolError(why))

    def not_allowed(self, subscription: Subscription) -> None:
        self.by_sid.pop(subscription.key, None)
        queue = subscription.queue
        using = f' using queue "{queue}"' if queue is not None else ""
        text = f'Permissions Violation for Subscription to "{subscription.pattern}"{using}'
        self.refuse(ProtocolError(text, closes=False))

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
        self.send(wire.info(self.factory.info_for(self)))

    def send(self, data: bytes) -> None:
        if not self.batch:
            self.hub.wake(self)
        self.batch.append(data)
        if not self._busyReceiving:
            self.hub.flush()

    def refuse(self, error: ProtocolError) -> None:
        if error.closes:
            self.log.warn("protocol error: {name}: {error}", name=self.name, error=error.text)
            self.close_for(error.text, f"protocol error: {error.text}")
        else:
            self.log.info("refused: {name}: {error}", name=self.name, error=error.text)
            self.send(wire.err(error.text))

    def ok(self) -> None:
        if self.verbose:
            self.send(wire.OK)

    def published(self, subject: bytes, reply: bytes | None, count: int) -> None:
        """What is to be said after a publication."""
        self.ok()
        if not count and reply is not None and self.no_responders:
            self.tell_no_responders(from_raw(subject), from_raw(reply))

    def tell_no_responders(self, subject: str, reply: str) -> None:
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

    def wait_for(self, behind: list[ISubscriber]) -> None:
        """Read no more until these have caught up, or for a moment at most."""
        if self.done or self.has_timer("pause"):
            return
        for subscriber in behind:
            if isinstance(subscriber, NatsConnection):
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
        if now - self.last_input < interval and not self.pings_out:
            self._next_ping = self.last_input + interval
            return
        if self.pings_out >= self.settings.ping_max:
            self.refuse(ProtocolError("Stale Connection"))
            return
        self.pings_out += 1
        self._next_ping = now + interval
        self.send_ping()

    def first_ping(self) -> None:
        if not self.pong_sent:  # a PING before the first PONG would break the handshake
            self.later("ping", self.dialect.first_ping, self.first_ping)
        else:
            self.send_ping()

    def send_ping(self) -> None:
        self.ping_sent = self.hub.clock()
        self.send(wire.PING)

    # Who it is

    def nonce(self) -> str:
        """What a client with an nkey must sign."""
        if not self._nonce:
            self._nonce = base64.urlsafe_b64encode(os.urandom(11)).decode().rstrip("=")
        return self._nonce

    # TLS

    def start_tls(self, data: bytes) -> None:
        self.tls_expected = False
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
