"""Subscriptions, where they lead, and the queue groups that some of them are members of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtmb.core.publication import Publication
from rtmb.core.subjects import from_raw, matches, to_raw

if TYPE_CHECKING:
    from rtmb.core.counters import Counters
    from rtmb.interfaces import ISubscriber


class Outlet:
    """How a door's client takes publications without a `Message` made of each: the way of doors
    that pass bytes on. It stands beside its subscriber and counts for it."""

    __slots__ = ("stalled",)

    def __init__(self) -> None:
        #: True while the client is behind: queue groups pass it over.
        self.stalled = False

    def take(self, subscription: Subscription, publication: Publication) -> None:
        """What `ISubscriber.deliver` does."""
        raise NotImplementedError


class Subscription:
    """One subscriber's interest in one pattern."""

    __slots__ = ("at", "counters", "delivered", "deny", "key", "limit", "outlet", "raw",
                 "raw_queue", "subscriber")  # fmt: skip

    def __init__(
        self,
        subscriber: ISubscriber,
        pattern: str | bytes,
        queue: str | bytes | None = None,
        key: bytes = b"",
        deny: tuple[str, ...] = (),
        outlet: Outlet | None = None,
    ) -> None:
        self.subscriber = subscriber
        self.counters: Counters = subscriber.counters
        self.outlet = outlet
        self.raw = pattern if isinstance(pattern, bytes) else to_raw(pattern)
        self.raw_queue = to_raw(queue) if isinstance(queue, str) else queue
        #: The subscriber's own name for this: the sid of the text door.
        self.key = key
        #: Patterns that `pattern` overlaps and that this subscriber may not see.
        self.deny = deny
        self.delivered = 0
        #: It ends by itself when so many were delivered; below 0: it does not.
        self.limit = -1
        #: Where it stands among those of its pattern; below 0: nowhere.
        self.at = -1

    @property
    def pattern(self) -> str:
        return from_raw(self.raw)

    @property
    def queue(self) -> str | None:
        return None if self.raw_queue is None else from_raw(self.raw_queue)

    @property
    def maximum(self) -> int | None:
        """It ends by itself when `delivered` reaches this."""
        return self.limit if self.limit >= 0 else None

    def hides(self, subject: bytes) -> bool:
        """Whether its subscriber may not see this subject."""
        if self.deny:
            name = from_raw(subject)
            for hidden in self.deny:
                if matches(hidden, name):
                    return True
        return False

    def __repr__(self) -> str:
        queue = f" queue {self.queue}" if self.raw_queue else ""
        return f"<Subscription {self.pattern}{queue} of {self.subscriber}>"


class Group:
    """The members of a queue group at one pattern, served in turn."""

    __slots__ = ("members", "name", "turn")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.members: list[Subscription] = []
        self.turn = 0


def choose(
    deal: tuple[Group, ...], mute: ISubscriber | None, subject: bytes
) -> Subscription | None:
    """Whose turn it is in a queue group: the stalled are passed over, unless all are, and `mute`
    and those who may not see the subject always."""
    first = deal[0]
    fallback: Subscription | None = None
    total = 0
    for group in deal:
        total += len(group.members)
    for step in range(total):
        at = (first.turn + step) % total
        for group in deal:
            if at < len(group.members):
                break
            at -= len(group.members)
        member = group.members[at]
        if (mute is not None and member.subscriber is mute) or member.hides(subject):
            continue
        outlet = member.outlet
        if not (member.subscriber.stalled if outlet is None else outlet.stalled):
            first.turn = (first.turn + step + 1) % total
            return member
        if fallback is None:
            fallback = member
    first.turn += 1
    return fallback
