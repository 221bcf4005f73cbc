"""The retained values that one client has yet to be sent: found a little at a time, as it reads.

There may be hundreds of thousands of topics, and many patterns; so a new pattern looks at some of
them at once, and at the others in turns, while new messages pass.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from rtmb.codecs.msgpack import pack
from rtmb.core.subjects import from_raw, to_raw
from rtmb.doors.msgpack.feed import Entry, Feed, Wanted
from rtmb.doors.msgpack.globs import compile_glob, has_glob
from rtmb.doors.outbox import PIECE

if TYPE_CHECKING:
    from rtmb.doors.msgpack.protocol import MsgpackProtocol

#: How long one look at the topics takes, in seconds, and how many topics are looked at between two
#: looks at the clock.
SLICE, _STEP = 0.002, 256


class Retained:
    """What is retained of the topics that one client has asked for lately."""

    def __init__(self, feed: Feed, client: MsgpackProtocol) -> None:
        self._feed = feed
        self._client = client
        self._asked: OrderedDict[Wanted, None] = OrderedDict()
        #: The topics that the first of these has not looked at yet, and how it looks at them; None:
        #: it has not begun.
        self._look: tuple[Iterator[bytes], Callable[[str], object]] | None = None
        #: Topics that messages were sent on meanwhile, with the number of the last.
        self._heard: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether there may be any left."""
        return bool(self._asked)

    def ask(self, wanted: Wanted) -> None:
        self._asked[wanted] = None

    def forget(self, wanted: Wanted) -> None:
        """It was unsubscribed from, or has looked at all topics."""
        if wanted in self._asked:
            if wanted is next(iter(self._asked)):
                self._look = None
            del self._asked[wanted]
            if not self._asked:
                self._heard.clear()

    def clear(self) -> None:
        self._asked.clear()
        self._look = None
        self._heard.clear()

    def heard(self, numbers: dict[str, int]) -> None:
        """Messages were sent; the value that was retained before them is not needed any more."""
        self._heard.update(numbers)

    def take(self) -> list[Entry]:
        """Some of the retained values, but of topics that have newer ones on their way; none does
        not mean that there are no more."""
        coming = {entry.topic for entry in self._feed.ahead_of(self._client)}
        until = perf_counter() + SLICE
        entries: list[Entry] = []
        size = 0
        while self._asked:
            wanted = next(iter(self._asked))
            topics, matches = self._look = self._look or self._begin(wanted.pattern)
            for looked, name in enumerate(topics, 1):
                topic = from_raw(name)
                if matches(topic) and topic not in coming and self._is_due(topic, wanted):
                    message = self._feed.newest(topic)
                    if message is not None:
                        wanted.delivered += 1
                        entries.append(Entry(0, topic, pack(message), message.size))
                        size += len(entries[-1].packed)
                if size >= PIECE or (looked % _STEP == 0 and perf_counter() >= until):
                    break
            else:
                self.forget(wanted)
            if size >= PIECE or perf_counter() >= until:
                break
        return entries

    def _begin(self, pattern: str) -> tuple[Iterator[bytes], Callable[[str], object]]:
        if has_glob(pattern):
            return iter(self._feed.topics()), compile_glob(pattern).fullmatch
        return iter((to_raw(pattern),)), pattern.__eq__

    def _is_due(self, topic: str, wanted: Wanted) -> bool:
        """Whether a client wants the retained value of a topic because of this pattern: it may see
        it, nothing newer was sent, and no older pattern had asked for it."""
        if self._heard.get(topic, -1) >= wanted.since or not self._feed.may_see(topic):
            return False
        if len(self._client.subscriptions) == 1:
            return True
        all_wanted = self._feed.audience(topic).clients.get(self._client, ())
        return all(other.order >= wanted.order for other in all_wanted)
