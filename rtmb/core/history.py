"""What is remembered of each subject: its newest messages, within one budget of bytes.

Every subject that was published on has a `Topic`, kept in the order of last use. Keeping a message
is one `deque.append`; how much memory they hold together is worked out only now and then (`audit`),
from an estimate that never lies on the low side.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from rtmb.codecs.nats import from_wire
from rtmb.core.message import Message

#: A kept message as the text door's bulk walk leaves it: the bytes from the reply or the size to
#: the end, ``[reply ]size\r\npayload\r\n``. Taking it so costs one slice, which goes to the
#: subscribers as well (benchmark: 1,000 subjects).
Tail = bytes

#: What a kept message costs beyond its payload (objects, slots), rounded up.
MESSAGE_COST = 200
#: What a topic costs beyond its messages: itself, its deque, its names, its cached route.
TOPIC_COST = 2_000
#: After an audit that had to evict, this share of the budget is free: the next one is a while off.
_FREED = 0.1


class Topic:
    """One subject: its newest messages and its counters."""

    __slots__ = ("bytes", "created", "held", "messages", "name", "ring", "times")

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self.ring: deque[Tail | Message] = deque(maxlen=depth)
        #: When each of them came. Beside the ring and not in it: a pair for each message would be
        #: an object more to make, to find again when it is old and cold, and to collect.
        self.times: deque[float] = deque(maxlen=depth)
        self.messages = 0
        self.bytes = 0
        #: Made on request: it stays, with or without messages and subscribers, until deleted.
        self.created = False
        #: The memory it held at the last audit that looked at it.
        self.held = 0

    def newest(self, count: int) -> list[Message]:
        """Up to `count` of the newest messages, oldest first."""
        ring, times = self.ring, self.times
        start = max(0, len(ring) - count)
        return [self._message(ring[i], times[i]) for i in range(start, len(ring))]

    def keep(self, message: Message) -> None:
        self.ring.append(message)
        self.times.append(message.time)

    def drop_oldest(self) -> int:
        """Forget one message; returns the memory that it took."""
        self.times.popleft()
        return MESSAGE_COST + len(self.ring.popleft())

    def cost(self) -> int:
        """The memory that it takes, on the generous side."""
        return TOPIC_COST + MESSAGE_COST * len(self.ring) + sum(map(len, self.ring))

    def _message(self, entry: Tail | Message, when: float) -> Message:
        if isinstance(entry, Message):
            return entry
        line, _, rest = entry.partition(b"\r\n")
        fields = line.split()
        reply = from_wire(fields[0]) if len(fields) == 2 else None
        return Message(self.name, rest[:-2], reply=reply, time=when, door="nats")


class History:
    """All topics, at most `budget` bytes of them; those not used for longest go first."""

    def __init__(self, depth: int, budget: int) -> None:
        self.depth = depth
        self.budget = budget
        self._topics: OrderedDict[str, Topic] = OrderedDict()
        self._used: dict[Topic, None] = {}
        #: The memory held, as of the last audit.
        self.held = 0
        self._slack = budget

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def topic(self, name: str) -> Topic:
        """The topic of that name, made if there is none."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(name, self.depth)
            self._used[topic] = None
            self._slack -= TOPIC_COST
        return topic

    def remove(self, name: str) -> bool:
        topic = self._topics.pop(name, None)
        if topic is None:
            return False
        self._used.pop(topic, None)
        self.held -= topic.held
        return True

    def used(self, topic: Topic) -> None:
        """Say that messages were kept in `topic` since the last audit."""
        if topic.name in self._topics:
            self._used[topic] = None
            self._topics.move_to_end(topic.name)

    def charge(self, size: int) -> bool:
        """Say that messages of at most `size` bytes, costs included, were kept.

        True when it is time for an `audit`."""
        self._slack -= size
        return self._slack < 0

    def audit(self) -> list[str]:
        """Work out what is held and forget topics until it fits; returns the forgotten names."""
        for topic in self._used:
            now = topic.cost()
            self.held += now - topic.held
            topic.held = now
        self._used.clear()
        gone: list[str] = []
        if self.held > self.budget:
            goal = int(self.budget * (1 - _FREED))
            for topic in list(self._topics.values()):
                if self.held <= goal:
                    break
                self._shrink(topic, goal, last=len(self._topics) == 1)
                if not topic.ring and not topic.created:
                    self.remove(topic.name)
                    gone.append(topic.name)
        self._slack = self.budget - self.held
        return gone

    def _shrink(self, topic: Topic, goal: int, *, last: bool) -> None:
        """Empty a topic; of the last one standing, keep what fits."""
        while topic.ring and not (last and self.held <= goal):
            freed = topic.drop_oldest()
            topic.held -= freed
            self.held -= freed
