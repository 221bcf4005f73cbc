"""A door for rtmb: lines of text. Each line ``subject text`` that a client sends is published, and
each message on the pattern of the door's table is written to all clients as such a line::

    [doors.echo]
    port = 7777
    subject = "echo.>"
"""

from __future__ import annotations

from typing import Any

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import IService
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Factory
from twisted.plugin import IPlugin
from twisted.protocols.basic import LineOnlyReceiver
from zope.interface import implementer

from rtmb.broker import Broker
from rtmb.config import SettingsError, port_number
from rtmb.core.counters import Counters
from rtmb.core.hub import Hub
from rtmb.core.message import Message
from rtmb.core.routing import Subscription
from rtmb.core.subjects import is_pattern, is_subject, to_raw
from rtmb.interfaces import IDoor, ISubscriber

#: A client that leaves this many bytes unread is dropped.
MOST_WAITING = 8 << 20


@implementer(ISubscriber)
class EchoProtocol(LineOnlyReceiver):
    """One client."""

    delimiter = b"\n"
    echo = True
    stalled = False
    name = door = "echo"

    def __init__(self, hub: Hub, pattern: str) -> None:
        self.hub = hub
        self.counters = Counters()
        self.subscription = Subscription(self, pattern)
        self.waiting: list[bytes] = []

    def connectionMade(self) -> None:
        self.number = self.hub.join(self)
        self.name = f"echo cid:{self.number}"
        self.hub.subscribe(self.subscription)
        self.transport.registerProducer(self, True)  # type: ignore[union-attr]

    def connectionLost(self, reason: Any = None) -> None:
        self.hub.unsubscribe(self.subscription)
        self.hub.leave(self.number)

    def lineReceived(self, line: bytes) -> None:
        subject, _, text = line.decode("utf-8", "replace").strip().partition(" ")
        if is_subject(subject):
            self.hub.publish(Message(subject, value=text, door="echo"), self)
        else:
            self.sendLine(b"? a line is: subject text")

    # ISubscriber: what the hub calls. Collect in `deliver`, send once in `flush`.

    def deliver(self, subscription: Subscription, message: Message) -> None:
        if not self.waiting:
            self.hub.wake(self)
        self.waiting.append(to_raw(message.subject) + b" " + message.payload)

    def flush(self) -> bool:
        if not self.stalled:
            lines, self.waiting = self.waiting, []
            self.transport.writeSequence([line + b"\n" for line in lines])  # type: ignore[union-attr]
        elif sum(map(len, self.waiting)) > MOST_WAITING:
            self.waiting = []
            self.transport.abortConnection()  # type: ignore[union-attr]
        return False

    def ended(self, subscription: Subscription, reason: str) -> None:
        self.transport.loseConnection()  # type: ignore[union-attr]

    # IPushProducer: the transport says when the client does not keep up.

    def pauseProducing(self) -> None:
        self.stalled = True

    def resumeProducing(self) -> None:
        self.stalled = False
        self.flush()

    def stopProducing(self) -> None:
        self.waiting = []


class EchoFactory(Factory):
    def __init__(self, hub: Hub, pattern: str) -> None:
        self.hub, self.pattern = hub, pattern

    def buildProtocol(self, addr: Any) -> EchoProtocol:
        return EchoProtocol(self.hub, self.pattern)


@implementer(IDoor, IPlugin)
class EchoDoor:
    name = "echo"

    def open(self, broker: Broker, options: dict[str, Any]) -> IService | None:
        pattern = options.get("subject", "echo.>")
        if not isinstance(pattern, str) or not is_pattern(pattern):
            raise SettingsError(f"doors.echo.subject: not a pattern: {pattern!r}")
        try:
            number = port_number(options.get("port", 7777))
        except ValueError as error:
            raise SettingsError(f"doors.echo.port: expected {error}") from None
        endpoint = TCP4ServerEndpoint(broker.reactor, number, interface=broker.settings.interface)
        return StreamServerEndpointService(endpoint, EchoFactory(broker.hub, pattern))
