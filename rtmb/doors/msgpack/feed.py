"""The feed: what all clients of the msgpack door get, and how far each of them has come.

The hub sees them as one subscriber. `Feed` knows by a glob tree who wants a topic and sends each
batch to those who keep up; what the others have yet to read it keeps in one bounded buffer, where
each of them has a cursor. Who falls out of the buffer goes on at its newest message.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from zope.interface import implementer

from rtmb.auth import User
from rtmb.codecs.msgpack import DOOR, PackedMessage, pack
from rtmb.config import Settings
from rtmb.core.counters import Counters
from rtmb.core.history import MESSAGE_COST, History
from rtmb.core.hub import Hub
from rtmb.core.message import Message
from rtmb.core.routing import Subscription
from rtmb.core.subjects import INBOX, is_subject
from rtmb.doors.msgpack.globs import GlobTree, compile_glob, has_glob
from rtmb.interfaces import ISubscriber

if TYPE_CHECKING:
    from rtmb.doors.msgpack.protocol import MsgpackProtocol

#: Topics whose audience is kept ready.
_CACHE = 16_384

#: The clients that want a topic. Topics with the same ones share one object.
Audience = frozenset["MsgpackProtocol"]


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
        self.globs: GlobTree[MsgpackProtocol] = GlobTree()
        #: Topics that are no subjects: they stay within this door.
        self.own = History(min(1, settings.history), settings.msgpack_buffer_bytes)
        self._subscription = Subscription(self, ">")
        hub.trie.others.append(self._subscriptions)
        self._audiences: dict[str, Audience] = {}
        self._distinct: dict[Audience, Audience] = {}
        #: What this batch has brought.
        self._fresh: list[tuple[Audience, Entry]] = []
        #: Those who do not keep up.
        self.behind: set[MsgpackProtocol] = set()
        #: What they have yet to read, no more than the settings allow.
        self._buffer: deque[Entry] = deque()
        self._buffered = 0
        #: The number of the next message.
        self.next = 0

    # Patterns

    def add(self, pattern: str, client: MsgpackProtocol) -> None:
        known = pattern in self.globs
        self.globs.add(pattern, client)
        self.changed(pattern, routes=not known)

    def remove(self, pattern: str, client: MsgpackProtocol) -> None:
        self.globs.remove(pattern, client)
        self.changed(pattern, routes=pattern not in self.globs)

    def changed(self, pattern: str = "*", *, routes: bool = True) -> None:
        """Who gets what `pattern` matches is to be worked out anew; and the hub's routes too, if
        it may be that somebody gets it now, or nobody any more."""
        if has_glob(pattern):
            self._audiences.clear()
            self._distinct.clear()
            if routes:
                self.hub.trie.invalidate(">")
        else:
            self._audiences.pop(pattern, None)
            if routes and is_subject(pattern):
                self.hub.trie.invalidate(pattern)

    def audience(self, topic: str) -> Audience:
        """Who gets `topic`."""
        audience = self._audiences.get(topic)
        if audience is None:
            seen = self.user is not None and self.user.subscribe.may_subscribe(topic)
            audience = frozenset(self.globs.match(topic)) if seen else frozenset()
            if topic.startswith(INBOX):
                return audience
            if len(self._audiences) >= _CACHE or len(self._distinct) >= _CACHE:
                self._audiences.clear()
                self._distinct.clear()
            audience = self._distinct.setdefault(audience, audience)
            self._audiences[topic] = audience
        return audience

    def _subscriptions(self, subject: str) -> Iterable[Subscription]:
        return (self._subscription,) if self.audience(subject) else ()

    def retained(self, pattern: str) -> list[str]:
        """The topics that have a value and that `pattern` matches."""
        assert self.user is not None
        may_see = self.user.subscribe.may_subscribe
        stores = (self.hub.history, self.own)
        if not has_glob(pattern):
            found = [topic for store in stores if (topic := store.get(pattern)) is not None]
        else:
            matches = compile_glob(pattern).fullmatch
            found = [topic for topic in chain(*stores) if matches(topic.name)]
        return [topic.name for topic in found if topic.ring and may_see(topic.name)]

    def newest(self, topic: str) -> Message | None:
        """The retained value of a topic."""
        found = self.hub.history.get(topic) or self.own.get(topic)
        return found.newest(1)[0] if found is not None and found.ring else None

    # Messages

    def publish(self, message: PackedMessage, source: MsgpackProtocol) -> None:
        """Publish a topic that is no subject: the other doors could not name it."""
        message.time = self.hub.clock()
        self.hub.count_in(1, message.size, source)
        self._take(message)
        topic = self.own.topic(message.subject)
        topic.keep(message)
        self.own.used(topic)
        if self.own.charge(message.size + len(message.subject) + MESSAGE_COST):
            self.own.audit()

    def deliver(self, subscription: Subscription, message: Message) -> None:
        # It counts for each client that it is sent to, not for the feed.
        self.hub.count_out(subscription, -1, -message.size)
        self._take(message)

    def _take(self, message: Message) -> None:
        topic = message.subject
        audience = self.audience(topic)
        if audience:
            if not self._fresh:
                self.hub.wake(self)
            entry = Entry(self.next, topic, pack(message), message.size)
            self._fresh.append((audience, entry))
            self.next += 1

    def flush(self) -> bool:
        """Send what this batch has brought to everyone who keeps up, and keep it for the others."""
        fresh, self._fresh = self._fresh, []
        shares: defaultdict[Audience, list[Entry]] = defaultdict(list)
        for audience, entry in fresh:
            shares[audience].append(entry)
        wanted: defaultdict[MsgpackProtocol, list[Audience]] = defaultdict(list)
        for audience in shares:
            for client in audience:
                wanted[client].append(audience)
        # Those who want the same get the same bytes, put together once.
        parcels: dict[tuple[Audience, ...], tuple[bytes, int, int]] = {}
        for client, audiences in wanted.items():
            if client in self.behind:
                continue
            key = tuple(audiences)
            parcel = parcels.get(key)
            if parcel is None:
                entries = shares[key[0]]
                if len(key) > 1:
                    entries = sorted(chain(*map(shares.__getitem__, key)), key=itemgetter(0))
                parcel = parcels[key] = parcel_of(entries)
            client.send(*parcel)
        if self.behind:
            self._keep(entry for _, entry in fresh)
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
        topics = [e.topic for e in self.ahead_of(client) if client in self.audience(e.topic)]
        if topics and client in self.audience(self._buffer[-1].topic):
            topics.pop()
        client.cursor = newest
        if topics:
            client.skipped(topics)


def parcel_of(entries: list[Entry]) -> tuple[bytes, int, int]:
    """Messages as they are sent, how many they are, and the size of their values."""
    return b"".join([e.packed for e in entries]), len(entries), sum([e.size for e in entries])
