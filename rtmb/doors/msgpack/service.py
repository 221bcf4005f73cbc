"""The msgpack door: all its clients, who they are, and the service that listens for them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IDelayedCall
from twisted.internet.protocol import ServerFactory
from twisted.internet.task import Cooperator
from twisted.python.failure import Failure
from zope.interface import implementer

from rtmb.auth import ANYONE, Credentials, User
from rtmb.codecs.msgpack import DOOR, check_topic, text_of
from rtmb.config import Settings
from rtmb.core.subjects import is_subject, to_raw
from rtmb.doors.listener import Listener
from rtmb.doors.msgpack.feed import Feed
from rtmb.doors.msgpack.protocol import MsgpackProtocol
from rtmb.doors.msgpack.publisher import Known
from rtmb.doors.msgpack.recent import Recent
from rtmb.doors.session import Roster
from rtmb.interfaces import IAuthenticator, IDoor, IDoorService

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: Bytes of a frame beyond its topic and its value.
_FRAME_COST = 64
#: Topics of which it is known what they are, and the bytes that they may have.
_CACHE, _CACHE_SIZE = 16_384, 4 << 20

#: How long those who do not keep up, together, may take before it is others' turn, in seconds.
_TURN = 0.005


def _end_of_turn() -> Callable[[], bool]:
    end = perf_counter() + _TURN
    return lambda: perf_counter() >= end


class MsgpackFactory(Roster[MsgpackProtocol], ServerFactory):
    """All clients of the door, and what they share: the feed, and who they are."""

    noisy = False

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.tls = broker.tls
        user = None if self.authenticator.required else ANYONE
        self.feed = Feed(self.hub, self.settings, user)
        #: What clients that do not keep up, or look for retained values, do in turns.
        self.jobs = Cooperator(_end_of_turn, lambda call: self.reactor.callLater(0, call))
        #: What is known of topics, as they are written.
        self.topics: Recent[bytes, Known] = Recent(_CACHE, _CACHE_SIZE)
        self._expiry: IDelayedCall | None = None

    @property
    def most_frame(self) -> int:
        """The longest frame: what `max_payload` and `max_control_line` allow."""
        return self.settings.max_payload + 4 * self.settings.max_control_line + _FRAME_COST

    def buildProtocol(self, addr: IAddress | None) -> MsgpackProtocol:
        return MsgpackProtocol(self)

    def learn(self, written: bytes) -> Known:
        """What there is to know of a topic that was not seen lately."""
        topic = text_of(written, "a topic")
        check_topic(topic, self.settings.max_control_line)
        user = self.feed.user
        allowed = user is not None and user.publish.may_publish(topic)
        known = topic, to_raw(topic) if is_subject(topic) else None, allowed
        self.topics.keep(written, known)
        return known

    # Who the clients are

    def ask(self) -> Deferred[None]:
        """Find out who someone is that gives no credentials: so every client is."""

        def failed(failure: Failure) -> None:
            self.log.failure("the authenticator failed", failure)

        asked = self.authenticator.authenticate(Credentials())
        return asked.addErrback(failed).addCallback(self._become)

    def _become(self, user: User | None) -> None:
        self._cancel_expiry()
        if user is not None and user.expires is not None:
            left = user.expires.timestamp() - self.hub.clock()
            if left <= 0:
                user = None
            else:
                self._expiry = self.reactor.callLater(left, self._become, None)
        self.feed.user = user
        self.topics.clear()
        self.feed.changed()
        for client in list(self.sessions.values()):
            client.user = user
            if user is None:
                client.close("nobody may come in by this door any more")

    def _cancel_expiry(self) -> None:
        if self._expiry is not None and self._expiry.active():
            self._expiry.cancel()

    def reload(self, settings: Settings, authenticator: IAuthenticator) -> None:
        self.feed.settings = settings
        super().reload(settings, authenticator)
        self.ask()

    def stop(self) -> None:
        super().stop()
        self._cancel_expiry()


class MsgpackService(Listener):
    """Listens for the door, where there is someone that its clients can be."""

    greeting = "msgpack door: {host}:{port}"
    option = "--msgpack-port"

    def __init__(self, broker: Broker) -> None:
        self.factory: MsgpackFactory = MsgpackFactory(broker)
        port = broker.settings.msgpack_port
        super().__init__(broker, self.factory, port, [self.factory], broker.tls)
        self._asked = False

    def privilegedStartService(self) -> None:
        if self._asked:
            return
        self._asked = True
        asked = self.factory.ask().addCallback(self._answered)
        failures: list[Failure] = []
        asked.addErrback(failures.append)
        if failures:  # the port is taken; only an authenticator that takes its time gets past this
            failures[0].raiseException()

    def _answered(self, _: None) -> None:
        if self.factory.clients.leaving:
            return
        if self.factory.feed.user is not None:
            super().privilegedStartService()
        else:
            self.log.warn(
                "msgpack door: closed, because users are set and its protocol has no way to say "
                "who one is; auth.no_auth_user names who its clients are, --no-msgpack turns it off"
            )

    def stopService(self) -> Deferred[None]:
        self._asked = False
        return super().stopService()


@implementer(IDoor)
class MsgpackDoor:
    """The msgpack door."""

    name = DOOR

    def open(self, broker: Broker, options: dict[str, Any]) -> IDoorService | None:
        return None if broker.settings.no_msgpack else MsgpackService(broker)
