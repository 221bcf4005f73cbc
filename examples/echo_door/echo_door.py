"""A door for rtmb: lines of text. Each line ``subject text`` that a client sends is published, and
each message on the pattern of the door's table is written to all clients as such a line::

    [doors.echo]
    port = 7777
    subject = "echo.>"

The parts stand in the order of docs/doors.md, which tells why each is needed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from twisted.internet.protocol import ServerFactory
from twisted.plugin import IPlugin
from twisted.protocols.basic import LineOnlyReceiver
from zope.interface import implementer

from rtmb.api import (
    LINGER,
    Broker,
    IDoor,
    IDoorService,
    ISubscriber,
    Listener,
    Message,
    Outbox,
    Roster,
    Session,
    SettingsError,
    Subscription,
    User,
    is_pattern,
    is_subject,
    port_number,
    to_raw,
)

#: How long, in seconds, nothing is read from a client whose messages others cannot take as fast.
PAUSE = 0.01


@implementer(ISubscriber)
class EchoProtocol(Session, LineOnlyReceiver):
    """One client."""

    door = "echo"
    delimiter = b"\n"
    echo = True
    roster: EchoFactory
    transport: Any

    def __init__(self, roster: EchoFactory) -> None:
        super().__init__(roster)
        self.subscription: Subscription | None = None

    # Coming and going

    def connectionMade(self) -> None:
        self.outbox = Outbox(self.transport, self.settings.max_pending, self.overflowed)
        self.come_from(self.transport.getPeer())
        guest = self.roster.authenticator.guest  # who someone is that cannot say who it is
        why = "nobody may come in" if guest is None else self.join()
        if guest is None or why:
            self.close(why)
            return
        self.let_in(guest)
        pattern = self.roster.pattern
        if guest.subscribe.may_subscribe(pattern):
            hidden = guest.subscribe.hidden(pattern)
            self.subscription = Subscription(self, pattern, deny=hidden)
            self.hub.subscribe(self.subscription)
        else:
            self.say("you may not subscribe here")

    def connectionLost(self, reason: Any = None) -> None:
        self.outbox.discard()
        self.leave("client closed")

    def close(self, reason: str) -> None:
        if not self.done:
            self.done = True
            self.closed_reason = reason
            self.forget()
            self.later("linger", LINGER, self.abort)
            self.say(reason)
            self.outbox.finish()

    def abort(self) -> None:
        self.done = True
        self.forget()
        self.outbox.discard()
        self.transport.abortConnection()

    def overflowed(self, last: bytes) -> None:
        """More than max_pending waits: this client does not read."""
        self.roster.announcements.slow(self, "close", self.roster.pattern, self.pending)
        self.closed_reason = "slow consumer"
        self.abort()

    # What only the door knows

    @property
    def pending(self) -> int:
        return self.outbox.pending

    @property
    def subscriptions(self) -> Collection[Subscription]:
        return () if self.subscription is None else (self.subscription,)

    def tell_lame_duck(self) -> None:
        self.say("this broker is to stop; go elsewhere")

    def not_allowed(self, subscription: Subscription) -> None:
        self.subscription = None
        self.say("you may not subscribe here any more")

    def say(self, text: str) -> None:
        self.outbox.write(b"? " + text.encode() + b"\n")

    # What the client says

    def dataReceived(self, data: bytes) -> None:
        if self.done:
            return
        self.last_input = self.hub.clock()
        super().dataReceived(data)
        if self.hub.flush() and not self.done:  # somebody is far behind, but reading
            self.transport.pauseProducing()
            self.later("pause", PAUSE, self.transport.resumeProducing)

    def lineReceived(self, line: bytes) -> None:
        subject, _, text = line.decode("utf-8", "replace").strip().partition(" ")
        user = self.user or User()
        if self.done:
            return
        if not is_subject(subject):
            self.say("a line is: subject text")
        elif len(text) > self.settings.max_payload:
            self.say("too long")
        elif not user.publish.may_publish(subject):
            self.say(f"you may not publish on {subject}")
        else:
            self.hub.deliver(Message(subject, value=text, door=self.door), self)

    def lineLengthExceeded(self, line: bytes) -> None:
        self.close("too long a line")

    # ISubscriber: what the hub says. Collect in `deliver`, send once in `flush`.

    @property
    def stalled(self) -> bool:
        return self.outbox.congested

    def deliver(self, subscription: Subscription, message: Message) -> None:
        if not self.outbox.batch:
            self.hub.wake(self)
        self.outbox.batch.append(to_raw(message.subject) + b" " + message.payload + b"\n")

    def flush(self) -> bool:
        self.outbox.flush()
        return self.outbox.worth_a_pause()

    def ended(self, subscription: Subscription, reason: str) -> None:
        self.subscription = None
        self.say(f"no more messages: {reason}")


class EchoFactory(Roster[EchoProtocol], ServerFactory):
    """All clients, and what they share."""

    noisy = False

    def __init__(self, broker: Broker, pattern: str) -> None:
        super().__init__(broker)
        self.pattern = pattern

    def buildProtocol(self, addr: Any) -> EchoProtocol:
        return EchoProtocol(self)


class EchoService(Listener):
    """Listens, stops, reloads and drains."""

    greeting = "echo door: {host}:{port}"
    option = "doors.echo.port"


@implementer(IDoor, IPlugin)
class EchoDoor:
    name = "echo"

    def open(self, broker: Broker, options: dict[str, Any]) -> IDoorService:
        unknown = options.keys() - {"port", "subject"}
        if unknown:
            raise SettingsError(f"doors.echo: unknown key {min(unknown)}")
        pattern = options.get("subject", "echo.>")
        if not isinstance(pattern, str) or not is_pattern(pattern):
            raise SettingsError(f"doors.echo.subject: not a pattern: {pattern!r}")
        try:
            port = port_number(options.get("port", 7777))
        except ValueError as error:
            raise SettingsError(f"doors.echo.port: expected {error}") from None
        factory = EchoFactory(broker, pattern)
        return EchoService(broker, factory, port, [factory], broker.tls)
