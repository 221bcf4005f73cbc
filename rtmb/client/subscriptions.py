"""The subscriptions of one client, by the number that they have on the wire."""

from __future__ import annotations

import itertools

from rtmb.client.subscription import Subscription


class SubscriptionTable:
    """All subscriptions, and which of them have got something to read."""

    def __init__(self) -> None:
        self._by_sid: dict[bytes, Subscription] = {}
        self._sids = itertools.count(1)
        self._woken: list[Subscription] = []

    def __len__(self) -> int:
        return len(self._by_sid)

    def add(self, subscription: Subscription) -> None:
        """Take in a new one, and give it its number."""
        subscription.sid = b"%d" % next(self._sids)
        self._by_sid[subscription.sid] = subscription

    def remove(self, subscription: Subscription) -> None:
        self._by_sid.pop(subscription.sid, None)

    def get(self, sid: bytes) -> Subscription | None:
        return self._by_sid.get(sid)

    def all(self) -> list[Subscription]:
        return list(self._by_sid.values())

    def asking_for(self, refusal: str) -> list[Subscription]:
        """Those whose subject begins the text of a server's refusal, up to its closing quote."""
        subject = refusal.partition('"')[0]
        return [s for s in self._by_sid.values() if subject in (s.subject, s.asked)]

    def announce(self) -> bytes:
        """What a server is told that does not know them yet."""
        return b"".join(subscription.announce() for subscription in self._by_sid.values())

    def wake(self, subscription: Subscription) -> None:
        """Its readers should have a look once all that came has been read."""
        self._woken.append(subscription)

    def all_read(self) -> None:
        """All that came has been dealt with: now those may look."""
        while self._woken:
            woken, self._woken = self._woken, []
            for subscription in woken:
                subscription.wake()
