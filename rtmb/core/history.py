"""What is remembered of each subject: its newest messages, within one budget of bytes.

A subject that was published on has a `Topic`, which is also its route. All topics stand in the
order of last use. What they hold is counted exactly as it comes and goes; over the budget the topic
unused for longest forgets its messages, oldest first, and then goes: as many as make room for what
has just come, so nobody waits for more than that.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import cast

from rtmb.core import raw
from rtmb.core.message import Message
from rtmb.core.publication import Entry, Publication
from rtmb.core.routing import Route
from rtmb.core.subjects import from_raw, to_raw

#: What a kept payload costs beyond its bytes, and a kept `Message`.
PAYLOAD_COST = 56
MESSAGE_COST = 320
#: What a topic costs beyond its messages: itself, its places in the tables, its name.
TOPIC_COST = 400
_PAYLOAD_COST, _MESSAGE_COST, _TOPIC_COST = PAYLOAD_COST, MESSAGE_COST, TOPIC_COST
#: A topic that stands nowhere in the order of use.
_NOWHERE = -1


class Topic(Route):
    """One subject: its route, its newest messages and its counters."""

    __slots__ = ("bytes", "created", "first", "held", "messages", "place", "ring")

    def __init__(self, subject: bytes, share: int) -> None:
        super().__init__(subject, share)
        #: Messages and times in turn: what was kept, when it came, …; `first` is the oldest.
        self.ring: list[Entry | float | None] | None = None
        self.first = 0
        #: How often it was published on, and how many bytes.
        self.messages = 0
        self.bytes = 0
        #: Made on request: it stays, with or without messages and subscribers, until deleted.
        self.created = False
        #: The memory that its messages take.
        self.held = 0
        #: Where it stands in the history's order of use.
        self.place = _NOWHERE

    @property
    def name(self) -> str:
        return from_raw(self.subject)

    @property
    def kept(self) -> int:
        """How many messages are kept."""
        return len(self.ring) // 2 if self.ring is not None else 0

    @property
    def times(self) -> list[float]:
        """When they came, oldest first."""
        ring, first = self.ring or [], self.first
        times = [*ring[first + 1 :: 2], *ring[1:first:2]]
        return cast(list[float], times)

    def newest(self, count: int) -> list[Message]:
        """Up to `count` of the newest messages, oldest first."""
        ring = self.ring
        if ring is None:
            return []
        there = len(ring) // 2
        count = min(count, there)
        found = []
        for i in range(there - count, there):
            at = (self.first + 2 * i) % len(ring)
            found.append(self._message(ring[at], ring[at + 1]))
        return found

    def _message(self, entry: object, when: object) -> Message:
        if isinstance(entry, Message):
            return entry
        assert isinstance(when, float)
        if isinstance(entry, bytes):
            return Message(self.name, entry, time=when)
        assert isinstance(entry, tuple)
        payload, reply, headers = entry
        answer = from_raw(reply) if reply is not None else None
        return Message(self.name, payload, reply=answer, headers=headers, time=when)


class History:
    """All topics, at most `budget` bytes of them; those not used for longest go first."""

    def __init__(self, depth: int, budget: int) -> None:
        self.depth = depth
        self.budget = budget
        self.topics: dict[bytes, Topic] = {}
        #: The memory held.
        self.held = 0
        #: The order of use: each topic has a place, and each place knows the next one used before
        #: and after it. Place 0 is the seam: after it comes the longest unused, before it the last.
        self._at: list[Topic | None] = [None]
        self._before = array("i", [0])
        self._after = array("i", [0])
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.topics)

    def __iter__(self) -> Iterator[Topic]:
        """Every topic, the longest unused first."""
        place = raw.int_at(self._after, 0)
        while place:
            topic = self._at[place]
            assert topic is not None
            yield topic
            place = raw.int_at(self._after, place)

    def get(self, name: str) -> Topic | None:
        return self.topics.get(to_raw(name))

    def add(self, topic: Topic) -> None:
        """Remember a subject that is not there yet."""
        if self._free:
            place = self._free.pop()
            self._at[place] = topic
        else:
            place = len(self._at)
            self._at.append(topic)
            self._before.append(0)
            self._after.append(0)
        topic.place = place
        self.topics[topic.subject] = topic
        self._put_last(place)
        self.held += _TOPIC_COST + len(topic.subject)
        if self.held > self.budget:
            self._make_room()

    def remove(self, topic: Topic) -> None:
        place = topic.place
        if place < 0:
            return
        self._take_out(place)
        self._at[place] = None
        self._free.append(place)
        topic.place = _NOWHERE
        self.held -= topic.held + _TOPIC_COST + len(topic.subject)
        topic.held = 0
        topic.ring = None
        topic.first = 0
        del self.topics[topic.subject]

    def used(self, topic: Topic) -> None:
        """Say that a topic is used now."""
        place = topic.place
        if place > 0 and raw.int_at(self._after, place) != 0:
            self._take_out(place)
            self._put_last(place)

    def keep(self, topic: Topic, publication: Publication) -> None:
        """Keep a message."""
        entry = publication.entry()
        self._keep(topic, entry, publication.time, _cost(entry))

    def remember(self, message: Message) -> None:
        """Keep a message that does not come through the hub, on whatever topic."""
        publication = Publication(message.time, message.door)
        publication.place_message(message)
        topic = self.topics.get(publication.subject)
        if topic is None:
            topic = Topic(publication.subject, 0)
            self.add(topic)
        topic.messages += 1
        topic.bytes += message.size
        if self.depth > 0:
            self.keep(topic, publication)

    def _keep(self, topic: Topic, entry: Entry, time: float, cost: int) -> None:
        ring = topic.ring
        if ring is None:
            topic.ring = [entry, time]
        elif len(ring) < 2 * self.depth:
            ring.append(entry)
            ring.append(time)
        else:
            first = topic.first
            cost -= _cost(ring[first])
            ring[first] = entry
            ring[first + 1] = time
            first += 2
            topic.first = 0 if first == len(ring) else first
        topic.held += cost
        self.held += cost
        self.used(topic)
        if self.held > self.budget:
            self._make_room()

    def _make_room(self) -> None:
        """Forget what was not used for longest, as much as is too much. The topic that was used
        last keeps its newest message, whatever that costs: it has just come."""
        place = raw.int_at(self._after, 0)
        while place and self.held > self.budget:
            after = raw.int_at(self._after, place)
            topic = self._at[place]
            assert topic is not None
            self._shrink(topic, 1 if after == 0 else 0)
            if topic.ring is None and not topic.created and after:
                self.remove(topic)
            place = after

    def _shrink(self, topic: Topic, least: int) -> None:
        """Forget messages of one topic, oldest first, until there is room or but `least` are
        left."""
        ring = topic.ring
        if ring is None:
            return
        first = topic.first
        dropped = 0
        there = len(ring) // 2
        # An eighth at least, as what is left is put in order.
        while there - dropped > least and (self.held > self.budget or dropped * 8 < there):
            cost = _cost(ring[first])
            ring[first] = ring[first + 1] = None
            self.held -= cost
            topic.held -= cost
            dropped += 1
            first = (first + 2) % len(ring)
        if dropped == there:
            topic.ring = None
            topic.first = 0
        elif dropped:
            # A shorter ring in order, so that it takes no more than it holds.
            topic.ring = [x for x in ring[first:] + ring[:first] if x is not None]
            topic.first = 0

    def _take_out(self, place: int) -> None:
        before = raw.int_at(self._before, place)
        after = raw.int_at(self._after, place)
        raw.set_int(self._after, before, after)
        raw.set_int(self._before, after, before)

    def _put_last(self, place: int) -> None:
        last = raw.int_at(self._before, 0)
        raw.set_int(self._after, last, place)
        raw.set_int(self._before, place, last)
        raw.set_int(self._after, place, 0)
        raw.set_int(self._before, 0, place)


def _cost(entry: object) -> int:
    """The memory that a kept message takes."""
    if isinstance(entry, bytes):
        return _PAYLOAD_COST + len(entry)
    if isinstance(entry, tuple):
        payload, reply, headers = entry
        cost = 2 * _PAYLOAD_COST + len(payload)
        if reply is not None:
            cost += _PAYLOAD_COST + len(reply)
        if headers is not None:
            cost += _PAYLOAD_COST + len(headers)
        return cost
    assert isinstance(entry, Message)
    return _MESSAGE_COST + entry.size
