"""``GET /events/{pattern}``: messages as Server-Sent Events, which resume where they broke off.

The id of an event is the time of its message in microseconds and, since several may have the same
time, which of them it is: ``1756116000250000-2``. A client that comes back with the last id it saw
gets what the history holds from there on. Where the history does not reach back so far, or may not,
an event `gap` says so first. At the seam a message may come twice, if many subjects had messages at
one moment; none is left out in silence.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from twisted.web.server import NOT_DONE_YET, Request

from rtmb.auth import User
from rtmb.codecs.json_message import OncePerMessage
from rtmb.core.hub import Hub
from rtmb.core.message import Message
from rtmb.core.subjects import INBOX, has_wildcard, hears, matches
from rtmb.core.subscriptions import Subscription
from rtmb.doors.http.kit import (
    Code,
    Endpoint,
    bad,
    encode_json,
    forbidden,
    header,
    path_argument,
    pattern_of,
    user_of,
)
from rtmb.doors.http.operations import Number, Text, operation
from rtmb.doors.http.streams import GO_ELSEWHERE, Stream, Streams, own_connection

if TYPE_CHECKING:
    from rtmb.broker import Broker
    from rtmb.core.history import Topic
    from rtmb.doors.http.connection import HttpChannel

#: Seconds of silence after which a comment shows that the stream lives.
HEARTBEAT = 15.0
#: Milliseconds that a browser waits before it comes back.
_RETRY = 1000
_ID = re.compile(r"(\d{1,18})-(\d{1,9})")


_LAST_N = Number("last_n", "So many of the newest messages of each subject first", 0)
_LAST_EVENT_ID = Text("last_event_id", "As the header Last-Event-ID", "")


def micros(time: float) -> int:
    return round(time * 1e6)


def event(kind: str, value: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode_json(value))


class Past:
    """What the history holds of a pattern since some moment, that moment included."""

    def __init__(self, hub: Hub, pattern: str, hidden: tuple[str, ...], since: int) -> None:
        self._hub, self._pattern, self._since = hub, pattern, since
        topics = [t for t in self._topics() if not any(matches(h, t.name) for h in hidden)]
        #: Whether something may have been forgotten that came after `since`.
        self.lacking = pattern.startswith(INBOX) or any(map(self._lacks, topics))
        found = [m for t in sorted(topics, key=lambda t: t.name) for m in self._newest(t)]
        self.messages = sorted(found, key=lambda m: micros(m.time))

    def _topics(self) -> list[Topic]:
        if not has_wildcard(self._pattern):
            topic = self._hub.history.get(self._pattern)
            return [topic] if topic is not None else []
        return [t for t in self._hub.history if hears(self._pattern, t.name)]

    def _newest(self, topic: Topic) -> list[Message]:
        count = 0
        for time in reversed(topic.times):
            if micros(time) < self._since:
                break
            count += 1
        return topic.newest(count)

    def _lacks(self, topic: Topic) -> bool:
        times = topic.times
        return topic.messages > len(times) and (not times or micros(times[0]) >= self._since)

    def after(self, nth: int) -> list[Message]:
        """Without the first `nth` messages of the moment itself, which the client has."""
        same = sum(micros(m.time) == self._since for m in self.messages)
        if self.lacking or (has_wildcard(self._pattern) and same != nth):
            return self.messages  # which of them it has cannot be told
        return self.messages[min(same, nth) :]


class EventClient(Stream):
    """One stream of events."""

    door = "sse"

    def __init__(self, events: Events, user: User, request: Request, pattern: str) -> None:
        super().__init__(events.streams, user, request.getClientAddress())
        self._events = events
        self._pattern = pattern
        self.channel = cast("HttpChannel", request.channel)
        self._time = self._nth = 0
        self._last_said = self.started

    def open(self, last_id: tuple[int, int] | None, last_n: int) -> None:
        limit = 2 * self.settings.max_pending
        self.begin(own_connection(self.channel, limit, self.overflowed))
        self.say(b"retry: %d\n\n" % _RETRY)
        rule = self.user.subscribe
        hidden = rule.hidden(self._pattern)
        subscription = Subscription(self, self._pattern, None, b"events", hidden)
        since = last_id[0] if last_id is not None else micros(self.hub.clock())
        past = Past(self.hub, self._pattern, hidden, since)
        if last_id is None:
            messages = [] if not last_n else self.hub.newest(self._pattern, last_n)
            messages = [m for m in messages if not any(matches(h, m.subject) for h in hidden)]
            self._count(past.messages if not messages else [])
        else:
            if past.lacking or since < self._events.started:
                self.say(event("gap", {"since": header_id(last_id), "pattern": self._pattern}))
            messages = past.after(last_id[1])
            self._count(past.messages[: len(past.messages) - len(messages)])
        for message in messages:
            self.hub.deliver_to(subscription, message)
        self.by_pattern[self._pattern] = subscription
        self.hub.subscribe(subscription)
        self.hub.flush()

    def _count(self, messages: list[Message]) -> None:
        for message in messages:
            self._next_id(message)

    def _next_id(self, message: Message) -> bytes:
        time = micros(message.time)
        if time == self._time:
            self._nth += 1
        else:
            self._time, self._nth = time, 1
        return b"id: %d-%d\n" % (time, self._nth)

    def encode(self, message: Message) -> bytes:
        self._last_said = self.hub.clock()
        return self._next_id(message) + self._events.data(message)

    # Ending

    def close(self, reason: str) -> None:
        self.finish([event("info", {"msg": reason})], reason, flush=True)

    def tell_lame_duck(self) -> None:
        self.say(event("info", {"msg": GO_ELSEWHERE}))

    def abort(self) -> None:
        self.done = True
        self.outbox.discard()
        self.channel.transport.abortConnection()

    def too_slow(self, count: int, topics: list[str]) -> None:
        error = {"code": "SLOW_CONSUMER", "message": f"you do not read: {count} messages dropped"}
        self.finish([event("closed", {"error": error, "dropped": count})], "slow consumer")

    def tell_dropped(self, count: int, topics: list[str]) -> None:
        self.say(event("dropped", {"count": count, "topics": topics}))

    def not_welcome(self, why: str) -> None:
        self.finish([event("closed", {"error": {"code": "UNAUTHORIZED", "message": why}})], why)

    def not_allowed(self, subscription: Subscription) -> None:
        super().not_allowed(subscription)
        self.not_welcome(f"you may no longer subscribe to {subscription.pattern}")

    def ended(self, subscription: Subscription, reason: str) -> None:
        super().ended(subscription, reason)
        self.close(f"topic {reason}")

    def tick(self, now: float) -> None:
        if now - self._last_said >= HEARTBEAT and not self.done:
            self._last_said = now
            if not self._full:
                self.say(b": heartbeat\n\n")

    def gone(self, result: object) -> None:
        self.lost("client closed")


def header_id(given: tuple[int, int]) -> str:
    return f"{given[0]}-{given[1]}"


class Events(Endpoint):
    """``/events/{pattern}``."""

    def __init__(self, broker: Broker, streams: Streams) -> None:
        super().__init__(broker)
        self.streams = streams
        #: What came before this, nobody can know.
        self.started = micros(streams.hub.clock())
        self.data = OncePerMessage(lambda message: b"data: " + streams.event(message) + b"\n\n")

    @operation(
        "Follow what is published, as Server-Sent Events",
        query=(_LAST_N, _LAST_EVENT_ID),
        headers=(("Last-Event-ID", "The last id that you saw: what came since is sent first"),),
        answer="text/event-stream",
        errors=(Code.BAD_REQUEST, Code.FORBIDDEN, Code.SHUTTING_DOWN),
    )
    def render_GET(self, request: Request) -> bytes | int:
        user = user_of(request)
        pattern = pattern_of(path_argument(request, "pattern"))
        last_n = _LAST_N.of(request)
        last_id = self._last_id(request)
        if not user.subscribe.may_subscribe(pattern):
            raise forbidden(f"you may not subscribe to {pattern}")
        self.refuse_if_leaving()
        request.setHeader(b"content-type", b"text/event-stream; charset=utf-8")
        request.setHeader(b"cache-control", b"no-store")
        request.setHeader(b"x-accel-buffering", b"no")  # proxies that collect, do not
        request.setHeader(b"connection", b"close")  # its end is the end of the events
        if request.method == b"HEAD":
            return b""
        channel: Any = request.channel
        channel.writeHeaders(b"HTTP/1.1", b"200", b"OK", request.responseHeaders)
        client = EventClient(self, user, request, pattern)
        request.notifyFinish().addBoth(client.gone)
        client.open(last_id, last_n)
        return NOT_DONE_YET

    def _last_id(self, request: Request) -> tuple[int, int] | None:
        given = header(request, b"last-event-id") or _LAST_EVENT_ID.of(request)
        if not given:
            return None
        found = _ID.fullmatch(given)
        if found is None:
            raise bad("that is no id of an event from here")
        return int(found[1]), int(found[2])
