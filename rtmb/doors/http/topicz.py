"""``/topicz``: topics with their rates and last values, for the live page."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from twisted.web.server import Request

from rtmb.codecs.json_message import shown, timestamp
from rtmb.core.history import Topic
from rtmb.doors.http.kit import Code
from rtmb.doors.http.monitor import OFFSET, PAGE_LIMIT, Monitored, page_of
from rtmb.doors.http.operations import Choice, Operation, Text
from rtmb.doors.http.rest import SYSTEM, lister

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: Characters of a topic's last message that are shown.
PREVIEW = 200
#: Rates are worked out again after this many seconds at the earliest.
_RATE_PERIOD = 0.9
_SORT = Choice(
    "sort",
    "Which come first",
    "rate",
    ("rate", "messages", "bytes", "last", "name"),
    "invalid sorting option: {word}",
)
_FILTER = Text("filter", "What stands in the name of the topic", "")


class Topicz(Monitored):
    """Topics with their rate since this was last asked."""

    about = Operation(
        "Topics with their rates and last values",
        query=(_SORT, _FILTER, SYSTEM, OFFSET, PAGE_LIMIT),
        errors=(Code.BAD_REQUEST,),
    )

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._rated = 0.0
        self._counted: dict[str, int] = {}
        self._rates: dict[str, float] = {}

    def found(self, request: Request) -> dict[str, Any]:
        offset, limit = page_of(request)
        sort, part = _SORT.of(request), _FILTER.of(request)
        sorts: dict[str, Callable[[Topic], Any]] = {
            "rate": lambda t: (-self._rates.get(t.name, 0.0), t.name),
            "messages": lambda t: (-t.messages, t.name),
            "bytes": lambda t: (-t.bytes, t.name),
            "last": lambda t: (-t.times[-1] if t.times else 0.0, t.name),
            "name": attrgetter("name"),
        }
        self._rate(list(self.hub.history))
        listed = lister(request)
        topics = [t for t in self.hub.history if listed(t.name)]
        total = len(topics)
        topics = [t for t in topics if part in t.name]
        topics.sort(key=sorts[sort])
        return {
            "total": total,
            "matching": len(topics),
            "offset": offset,
            "limit": limit,
            "topics": [self._topic(t) for t in topics[offset : offset + limit]],
        }

    def _topic(self, topic: Topic) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": shown(topic.name),
            "messages": topic.messages,
            "bytes": topic.bytes,
            "rate": round(self._rates.get(topic.name, 0.0), 1),
            "kept": topic.kept,
            "subscribers": len(self.hub.subscriptions_of(topic.name)),
        }
        for last in topic.newest(1):
            found["last_time"] = timestamp(last.time)
            found["last_size"] = last.size
            found["last"] = last.payload[: PREVIEW * 4].decode("utf-8", "replace")[:PREVIEW]
        return found

    def _rate(self, topics: list[Topic]) -> None:
        now = self.hub.clock()
        passed = now - self._rated
        if passed < _RATE_PERIOD:
            return
        before, self._counted = self._counted, {t.name: t.messages for t in topics}
        if self._rated:
            # A topic not seen before began since: all that it has is new.
            self._rates = {n: (c - before.get(n, 0)) / passed for n, c in self._counted.items()}
        self._rated = now
