"""Whoever sends a plain request that concerns the hub, for as long as that takes."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from twisted.internet.defer import AlreadyCalledError, Deferred
from twisted.web.server import Request
from zope.interface import implementer

from rtmb.auth import User
from rtmb.core.message import Message
from rtmb.core.subscriptions import Subscription
from rtmb.doors.http.access import DoorRoster
from rtmb.doors.http.kit import Code, RefusedError, user_of
from rtmb.doors.session import STOPPING, Session
from rtmb.interfaces import ISubscriber


@implementer(ISubscriber)
class Visitor(Session):
    """The sender of one request, as the hub sees them."""

    door = "http"
    echo = True
    stalled = False
    takes_place = False
    transient = True

    def __init__(self, visitors: Visitors, request: Request) -> None:
        super().__init__(visitors, user_of(request))
        self.come_from(request.getClientAddress())
        #: The first message that comes back, or a `RefusedError`.
        self.reply: Deferred[Message] = Deferred()
        self._inbox: list[Subscription] = []

    @property
    def pending(self) -> int:
        return 0

    @property
    def subscriptions(self) -> Collection[Subscription]:
        return self._inbox

    def listen(self, inbox: str) -> None:
        """Wait for a reply there."""
        subscription = Subscription(self, inbox)
        self._inbox.append(subscription)
        self.hub.subscribe(subscription)

    def deliver(self, subscription: Subscription, message: Message) -> None:
        if not self.reply.called:
            self.reply.callback(message)

    def flush(self) -> bool:
        return False

    def ended(self, subscription: Subscription, reason: str) -> None:
        self._inbox.clear()

    def close(self, reason: str) -> None:
        self._refuse(Code.SHUTTING_DOWN if reason == STOPPING else Code.FORBIDDEN, reason)

    def not_welcome(self, why: str) -> None:
        self._refuse(Code.UNAUTHORIZED, why)

    def reloaded(self, user: User | None) -> None:
        """Its inbox is not what the user asked for: only who they are is looked at again."""
        if user is None or user.expired(self.hub.clock()):
            self.not_welcome("Authorization Violation")

    def abort(self) -> None:
        self.close(STOPPING)

    def _refuse(self, code: Code, text: str) -> None:
        with suppress(AlreadyCalledError):
            self.reply.errback(RefusedError(code, text))


class Visitors(DoorRoster[Visitor]):
    """All requests of this moment that wait for something from the hub."""
