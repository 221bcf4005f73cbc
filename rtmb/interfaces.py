"""The seams of rtmb, as zope interfaces. Nothing else of rtmb is imported here at run time.

`IDoor` is a way into the hub and `IDoorService` what runs it; `IClient` is one client of a door, as
monitoring and limits see it, and `ISubscriber` is what the hub delivers to; `IAuthenticator`
decides who may come in. Everything inside the seams is plain classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.application.service import IService
from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from twisted.internet.defer import Deferred

    from rtmb.auth import Credentials, User
    from rtmb.broker import Broker
    from rtmb.config import Settings
    from rtmb.core.counters import Counters
    from rtmb.core.message import Message
    from rtmb.core.subscriptions import Subscription


class ISubscriber(Interface):
    """What the hub delivers to."""

    counters: Counters = Attribute("Messages and bytes in and out; the hub adds to them.")
    echo: bool = Attribute("Whether it wants the messages that it published itself.")
    stalled: bool = Attribute("True while it is behind: queue groups pass it over.")

    def deliver(subscription: Subscription, message: Message) -> None:
        """Take one message. It may be sent at once, or collected: then call `Hub.wake(self)`
        and send from `flush`. It must not raise, block or call back into the publisher."""

    def flush() -> bool:
        """Send what `deliver` collected; called once after each batch.

        Returns True when the client is so far behind that publishers should pause."""

    def ended(subscription: Subscription, reason: str) -> None:
        """The hub removed this subscription by itself: its maximum was reached, or its topic was
        deleted."""


class IClient(Interface):
    """One client of a door, as monitoring, kicking, metrics and limits see it. `rtmb.doors.session`
    has all of it but what only the door can know."""

    number: int = Attribute("Its number, once it has joined; no two clients ever have the same.")
    name: str = Attribute("Who this is, for people: the log, the monitoring.")
    door: str = Attribute("The name of the door it came by.")
    kind: str = Attribute("What it is in monitoring: ``Client``, or ``Leafnode`` for a link.")
    host: str = Attribute("The address that it came from, or nothing.")
    port: int = Attribute("The port that it came from, or 0.")
    counters: Counters = Attribute("Messages and bytes in and out.")
    started: float = Attribute("When it came, in seconds since the epoch.")
    last_input: float = Attribute("When something last came from it.")
    rtt: float | None = Attribute("Seconds to it and back, where its door measures that.")
    pending: int = Attribute("Bytes that wait for it to read.")
    subscriptions: Collection[Subscription] = Attribute("What it has subscribed to.")

    def describe() -> Mapping[str, str]:
        """What it said of itself: ``name``, ``lang``, ``version``, those that it gave."""

    def close(reason: str) -> None:
        """Tell it why, where the protocol has a word for it, send what waits, and close."""


class IDoor(Interface):
    """A way into the hub: a protocol on a port, a link, a bridge.

    The doors that rtmb brings are listed in `rtmb.doors`. Any other package adds one by putting an
    object that provides `IDoor` and `twisted.plugin.IPlugin` into its `twisted/plugins/`; the
    broker opens it when the configuration has a table ``[doors.<name>]``.
    """

    name: str = Attribute("One word: it names the door's table in the configuration.")

    def open(broker: Broker, options: dict[str, Any]) -> IDoorService | None:
        """Make the service that runs this door, or None when it is turned off.

        `options` is the door's own table of the configuration, not checked by rtmb: raise
        `rtmb.config.SettingsError` for what is wrong in it."""


class IDoorService(IService):
    """Runs a door: it listens when it is started and, when stopped, closes its clients and returns
    a Deferred for the end of that. `rtmb.doors.listener.Listener` is one to inherit."""

    def reload(settings: Settings, authenticator: IAuthenticator) -> None:
        """Take new users, permissions and limits, and hold every client to them."""

    def enter_lame_duck(grace: float) -> Deferred[None]:
        """Let nobody in any more, tell the clients to go elsewhere, and close those that stay one
        by one over `grace` seconds. Fires when the last has gone."""


class IAuthenticator(Interface):
    """Decides who may come in."""

    required: bool = Attribute("Whether a client must say who it is before anything else.")
    guest: User | None = Attribute("Who a client is that says nothing of itself; None: nobody.")
    nonce_needed: bool = Attribute("Whether clients need a nonce to sign.")

    def authenticate(credentials: Credentials) -> Deferred[User | None]:
        """Who this is, or None when the credentials are wrong."""

    def recheck(user: User | None) -> User | None:
        """Who someone, let in by an earlier authenticator, is now; None: nobody any more."""
