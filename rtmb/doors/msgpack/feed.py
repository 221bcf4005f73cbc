"""The feed: what all clients of the msgpack door get, and how far each of them has come.

The hub sees them as one subscriber. `Feed` knows by a glob tree who wants a topic and sends each
batch to those who keep up; what the others have yet to read it keeps in one bounded buffer, where
each of them has a cursor. Who falls out of the buffer goes on at its newest message.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from zope.interface import implementer

from rtmb.auth import User
from rtmb.codecs.msgpack import DOOR, PackedMessage, pack
from rtmb.config import Settings
from rtmb.core.counters import Counters
from rtmb.core.history import MESSAGE_COST, History
from rtmb.core.hub import Hub
from rtmb.core.message import Message
from rtmb.core.subjects import INBOX, from_raw, is_subject, to_raw
from rtmb.core.subscriptions import Subscription
from rtmb.doors.msgpack.globs import GlobTree, has_glob
from rtmb.doors.msgpack.outlet import FeedOutlet
from rtmb.doors.msgpack.recent import Recent
from rtmb.interfaces import ISubscriber

if TYPE_CHECKING:
    from rtmb.doors.msgpack.protocol import MsgpackProtocol

#: Topics whose audience is kept ready, and the characters that they may have.
_CACHE, _CACHE_SIZE = 16_384, 4 << 20


class Wanted(Subscription):
    """What one client has subscribed to: a glob."""

    __slots__ = ("client", "order", "since", "times")

    def __init__(self, client: MsgpackProtocol, pattern: str, order: int, since: int) -> None:
        super().__init__(client, pattern)
        self.client = client
        #: Its place among what this client subscribed to.
        self.order = order
        #: The number of the first message that it brings.
        self.since = since
        #: It takes so many Unsubscribes to end it.
        self.times = 1


class Audience:
    """The clients that want a topic, each with the globs that say so. Topics with the same ones
    share one object."""

    __slots__ = ("__weakref__", "clients")

    def __init__(self, found: Iterable[Wanted]) -> None:
        self.clients: dict[MsgpackProtocol, list[Wanted]] = {}
        for wanted in found:
            self.clients.setdefault(wanted.client, []).append(wanted)


class Entry(NamedTuple):
    """A message in the buffer."""

    number: int
    topic: str
    packed: bytes
    size: int

    @property
    def cost(self) -> int:
        return len(self.packed) + MESSAGE_COST


@implementer(ISubscriber)
class Feed:
    """What all clients of the door get: the one subscriber that the hub sees."""

    door = name = DOOR
    echo = True
    stalled = False

    def __init__(self, hub: Hub, settings: Settings, user: User | None) -> None:
        self.hub = hub
        #: Who every client is.
        self.user = user
        self.settings = settings
        self.counters = Counters()
        self.globs: GlobTree[Wanted] = GlobTree()
        #: Topics that are no subjects: they stay within this door.
        self.own = History(min(1, settings.history), settings.msgpack_buffer_bytes)
        self._audiences: Recent[bytes, Audience] = Recent(_CACHE, _CACHE_SIZE)
        self._distinct: WeakValueDictionary[frozenset[Wanted], Audience] = WeakValueDictionary()
        self._outlet = FeedOutlet(hub, self, self._audiences.there, self._find_audience)
        self._subscription = Subscription(self, ">", outlet=self._outlet)
        #: Those who do not keep up.
        self.behind: set[MsgpackProtocol] = set()
        #: What they have yet to read, no more than the settings allow.
        self._buffer: deque[Entry] = deque()
        self._buffered = 0
        #: The number of the first message of the next batch.
        self.next = 0

    # Patterns

    def add(self, wanted: Wanted) -> None:
        if not len(self.globs):
            self.hub.routing.others.append(self._subscriptions)
        known = wanted.pattern in self.globs
        self.globs.add(wanted.pattern, wanted)
        self.changed(wanted.pattern, routes=not known)

    def remove(self, wanted: Wanted) -> None:
        self.globs.remove(wanted.pattern, wanted)
        self.changed(wanted.pattern, routes=wanted.pattern not in self.globs)
        if not len(self.globs):
            self.hub.routing.others.remove(self._subscriptions)

    def changed(self, pattern: str = "*", *, routes: bool = True) -> None:
        """Who gets what `pattern` matches is to be worked out anew; and the hub's routes too, if
        it may be that somebody gets it now, or nobody any more."""
        if has_glob(pattern):
            self._audiences.clear()
            if routes:
                self.hub.routing.invalidate(">")
        else:
            self._audiences.drop(to_raw(pattern))
            if routes and is_subject(pattern):
                self.hub.routing.invalidate(pattern)

    def audience(self, topic: str) -> Audience:
        """Who gets `topic`."""
        raw = to_raw(topic)
        return self._audiences.there.get(raw) or self._find_audience(raw)

    def _find_audience(self, raw: bytes) -> Audience:
        topic = from_raw(raw)
        found = frozenset(self.globs.match(topic) if self.may_see(topic) else ())
        audience = self._distinct.get(found)
        if audience is None:
            audience = self._distinct[found] = Audience(found)
        if not topic.startswith(INBOX):
            self._audiences.keep(raw, audience)
        return audience

    def may_see(self, topic: str) -> bool:
        return self.user is not None and self.user.subscribe.may_subscribe(topic)

    def _subscriptions(self, subject: str) -> Iterable[Subscription]:
        return (self._subscription,) if self.audience(subject).clients else ()

    # Retained values

    def topics(self) -> list[bytes]:
        """Every topic that may have a value now, as bytes: to make text of all of them at once
        would take long."""
        return [*self.hub.history.topics, *self.own.topics]

    def newest(self, topic: str) -> Message | None:
        """The retained value of a topic."""
        found = self.hub.history.get(topic) or self.own.get(topic)
        return found.newest(1)[0] if found is not None and found.kept else None

    # Messages

    def publish(self, message: PackedMessage, source: MsgpackProtocol) -> None:
        """Publish a topic that is no subject: the other doors could not name it."""
        message.time = self.hub.clock()
        self.hub.count_in(1, message.size, source)
        if self.audience(message.subject).clients:
            self.hub.deliver_to(self._subscription, message)
        self.own.remember(message)

    def deliver(self, subscription: Subscription, message: Message) -> None:
        """The hub gives all to the outlet."""

    def flush(self) -> bool:
        """Send what this batch has brought to everyone who keeps up, and keep it for the others."""
        fresh, self._outlet.fresh = self._outlet.fresh, []
        if not fresh:
            return False
        first, self.next = self.next, self.next + len(fresh)
        packed = [pack(message) for _, message, _ in fresh]
        sizes = [size for _, _, size in fresh]
        # It was counted for the feed; it counts for each client that it is sent to.
        self.hub.count_out(self._subscription, -len(fresh), -sum(sizes))
        #: For each audience, where its messages stand in this batch.
        shares: defaultdict[Audience, list[int]] = defaultdict(list)
        for i, (audience, _, _) in enumerate(fresh):
            shares[audience].append(i)
        wanted: defaultdict[MsgpackProtocol, list[Audience]] = defaultdict(list)
        for audience in shares:
            for client in audience.clients:
                wanted[client].append(audience)
        # Those who want the same get the same bytes, put together once.
        parcels: dict[tuple[Audience, ...], tuple[bytes, int, int]] = {}
        for client, audiences in wanted.items():
            if client in self.behind:
                continue
            key = tuple(audiences)
            parcel = parcels.get(key)
            if parcel is None:
                mine = sorted(chain(*map(shares.__getitem__, key)))
                parcel = parcels[key] = (
                    b"".join([packed[i] for i in mine]), len(mine), sum([sizes[i] for i in mine])
                )  # fmt: skip
            client.send(*parcel)
            for audience in audiences:
                for asked in audience.clients[client]:
                    asked.delivered += len(shares[audience])
            if client.retained:
                sent = chain(*map(shares.__getitem__, key))
                client.retained.heard({fresh[i][1].subject: first + i for i in sent})
        if self.behind:
            self._keep(
                Entry(first + i, message.subject, packed[i], sizes[i])
                for i, (_, message, _) in enumerate(fresh)
            )
        return False

    def ended(self, subscription: Subscription, reason: str) -> None:
        """The feed's subscription has no end."""

    # Those who do not keep up

    def fall_behind(self, client: MsgpackProtocol) -> None:
        client.cursor = self.next
        self.behind.add(client)

    def caught_up(self, client: MsgpackProtocol) -> None:
        self.behind.discard(client)
        if not self.behind:
            self._buffer.clear()
            self._buffered = 0

    def ahead_of(self, client: MsgpackProtocol) -> Iterable[Entry]:
        """The messages from a client's cursor on, those for others among them."""
        if not self._buffer:
            return ()
        return islice(self._buffer, max(0, client.cursor - self._buffer[0].number), None)

    def _keep(self, entries: Iterable[Entry]) -> None:
        """Put messages into the buffer; what all have read goes, and what there is no room for."""
        buffer = self._buffer
        for entry in entries:
            buffer.append(entry)
            self._buffered += entry.cost
        self._drop_before(min(client.cursor for client in self.behind))
        leaving = 0
        over = self._buffered - self.settings.msgpack_buffer_bytes
        for entry in buffer:
            if over <= 0 and len(buffer) - leaving <= self.settings.msgpack_buffer:
                break
            over -= entry.cost
            leaving += 1
        if not leaving:
            return
        # The newest message stays, however large it is.
        oldest = buffer[min(leaving, len(buffer) - 1)].number
        for client in self.behind:
            if client.cursor < oldest:
                self._skip(client)
        self._drop_before(oldest)

    def _drop_before(self, number: int) -> None:
        while self._buffer and self._buffer[0].number < number:
            self._buffered -= self._buffer.popleft().cost

    def _skip(self, client: MsgpackProtocol) -> None:
        """Move a client to the newest message."""
        newest = self._buffer[-1].number
        ahead = self.ahead_of(client)
        topics = [e.topic for e in ahead if client in self.audience(e.topic).clients]
        if topics and client in self.audience(self._buffer[-1].topic).clients:
            topics.pop()
        client.cursor = newest
        if topics:
            client.skipped(topics)
