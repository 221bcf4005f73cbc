"""What is done for every message that a client of the msgpack door publishes. Compiled."""

from __future__ import annotations

from collections.abc import Callable

from rtmb.codecs.msgpack import DOOR, BadFrameError, PackedMessage, check_value, topic_end
from rtmb.core.counters import Counters
from rtmb.core.hub import Hub
from rtmb.core.message import MOST_NESTED
from rtmb.core.publication import Publication

#: What is known of a topic: its text, its subject if it is one that the hub takes, and whether
#: clients may publish it.
Known = tuple[str, bytes | None, bool]

_MOST_NESTED = MOST_NESTED


class PackedPublication(Publication):
    """A message as the bytes that came."""

    __slots__ = ()

    def put(self, topic: str, subject: bytes, packed: bytes, at: int) -> None:
        """Be another message: ``[topic, value]``, the value at `at`."""
        self.subject = subject
        self.size = len(packed) - at
        self.start = -1  # see `lay_out`
        self._payload = None
        self._message = PackedMessage(topic, packed, at, self.time)


class Publisher:
    """Publishes for one client."""

    __slots__ = ("_counters", "_hub", "_learn", "_most", "_publication", "_topics")

    def __init__(
        self,
        hub: Hub,
        counters: Counters,
        topics: dict[bytes, Known],
        learn: Callable[[bytes], Known],
    ) -> None:
        self._hub = hub
        self._counters = counters
        #: What is known of topics as they are written, and how to find out about another.
        self._topics = topics
        self._learn = learn
        self._publication = PackedPublication(0.0, DOOR)
        self._most = 0

    def begin(self, time: float, most: int) -> None:
        """A chunk has come: when, and how long a value may be."""
        self._publication.time = time
        self._most = most

    def publish(self, packed: bytes) -> bool:
        """Publish ``[topic, value]``; False when that is not for the hub: the topic is no subject,
        or it may not be published."""
        at = topic_end(packed)
        written = packed[1:at]
        known = self._topics.get(written)
        if known is None:
            known = self._learn(written)
        size = len(packed) - at
        if size > self._most:
            raise BadFrameError(f"a value of {size} bytes, over max_payload")
        if size > _MOST_NESTED:
            check_value(packed, at)
        topic, subject, allowed = known
        if subject is None or not allowed:
            return False
        publication = self._publication
        publication.put(topic, subject, packed, at)
        hub = self._hub
        hub.pass_on(hub.route(subject), publication, None, self._counters)
        return True
