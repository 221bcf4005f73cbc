"""What can be done with plain requests: topics, history, publishing, asking. See docs/http.md."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
from twisted.python.failure import Failure
from twisted.web.server import NOT_DONE_YET, Request

from rtmb.codecs import nats as wire
from rtmb.codecs.json_message import headers_of, message_body, shown, timestamp
from rtmb.core.hub import Hub
from rtmb.core.message import Message, to_value
from rtmb.core.subjects import INBOX, OWN, from_raw, to_raw
from rtmb.doors.http.kit import (
    Code,
    Endpoint,
    RefusedError,
    answer,
    argument,
    body_of,
    forbidden,
    json_of,
    path_argument,
    refuse,
    reply_of,
    subject_of,
    too_large,
    user_of,
    whole_number,
)
from rtmb.doors.http.operations import BYTES, Number, Seconds, Switch, Text, operation
from rtmb.doors.http.visitors import Visitor, Visitors

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: How long `POST /request` waits for a reply when nobody says, and at most, in seconds.
TIMEOUT, LONGEST = 2.0, 60.0
#: Headers of a message that are not NATS's own carry this in front on HTTP, both ways.
PREFIX = "X-Message-"


#: Errors of several operations.
_TOPIC_ERRORS = (Code.BAD_REQUEST, Code.FORBIDDEN, Code.TOPIC_NOT_FOUND)
_PUBLISH_ERRORS = (Code.BAD_REQUEST, Code.FORBIDDEN, Code.TOO_LARGE)


def _check(allowed: bool, text: str) -> None:
    if not allowed:
        raise forbidden(f"you may not {text}")


def lister(request: Request) -> Callable[[str], bool]:
    """Which topics a list for this request shows: those that its sender may read. The broker's own
    are left out unless it asks for them, by ``system=1`` or by a filter that begins as they do."""
    may_read = user_of(request).subscribe.may_subscribe
    own = SYSTEM.of(request) or (argument(request, "filter") or "").startswith(OWN)
    return lambda name: may_read(name) and (own or not name.startswith(OWN))


def _no_topic(name: str) -> RefusedError:
    return RefusedError(Code.TOPIC_NOT_FOUND, f"no topic {name}")


# What is asked and answered


class NewTopic(msgspec.Struct):
    """The body that makes a topic."""

    name: str


class TopicChange(msgspec.Struct):
    """A topic was made or deleted."""

    status: str
    topic: str


class TopicInfo(msgspec.Struct):
    """A topic, and how many subscriptions get what is published on it."""

    name: str
    subscribers: int


class TopicList(msgspec.Struct):
    """Topics by name."""

    topics: list[TopicInfo]


class TopicCounts(msgspec.Struct):
    """How often a topic was published on."""

    messages: int
    subscribers: int


class TopicStats(msgspec.Struct):
    """The counts of all topics."""

    topics: dict[str, TopicCounts]


class Vitals(msgspec.Struct):
    """How the broker is."""

    uptime_sec: int
    topics: int
    subscribers: int


class KeptMessage(msgspec.Struct):
    """A message that is remembered."""

    id: str
    payload: Any
    ts: str
    headers: dict[str, list[str]]
    #: There when the payload is neither JSON nor text.
    encoding: Literal["base64"] | msgspec.UnsetType = msgspec.UNSET
    reply: str | msgspec.UnsetType = msgspec.UNSET


class Published(msgspec.Struct):
    """A message was published, and so many subscriptions got it."""

    status: str
    topic: str
    receivers: int


SYSTEM = Switch("system", "Whether the broker's own topics are listed as well", False)
_LAST_N = Number("last_n", "So many of the newest messages; all that are remembered if left out", 0)
_REPLY = Text("reply", "The subject where an answer is expected", "")
_TIMEOUT = Seconds("timeout", "Seconds to wait for a reply", TIMEOUT, LONGEST)
_HEADERS = (
    ("Nats-Msg-Id", "The id of the message; any header that begins with Nats- passes as it is"),
    ("X-Message-Name", "The header Name of the message; so for any other name"),
)


# The endpoints


class Topics(Endpoint):
    """``/topics``: all of them."""

    @operation("List the topics that you may read", query=(SYSTEM,), answer=TopicList)
    def render_GET(self, request: Request) -> Any:
        names = sorted(filter(lister(request), self.hub.topics()))
        return TopicList([_described(self.hub, name) for name in names])

    @operation(
        "Make a topic that stays until it is deleted",
        body=NewTopic,
        answer=TopicChange,
        status=201,
        errors=(Code.BAD_REQUEST, Code.FORBIDDEN, Code.CONFLICT, Code.TOO_LARGE),
    )
    def render_POST(self, request: Request) -> bytes:
        name = subject_of(json_of(request, NewTopic, 'the body must be {"name": "..."}').name)
        _check(user_of(request).publish.may_publish(name), f"make {name}")
        # One that is only there because someone subscribed to it can still be made to stay.
        if self.hub.history.get(name) is not None:
            raise RefusedError(Code.CONFLICT, f"there is a topic {name}")
        self.hub.create_topic(name)
        return answer(request, TopicChange("created", name), 201)


class OneTopic(Endpoint):
    """``/topics/{name}``."""

    @operation("Show a topic", answer=TopicInfo, errors=_TOPIC_ERRORS)
    def render_GET(self, request: Request) -> Any:
        name = _readable(request)
        if name not in self.hub.topics():
            raise _no_topic(name)
        return _described(self.hub, name)

    @operation(
        "Delete a topic, and end the subscriptions to just it",
        answer=TopicChange,
        errors=_TOPIC_ERRORS,
    )
    def render_DELETE(self, request: Request) -> Any:
        name, user = subject_of(path_argument(request, "name")), user_of(request)
        allowed = user.publish.may_publish(name) and user.subscribe.may_subscribe(name)
        _check(allowed, f"delete {name}")
        if not self.hub.delete_topic(name):
            raise _no_topic(name)
        self.hub.flush()
        return TopicChange("deleted", name)


class Messages(Endpoint):
    """``/topics/{name}/messages``: what is remembered of it."""

    @operation(
        "Read the newest messages of a topic, oldest first",
        query=(_LAST_N,),
        answer=list[KeptMessage],
        errors=_TOPIC_ERRORS,
    )
    def render_GET(self, request: Request) -> Any:
        name = _readable(request)
        if name not in self.hub.topics():
            raise _no_topic(name)
        count = whole_number(request, _LAST_N.name, self.hub.history.depth)
        return [
            {**message_body(m), "ts": timestamp(m.time), "headers": headers_of(m)}
            for m in self.hub.newest(name, count)
        ]


def _readable(request: Request) -> str:
    """The topic that a path names, which its sender may read."""
    name = subject_of(path_argument(request, "name"))
    _check(user_of(request).subscribe.may_subscribe(name), f"read {name}")
    return name


def _described(hub: Hub, name: str) -> TopicInfo:
    return TopicInfo(shown(name), len(hub.subscriptions_of(name)))


class Health(Endpoint):
    """``/health``."""

    open = True

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._started = broker.hub.clock()

    @operation("How the broker is", answer=Vitals)
    def render_GET(self, request: Request) -> Any:
        return Vitals(
            uptime_sec=int(self.hub.clock() - self._started),
            topics=sum(not name.startswith(OWN) for name in self.hub.topics()),
            subscribers=len(self.hub.routing),
        )


class Stats(Endpoint):
    """``/stats``."""

    @operation("How often each topic was published on", query=(SYSTEM,), answer=TopicStats)
    def render_GET(self, request: Request) -> Any:
        listed = lister(request)
        topics = {name: topic for name, topic in self.hub.topics().items() if listed(name)}
        return TopicStats(
            {
                shown(name): TopicCounts(topic.messages, len(self.hub.subscriptions_of(name)))
                for name, topic in topics.items()
            }
        )


class Publish(Endpoint):
    """``/publish/{subject}``: the body is the payload."""

    def __init__(self, broker: Broker, visitors: Visitors) -> None:
        super().__init__(broker)
        self._visitors = visitors

    def visitor(self, request: Request) -> Visitor:
        """Its sender, who must leave in the end."""
        visitor = Visitor(self._visitors, request)
        visitor.join()
        return visitor

    def message(self, request: Request, reply: str | None) -> Message:
        subject = subject_of(path_argument(request, "subject"))
        _check(user_of(request).publish.may_publish(subject), f"publish to {subject}")
        payload, headers = body_of(request), _headers_in(request)
        message = Message(subject, payload, reply=reply, headers=headers, door="http")
        if message.size > self.broker.settings.max_payload:
            raise too_large(self.broker.settings.max_payload)
        return message

    @operation(
        "Publish a message: the body is the payload, whatever it is",
        query=(_REPLY,),
        headers=_HEADERS,
        body=BYTES,
        answer=Published,
        errors=_PUBLISH_ERRORS,
    )
    def render_POST(self, request: Request) -> Any:
        reply = _REPLY.of(request)
        message = self.message(request, reply_of(reply) if reply else None)
        visitor = self.visitor(request)
        count = self.hub.publish(message, visitor)
        visitor.leave("")
        return Published("published", shown(message.subject), count)


class Ask(Publish):
    """``/request/{subject}``: publishes, and answers with the first reply."""

    @operation(
        "Publish a request, and answer with the first reply",
        query=(_TIMEOUT,),
        headers=_HEADERS,
        body=BYTES,
        answer=("application/json", "text/plain", BYTES),
        errors=(*_PUBLISH_ERRORS, Code.NO_RESPONDERS, Code.TIMEOUT, Code.SHUTTING_DOWN),
    )
    def render_POST(self, request: Request) -> bytes | int:
        timeout = _TIMEOUT.of(request)
        inbox = f"{INBOX}{uuid.uuid4().hex}"
        message = self.message(request, inbox)
        visitor = self.visitor(request)
        visitor.listen(inbox)

        def leave(result: Message | Failure) -> Message | Failure:
            visitor.leave("")
            return result

        def done(result: Message | Failure) -> None:
            if not cast(Any, request)._disconnected:
                request.write(self._answer(request, result, message.subject))
                request.finish()

        reply = visitor.reply.addTimeout(timeout, self.broker.reactor).addBoth(leave)
        if not self.hub.publish(message, visitor):
            reply.addErrback(lambda failure: None)
            reply.cancel()
            raise _nobody(message.subject)
        reply.addBoth(done)
        request.notifyFinish().addErrback(lambda failure: reply.cancel())
        return NOT_DONE_YET

    def _answer(self, request: Request, result: Message | Failure, subject: str) -> bytes:
        if isinstance(result, Failure):
            if isinstance(result.value, RefusedError):
                return refuse(request, result.value)
            return refuse(request, RefusedError(Code.TIMEOUT, f"no reply from {subject} in time"))
        if result.headers is not None and wire.header_status(result.headers) == "503":
            return refuse(request, _nobody(subject))
        for name, value in wire.decode_headers(result.headers or b""):
            known = name.lower().startswith("nats-")
            _add_header(request, name if known else PREFIX + name, value)
        request.setHeader(b"content-type", content_type(result.payload))
        return result.payload


def _nobody(subject: str) -> RefusedError:
    return RefusedError(Code.NO_RESPONDERS, f"nobody listens to {subject}")


def content_type(payload: bytes) -> bytes:
    """What a payload seems to be."""
    value = to_value(payload)
    if isinstance(value, bytes):
        return b"application/octet-stream"
    is_text = isinstance(value, str) and not payload.lstrip().startswith(b'"')
    return b"text/plain; charset=utf-8" if is_text else b"application/json"


def _headers_in(request: Request) -> bytes | None:
    """The headers of a request that are headers of the message."""
    found: list[tuple[str, str]] = []
    for raw, values in request.requestHeaders.getAllRawHeaders():
        name = raw.decode("ascii", "replace")
        if name.lower().startswith(PREFIX.lower()):
            name = name[len(PREFIX) :]
        elif not name.lower().startswith("nats-"):
            continue
        found += [(name, from_raw(value)) for value in values if name]
    return wire.encode_headers(found) if found else None


def _add_header(request: Request, name: str, value: str) -> None:
    with suppress(UnicodeError, ValueError):  # a name that HTTP does not know how to write
        request.responseHeaders.addRawHeader(name.encode("ascii"), to_raw(value))


def rest_table(broker: Broker, visitors: Visitors) -> dict[str, Endpoint]:
    """What stands at which path."""
    return {
        "/topics": Topics(broker),
        "/topics/{name}/messages": Messages(broker),
        "/topics/{name}": OneTopic(broker),
        "/publish/{subject}": Publish(broker, visitors),
        "/request/{subject}": Ask(broker, visitors),
        "/health": Health(broker),
        "/stats": Stats(broker),
    }
