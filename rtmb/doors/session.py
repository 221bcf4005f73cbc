"""What clients of all doors have in common, once: they join and leave, have timers, run out of
time, are looked at again after a reload, and are told when the broker is to be left.

`Session` is one client, `Roster` is all clients of one door and what they share. A door's client
inherits `Session` and says how its protocol tells people things.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from zope.interface import implementer

from rtmb.auth import User
from rtmb.config import Settings
from rtmb.core.counters import Counters
from rtmb.core.hub import Hub
from rtmb.core.subscriptions import Subscription
from rtmb.interfaces import IAuthenticator, IClient

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: How long a client that is being closed may take to read its last bytes.
LINGER = 5.0
#: Seconds between two looks at every client.
TICK = 1.0
#: Why clients are closed when the broker stops, and when it is to be left.
STOPPING = "the broker is stopping"
LAME_DUCK = "lame duck mode"


@implementer(IClient)
class Session:
    """One client of a door."""

    door = ""
    kind = "Client"
    #: Whether it takes a place among all connections: not what came on a connection that has one.
    takes_place = True
    #: Whether it is here for one request only: nobody is told of it, and it is let in to the end.
    transient = False
    rtt: float | None = None

    def __init__(self, roster: Roster[Any], user: User | None = None) -> None:
        self.roster = roster
        self.hub: Hub = roster.hub
        self.settings = roster.settings
        #: Who it is; None until that is known.
        self.user = user
        self.number = 0
        self.host, self.port = "", 0
        self.name = "?"
        self.counters = Counters()
        self.started: float = roster.hub.clock()
        self.last_input: float = self.started
        #: Set when it is to close: nothing more is read from it.
        self.done: bool = False
        self.closed_reason = ""
        self._timers: dict[str, IDelayedCall] = {}
        self._has_place = False

    # What only the door knows

    @property
    def pending(self) -> int:
        """Bytes that wait for this client to read."""
        raise NotImplementedError

    @property
    def subscriptions(self) -> Collection[Subscription]:
        """What it has subscribed to."""
        raise NotImplementedError

    def describe(self) -> Mapping[str, str]:
        """What it said of itself."""
        return {}

    def close(self, reason: str) -> None:
        """Say why, send what waits, and close."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close at once."""
        raise NotImplementedError

    def tell_lame_duck(self) -> None:
        """Tell it to go elsewhere, where the protocol has a word for that."""

    def not_welcome(self, why: str) -> None:
        """It has lost its access: tell it so, and close."""
        self.close(why)

    def not_allowed(self, subscription: Subscription) -> None:
        """It may have this subscription no longer; it has been ended. Tell it so, and forget it."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Called every second or so."""

    # Coming and going

    def come_from(self, peer: Any) -> None:
        """Take down where it comes from: an address of Twisted's, of any kind."""
        self.host, self.port = getattr(peer, "host", ""), getattr(peer, "port", 0)
        self.name = f"{self.host}:{self.port}"

    def join(self) -> str:
        """Become a client of the broker. Returns why that cannot be, or nothing."""
        clients = self.roster.clients
        if clients.leaving and not self.transient:
            return LAME_DUCK
        if self.takes_place and not clients.take_place():
            return "maximum connections exceeded"
        self._has_place = self.takes_place
        self.number = clients.join(self)
        self.name = f"{self.host}:{self.port} - cid:{self.number}"
        self.roster.sessions[self.number] = self
        if not self.transient:
            self.roster.announcements.connected(self)
        return ""

    def leave(self, reason: str) -> None:
        """The connection is gone."""
        self.done = True
        self.forget()
        if self._has_place:
            self._has_place = False
            self.roster.clients.free_place()
        if self.roster.sessions.pop(self.number, None) is not None:
            self.roster.clients.leave(self.number)
            if not self.transient:
                self.roster.announcements.disconnected(self, self.closed_reason or reason)
            self.roster.session_gone()

    def forget(self) -> None:
        """Leave no timer, and no trace in the hub."""
        for subscription in list(self.subscriptions):
            self.hub.unsubscribe(subscription)
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        self._timers.clear()

    # Timers

    def later(self, name: str, delay: float, call: Callable[[], Any]) -> None:
        """Call something after a while, unless `cancel` comes first or another of that name."""
        self.cancel(name)

        def now() -> None:
            self._timers.pop(name, None)
            call()

        self._timers[name] = self.roster.reactor.callLater(delay, now)

    def cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None and timer.active():
            timer.cancel()

    def has_timer(self, name: str) -> bool:
        return name in self._timers

    # Who it is

    def let_in(self, user: User) -> None:
        """This is who it is, until that expires."""
        self.user = user
        self.cancel("expiry")
        if user.expires is not None:
            left = user.expires.timestamp() - self.hub.clock()
            self.later("expiry", max(0.0, left), self.expired)

    def expired(self) -> None:
        """The time of its user is over."""
        self.not_welcome("User Authentication Expired")

    def reloaded(self, user: User | None) -> None:
        """The settings have changed, and `user` is who this client is now."""
        self.settings = self.roster.settings
        if self.user is None:
            return  # not in yet: it will be judged by the new rules
        if user is None or user.expired(self.hub.clock()):
            self.not_welcome("Authorization Violation")
            return
        self.let_in(user)
        for subscription in list(self.subscriptions):
            pattern, queue = subscription.pattern, subscription.queue
            if user.subscribe.may_subscribe(pattern, queue):
                self.hub.hide(subscription, user.subscribe.hidden(pattern, queue))
            else:
                self.hub.unsubscribe(subscription)
                self.not_allowed(subscription)


S = TypeVar("S", bound=Session)


class Roster(Generic[S]):
    """All clients of a door, and what they share."""

    log = Logger()

    def __init__(self, broker: Broker) -> None:
        self.reactor = broker.reactor
        self.hub = broker.hub
        self.clients = broker.clients
        self.announcements = broker.announcements
        self.settings = broker.settings
        self.authenticator = broker.authenticator
        self.sessions: dict[int, S] = {}
        self._empty: Deferred[None] | None = None
        self._ticking = LoopingCall(self._tick)
        self._ticking.clock = self.reactor

    def start(self) -> None:
        """Look at every client every second from now on."""
        if not self._ticking.running:
            self._ticking.start(min(TICK, self.settings.ping_interval / 4), now=False)

    def stop(self) -> None:
        if self._ticking.running:
            self._ticking.stop()

    def _tick(self) -> None:
        now = self.hub.clock()
        for session in list(self.sessions.values()):
            session.tick(now)

    def recheck(self, user: User | None) -> User | None:
        """Who someone, let in earlier, is now; None: nobody any more."""
        return self.authenticator.recheck(user)

    def reload(self, settings: Settings, authenticator: IAuthenticator) -> None:
        """Take new users, permissions and limits, and hold every client to them."""
        self.settings, self.authenticator = settings, authenticator
        for session in list(self.sessions.values()):
            session.reloaded(self.recheck(session.user))

    # Ending

    def session_gone(self) -> None:
        if not self.sessions and self._empty is not None:
            empty, self._empty = self._empty, None
            empty.callback(None)

    def when_empty(self) -> Deferred[None]:
        """Fires when the last client has gone."""
        if not self.sessions:
            return succeed(None)
        if self._empty is None:
            self._empty = Deferred()
        waiting: Deferred[None] = Deferred()
        self._empty.chainDeferred(waiting)
        return waiting

    def enter_lame_duck(self, grace: float) -> Deferred[None]:
        """Tell the clients to go elsewhere, then close them one by one over `grace` seconds."""
        leaving = list(self.sessions.values())
        for session in leaving:
            session.tell_lame_duck()
        for i, session in enumerate(leaving):
            session.later("lame duck", grace * (i + 1) / len(leaving), self._closing(session))
        return self.when_empty()

    @staticmethod
    def _closing(session: Session) -> Callable[[], None]:
        return lambda: session.close(LAME_DUCK)

    def close_all(self, timeout: float) -> Deferred[None]:
        """Flush and close every client; those that do not take it in time are cut off."""
        self.stop()
        empty = self.when_empty()
        late = self.reactor.callLater(timeout, self._abort_all)
        for session in list(self.sessions.values()):
            session.close(STOPPING)
        return empty.addCallback(lambda _: late.cancel() if late.active() else None)

    def _abort_all(self) -> None:
        for session in list(self.sessions.values()):
            session.abort()
