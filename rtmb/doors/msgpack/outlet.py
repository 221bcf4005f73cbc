"""How the msgpack door takes what the hub has for it: each batch is collected with who gets it.
Compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rtmb.core.hub import Hub
from rtmb.core.message import Message
from rtmb.core.publication import Publication
from rtmb.core.subscriptions import Outlet, Subscription
from rtmb.interfaces import ISubscriber


class FeedOutlet(Outlet):
    """The way out to all clients of the door."""

    __slots__ = ("_audience", "_audiences", "_feed", "_hub", "fresh")

    def __init__(
        self,
        hub: Hub,
        feed: ISubscriber,
        audiences: dict[bytes, Any],
        audience: Callable[[bytes], Any],
    ) -> None:
        super().__init__()
        self._hub = hub
        self._feed = feed
        #: Who gets which topic, and how to find out where that is not kept.
        self._audiences = audiences
        self._audience = audience
        #: What this batch has brought: who gets it, the message, its size.
        self.fresh: list[tuple[Any, Message, int]] = []

    def take(self, subscription: Subscription, publication: Publication) -> None:
        audience = self._audiences.get(publication.subject)
        if audience is None:
            audience = self._audience(publication.subject)
        if not audience.clients:
            self._hub.count_out(subscription, -1, -publication.size)
            return
        if not self.fresh:
            self._hub.wake(self._feed)
        self.fresh.append((audience, publication.message(), publication.size))
