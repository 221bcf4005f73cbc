"""The hub: who gets what, what is remembered, and the counts.

Doors publish into it and subscribe through it. `Hub.pass_on` is the whole rule of delivery, for
every message of every door. Knows no sockets and no protocol.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from rtmb.core import raw
from rtmb.core.counters import Counters
from rtmb.core.history import History, Topic
from rtmb.core.message import Message
from rtmb.core.publication import Publication
from rtmb.core.routing import Route, Routing
from rtmb.core.subjects import INBOX, from_raw, has_wildcard, hears, to_raw
from rtmb.core.subscriptions import Group, Subscription, choose

if TYPE_CHECKING:
    from rtmb.core.journal import Journal
    from rtmb.interfaces import ISubscriber

_INBOX = to_raw(INBOX)
#: So much may be collected for all subscribers before they are made to send it, so that a burst to
#: many of them does not need many times its memory (benchmark: 1→100).
SPREAD = 16 << 20


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
        self.routing = Routing(self.history.topics)
        self._writer = None if journal is None else journal.writer
        if journal is not None:
            for pattern in journal.patterns:
                self.routing.journal(pattern)
        #: Messages and bytes in and out since the start.
        self.totals = Counters()
        #: Subscribers that have collected messages and wait for `flush`.
        self.awake: list[ISubscriber] = []
        #: Bytes that they have collected, about, and how many make them send.
        self.collected = 0
        self.spread = SPREAD

    # Subscribing

    def subscribe(self, subscription: Subscription, past: int = 0) -> None:
        """Begin to deliver, first the `past` newest messages of each subject that it matches."""
        if past:
            for message in self.newest(subscription.pattern, past):
                if not subscription.hides(to_raw(message.subject)):
                    self.deliver_to(subscription, message)
        pattern = subscription.raw
        self.routing.add(subscription, raw.kind_of(pattern, 0, len(pattern)) == raw.WILDCARD)
        subscription.counters.changes += 1

    def unsubscribe(self, subscription: Subscription) -> None:
        if self.routing.remove(subscription):
            subscription.counters.changes += 1

    def hide(self, subscription: Subscription, deny: tuple[str, ...]) -> None:
        """From now on, leave out of a subscription what these patterns match."""
        subscription.deny = deny

    def limit(self, subscription: Subscription, maximum: int, *, from_now: bool = False) -> bool:
        """End a subscription after `maximum` messages, counted from its beginning or from now.

        True when that is so already, and it has been removed."""
        if from_now:
            maximum += subscription.delivered
        if subscription.delivered >= maximum:
            self.routing.remove(subscription)
            return True
        subscription.limit = maximum
        return False

    # Publishing

    def publish(self, message: Message, source: ISubscriber | None = None) -> int:
        """Deliver a message to everyone who wants it and remember it; how many got it."""
        count = self.deliver(message, source)
        self.flush()
        return count

    def deliver(self, message: Message, source: ISubscriber | None = None) -> int:
        """`publish` without the `flush` after it, for doors that publish many at a time."""
        message.time = message.time or self.clock()
        publication = Publication(message.time, message.door)
        publication.place_message(message)
        mute = source if source is not None and not source.echo else None
        counters = source.counters if source is not None else None
        return self.pass_on(self.route(publication.subject), publication, mute, counters)

    def route(self, subject: bytes) -> Route:
        """The route of a subject, as it is now. It must be one: nothing checks it here."""
        topic = self.history.topics.get(subject)
        if topic is None:
            return self.find(subject)
        if topic.made != self.routing.generation_of(topic.share):
            self.routing.make(topic)
        return topic

    def find(self, subject: bytes) -> Route:
        """The route of a subject that is not known: from now on it is, unless it is an inbox."""
        if subject.startswith(_INBOX):
            return self.routing.search(subject)
        topic = Topic(subject, self.routing.share_of(subject))
        self.routing.make(topic)
        self.history.add(topic)
        return topic

    def pass_on(
        self,
        route: Route,
        publication: Publication,
        mute: ISubscriber | None,
        counters: Counters | None,
    ) -> int:
        """Deliver a message to everyone who is to get it, keep it, and count it; how many got it.

        `mute` gets nothing; `counters` are the publisher's."""
        size = publication.size
        count = 0
        self.routing.passing += 1
        try:
            for interest in route.interests:
                plain = interest.plain
                if plain is not None:
                    for subscription in plain:
                        if mute is not None and subscription.subscriber is mute:
                            continue
                        if subscription.deny and subscription.hides(publication.subject):
                            continue
                        self._hand(subscription, publication, size)
                        count += 1
            if route.deals is not None:
                for deal in route.deals:
                    count += self._deal(deal, publication, mute, size)
            if route.others is not None:
                for subscription in route.others:
                    if mute is None or subscription.subscriber is not mute:
                        self._hand(subscription, publication, size)
                        count += 1
        finally:
            self.routing.passing -= 1
        self.totals.in_msgs += 1
        self.totals.in_bytes += size
        if counters is not None:
            counters.in_msgs += 1
            counters.in_bytes += size
        if isinstance(route, Topic):
            topic = route
            topic.messages += 1
            topic.bytes += size
            if self.history.depth > 0:
                self.history.keep(topic, publication)
            else:
                self.history.used(topic)
        if route.journaled:
            self._keep_in_journal(route, publication)
        return count

    def _deal(
        self,
        deal: tuple[Group, ...],
        publication: Publication,
        mute: ISubscriber | None,
        size: int,
    ) -> int:
        member = choose(deal, mute, publication.subject)
        if member is None:
            return 0
        self._hand(member, publication, size)
        return 1

    def _hand(self, subscription: Subscription, publication: Publication, size: int) -> None:
        """Deliver to one subscription, and end it where this was its last."""
        subscription.delivered += 1
        counters = subscription.counters
        counters.out_msgs += 1
        counters.out_bytes += size
        self.totals.out_msgs += 1
        self.totals.out_bytes += size
        outlet = subscription.outlet
        if outlet is not None:
            outlet.take(subscription, publication)
        else:
            subscription.subscriber.deliver(subscription, publication.message())
        if subscription.limit >= 0 and subscription.delivered >= subscription.limit:
            self.routing.remove(subscription)
            subscription.subscriber.ended(subscription, "maximum")

    def _keep_in_journal(self, route: Route, publication: Publication) -> None:
        if route.text is None:
            route.text = from_raw(route.subject)
        assert self._writer is not None
        reply = publication.reply
        self._writer.append(
            route.text,
            publication.time,
            publication.door,
            publication.payload(),
            None if reply is None else from_raw(reply),
            publication.headers,
        )

    def deliver_to(self, subscription: Subscription, message: Message) -> None:
        """Deliver to one subscription only."""
        publication = Publication(message.time, message.door)
        publication.place_message(message)
        self._hand(subscription, publication, publication.size)

    def wake(self, subscriber: ISubscriber) -> None:
        """Ask for a call of `subscriber.flush` at the end of this batch."""
        self.awake.append(subscriber)

    def flush(self) -> list[ISubscriber]:
        """Let every subscriber that collected messages send them; returns those far behind."""
        awake = self.awake
        behind: list[ISubscriber] = []
        self.collected = 0
        while awake:
            subscriber = awake.pop()
            if subscriber.flush():
                behind.append(subscriber)
        return behind

    # Remembering

    def newest(self, pattern: str, count: int) -> list[Message]:
        """Up to `count` of the newest messages of each subject that `pattern` matches, by time."""
        if count <= 0:
            return []
        topics = sorted(self.remembered(pattern), key=attrgetter("subject"))  # for equal times
        return list(heapq.merge(*(t.newest(count) for t in topics), key=attrgetter("time")))

    def remembered(self, pattern: str) -> Iterable[Topic]:
        """The topics that `pattern` matches."""
        if not has_wildcard(pattern):
            topic = self.history.get(pattern)
            return (topic,) if topic is not None else ()
        return [t for t in self.history if hears(pattern, t.name)]

    # Topics

    def create_topic(self, name: str) -> bool:
        """Make a topic that stays until it is deleted; False when there is one already."""
        subject = to_raw(name)
        if subject in self.history.topics:
            return False
        topic = Topic(subject, self.routing.share_of(subject))
        topic.created = True
        self.history.add(topic)
        return True

    def delete_topic(self, name: str) -> bool:
        """Forget a topic and end the subscriptions to just it; False when there is none."""
        subscriptions = [s for s in self.subscriptions_of(name) if s.pattern == name]
        topic = self.history.get(name)
        if topic is not None:
            self.history.remove(topic)
        for subscription in subscriptions:
            self.routing.remove(subscription)
            subscription.subscriber.ended(subscription, "deleted")
        return topic is not None or bool(subscriptions)

    def topics(self) -> dict[str, Topic]:
        """Every topic by name: published on, created, or subscribed to by its full name."""
        found = {topic.name: topic for topic in self.history}
        for subscription in self.routing:
            name = subscription.pattern
            if name not in found and not has_wildcard(name) and not name.startswith(INBOX):
                found[name] = Topic(subscription.raw, 0)
        return found

    def subscriptions_of(self, subject: str) -> list[Subscription]:
        """Everyone who could receive `subject`."""
        return list(self.routing.search(to_raw(subject)).subscriptions())

    # Counting

    def count_in(self, messages: int, size: int, source: ISubscriber | None) -> None:
        """Count messages published past `pass_on`."""
        self.totals.in_msgs += messages
        self.totals.in_bytes += size
        if source is not None:
            source.counters.in_msgs += messages
            source.counters.in_bytes += size

    def count_out(self, subscription: Subscription, messages: int, size: int) -> None:
        """Count messages delivered past `pass_on`."""
        subscription.delivered += messages
        for counters in (self.totals, subscription.counters):
            counters.out_msgs += messages
            counters.out_bytes += size
