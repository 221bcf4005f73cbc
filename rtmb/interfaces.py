"""The seams of rtmb, as zope interfaces. Nothing else of rtmb is imported here at run time.

`ISubscriber` is what the hub delivers to, `IDoor` is a way into the hub, `IAuthenticator`
decides who may come in. Everything inside the seams is plain classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from twisted.application.service import IService
    from twisted.internet.defer import Deferred

    from rtmb.auth import Credentials, User
    from rtmb.broker import Broker
    from rtmb.core.message import Message
    from rtmb.core.subjects import Counters, Subscription


class ISubscriber(Interface):
    """One client of a door, as the hub sees it: it takes messages and may send some."""

    name: str = Attribute("Who this is, for people: the log, the monitoring.")
    door: str = Attribute("The name of the door it came by.")
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


class IDoor(Interface):
    """A way into the hub: a protocol on a port, a link, a bridge.

    The doors that rtmb brings are listed in `rtmb.doors`. Any other package adds one by putting an
    object that provides `IDoor` and `twisted.plugin.IPlugin` into its `twisted/plugins/`; the
    broker opens it when the configuration has a table ``[doors.<name>]``.
    """

    name: str = Attribute("One word: it names the door's table in the configuration.")

    def open(broker: Broker, options: dict[str, Any]) -> IService | None:
        """Make the service that runs this door, or None when it is turned off.

        `options` is the door's own table of the configuration, not checked by rtmb: raise
        `rtmb.config.SettingsError` for what is wrong in it. The service listens when it is
        started and, when stopped, closes its clients and returns a Deferred for the end of it."""


class IAuthenticator(Interface):
    """Decides who may come in."""

    required: bool = Attribute("Whether a client must say who it is before anything else.")
    guest: User | None = Attribute("Who a client is that says nothing of itself; None: nobody.")
    nonce_needed: bool = Attribute("Whether clients need a nonce to sign.")

    def authenticate(credentials: Credentials) -> Deferred[User | None]:
        """Who this is, or None when the credentials are wrong."""

    def recheck(user: User | None) -> User | None:
        """Who someone, let in by an earlier authenticator, is now; None: nobody any more."""
