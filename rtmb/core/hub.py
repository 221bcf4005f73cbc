"""The hub: who gets what, what is remembered, and the counts.

Doors publish into it and subscribe through it. `Hub.publish` is the whole rule of delivery; the
text door's bulk walk (`rtmb.doors.nats.walk`) does the same for many messages at once and must not
differ from it. Knows no sockets and no protocol.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from operator import attrgetter

from rtmb.core.counters import Counters
from rtmb.core.history import MESSAGE_COST, History, Topic
from rtmb.core.journal import Journal
from rtmb.core.message import Message
from rtmb.core.routing import Route, SubjectTrie, Subscription
from rtmb.core.subjects import INBOX, has_wildcard, hears, matches
from rtmb.interfaces import ISubscriber


class Hub:
    """One hub in memory."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        history: int = 100,
        history_bytes: int = 64 << 20,
        journal: Journal | None = None,
    ) -> None:
        self.clock = clock
        #: Where messages on some subjects are also kept, in order.
        self.journal = journal
        self.history = History(history, history_bytes)
        self.trie = SubjectTrie(dropped=self.settle)
        self._totals = Counters()
        #: Subscribers that have collected messages and wait for `flush`.
        self.awake: list[ISubscriber] = []

    # Subscribing

    def subscribe(self, subscription: Subscription, past: int = 0) -> None:
        """Begin to deliver, first the `past` newest messages of each subject that it matches."""
        for message in self.newest(subscription.pattern, past):
            if not any(matches(hidden, message.subject) for hidden in subscription.deny):
                self.deliver_to(subscription, message)
        self.trie.add(subscription)
        subscription.subscriber.counters.changes += 1

    def unsubscribe(self, subscription: Subscription) -> None:
        if self.trie.remove(subscription):
            subscription.subscriber.counters.changes += 1

    def hide(self, subscription: Subscription, deny: tuple[str, ...]) -> None:
        """From now on, leave out of a subscription what these patterns match."""
        subscription.deny = deny
        self.trie.invalidate(subscription.pattern)

    def limit(self, subscription: Subscription, maximum: int, *, from_now: bool = False) -> bool:
        """End a subscription after `maximum` messages, counted from its beginning or from now.

        True when that is so already, and it has been removed."""
        self.trie.invalidate(subscription.pattern)  # settles `delivered`, and makes the hub look
        if from_now:
            maximum += subscription.delivered
        if subscription.delivered >= maximum:
            self.trie.remove(subscription)
            return True
        subscription.maximum = maximum
        return False

    # Publishing

    def publish(self, message: Message, source: ISubscriber | None = None) -> int:
        """Deliver a message to everyone who wants it and remember it; how many got it."""
        count = self.deliver(message, source)
        self.flush()
        return count

    def deliver(self, message: Message, source: ISubscriber | None = None) -> int:
        """`publish` without the `flush` after it, for doors that publish many at a time."""
        subject = message.subject
        message.time = message.time or self.clock()
        inbox = subject.startswith(INBOX)
        route = self.trie.search(subject) if inbox else self.trie.route(subject)
        mute = source if source is not None and not source.echo else None
        count = 0
        for subscription in route.plain:
            if subscription.subscriber is not mute:
                self.deliver_to(subscription, message)
                count += 1
        for group in route.groups:
            member = group.next(mute)
            if member is not None:
                self.deliver_to(member, message)
                count += 1
        size = message.size
        self.count_in(1, size, source)
        if not inbox:
            self._remember(message, size)
        if self.journal is not None and self.journal.wants(subject):
            self.journal.append(message)
        return count

    def deliver_to(self, subscription: Subscription, message: Message) -> None:
        """Deliver to one subscription, and end it where this was its last."""
        self.count_out(subscription, 1, message.size)
        subscriber = subscription.subscriber
        subscriber.deliver(subscription, message)
        if subscription.maximum is not None and subscription.delivered >= subscription.maximum:
            self.trie.remove(subscription)
            subscriber.ended(subscription, "maximum")

    def wake(self, subscriber: ISubscriber) -> None:
        """Ask for a call of `subscriber.flush` at the end of this batch."""
        self.awake.append(subscriber)

    def flush(self) -> list[ISubscriber]:
        """Let every subscriber that collected messages send them; returns those far behind."""
        awake = self.awake
        behind: list[ISubscriber] = []
        while awake:
            subscriber = awake.pop()
            if subscriber.flush():
                behind.append(subscriber)
        return behind

    # Remembering

    def _remember(self, message: Message, size: int) -> None:
        topic = self.history.topic(message.subject)
        topic.messages += 1
        topic.bytes += size
        topic.keep(message)
        self.history.used(topic)
        self.remembered(size + MESSAGE_COST)

    def remembered(self, size: int) -> None:
        """Account for messages just kept, and forget others where the budget asks for it."""
        if self.history.charge(size):
            self.settle_all()
            for name in self.history.audit():
                self.trie.invalidate(name)

    def newest(self, pattern: str, count: int) -> list[Message]:
        """Up to `count` of the newest messages of each subject that `pattern` matches, by time."""
        if count <= 0:
            return []
        if not has_wildcard(pattern):
            topic = self.history.get(pattern)
            return topic.newest(count) if topic is not None else []
        found = [t for t in self.history if hears(pattern, t.name)]
        found.sort(key=attrgetter("name"))  # decides between messages of the same moment
        return list(heapq.merge(*(t.newest(count) for t in found), key=attrgetter("time")))

    # Topics

    def create_topic(self, name: str) -> bool:
        """Make a topic that stays until it is deleted; False when there is one already."""
        if self.history.get(name) is not None:
            return False
        self.history.topic(name).created = True
        return True

    def delete_topic(self, name: str) -> bool:
        """Forget a topic and end the subscriptions to just it; False when there is none."""
        subscriptions = [s for s in self.subscriptions_of(name) if s.pattern == name]
        known = self.history.remove(name)
        self.trie.invalidate(name)
        for subscription in subscriptions:
            self.trie.remove(subscription)
            subscription.subscriber.ended(subscription, "deleted")
        return known or bool(subscriptions)

    def topics(self) -> dict[str, Topic]:
        """Every topic by name: published on, created, or subscribed to by its full name."""
        self.settle_all()
        found = {topic.name: topic for topic in self.history}
        for subscription in self.trie:
            name = subscription.pattern
            if name not in found and not has_wildcard(name) and not name.startswith(INBOX):
                found[name] = Topic(name, 0)
        return found

    def subscriptions_of(self, subject: str) -> list[Subscription]:
        """Everyone who could receive `subject`."""
        route = self.trie.search(subject)
        return [*route.plain, *(m for group in route.groups for m in group.members)]

    # Counting

    @property
    def totals(self) -> Counters:
        """Messages and bytes in and out since the start."""
        self.settle_all()
        return self._totals

    def count_in(self, messages: int, size: int, source: ISubscriber | None) -> None:
        """Count messages published."""
        self._totals.in_msgs += messages
        self._totals.in_bytes += size
        if source is not None:
            source.counters.in_msgs += messages
            source.counters.in_bytes += size

    def count_out(self, subscription: Subscription, messages: int, size: int) -> None:
        """Count messages delivered."""
        subscription.delivered += messages
        for counters in (self._totals, subscription.subscriber.counters):
            counters.out_msgs += messages
            counters.out_bytes += size

    def settle(self, route: Route) -> None:
        """Bring what the bulk walk counted on a route to where it belongs."""
        hits, size = route.hits, route.bytes
        route.hits = route.bytes = 0
        topic = self.history.get(route.subject)
        if hits and topic is not None:
            topic.messages += hits
            topic.bytes += size
            self.history.used(topic)
        for subscription in route.bulk:
            self.count_out(subscription, hits, size)
        for share in route.shares:
            self.count_out(share.subscription, share.hits, share.bytes)
            share.hits = share.bytes = 0

    def settle_all(self) -> None:
        for route in self.trie.cached():
            if route.hits:
                self.settle(route)
