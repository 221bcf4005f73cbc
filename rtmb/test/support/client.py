"""Help for the tests of `rtmb.client` without sockets: a client on a broker in memory."""

from __future__ import annotations

from typing import Unpack

from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rtmb.client import (
    Client,
    ClientOptions,
    Event,
    Subscription,
    SubscriptionEnded,
)
from rtmb.testing import MemoryBroker


class MemoryTests(SynchronousTestCase):
    """With a broker in memory and a clock."""

    def setUp(self) -> None:
        self.memory = MemoryBroker()
        self.events: list[Event] = []

    def connect(self, **options: Unpack[ClientOptions]) -> Client:
        options.setdefault("on_event", self.events.append)
        client = self.memory.connect(**options)
        client._connector.random = lambda: 0.0
        return client

    def told(self) -> list[str]:
        return [event.name for event in self.events]

    def read(self, subscription: Subscription) -> list[bytes]:
        """All that waits to be read."""
        self.memory.advance()
        found: list[bytes] = []
        while True:
            waiting = subscription.next()
            if not waiting.called:
                waiting.addErrback(lambda failure: None)
                waiting.cancel()
                return found
            if isinstance(waiting.result, Failure):
                self.failureResultOf(waiting, SubscriptionEnded)
                return found
            found.append(self.successResultOf(waiting).payload)
