"""What can be done with plain requests: topics, history, publishing, asking. See docs/http.md."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Request
from zope.interface import implementer

from rtmb.auth import User
from rtmb.codecs import nats as wire
from rtmb.codecs.json_message import message_body, shown, timestamp
from rtmb.config import seconds
from rtmb.core.counters import Counters
from rtmb.core.message import Message, to_value
from rtmb.core.routing import Subscription
from rtmb.core.subjects import INBOX
from rtmb.doors.http.kit import (
    RefusedError,
    answer,
    argument,
    bad,
    body_of,
    path_rest,
    refuse,
    subject_of,
    whole_number,
)
from rtmb.interfaces import ISubscriber

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: How long `POST /request` waits for a reply when nobody says, and at most, in seconds.
TIMEOUT, LONGEST = 2.0, 60.0
#: Headers of a message that are not NATS's own carry this in front on HTTP, both ways.
PREFIX = "X-Message-"


@implementer(ISubscriber)
class Visitor:
    """Whoever sent a request, as the hub sees them: here for as long as that takes."""

    door = "http"
    echo = True
    stalled = False

    def __init__(self, request: Request) -> None:
        peer = request.getClientAddress()
        self.host, self.port = getattr(peer, "host", ""), getattr(peer, "port", 0)
        self.name = f"{self.host}:{self.port}"
        self.counters = Counters()
        #: The first message that comes back.
        self.reply: Deferred[Message] = Deferred()

    def deliver(self, subscription: Subscription, message: Message) -> None:
        if not self.reply.called:
            self.reply.callback(message)

    def flush(self) -> bool:
        return False

    def ended(self, subscription: Subscription, reason: str) -> None:
        pass


def user_of(request: Request) -> User:
    user: User = cast(Any, request).rtmb_user
    return user


class Call(Resource):
    """A resource that answers with JSON; `RefusedError` is an answer too."""

    isLeaf = True

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker
        self.hub = broker.hub

    def render(self, request: Request) -> bytes | int:
        try:
            return cast("bytes | int", super().render(request))
        except RefusedError as error:
            return refuse(request, error.status, error.code, str(error))


def _check(allowed: bool, text: str) -> None:
    if not allowed:
        raise RefusedError(403, "UNAUTHORIZED", f"you may not {text}")


class Topics(Call):
    """``/topics``, ``/topics/{name}`` and ``/topics/{name}/messages``."""

    def render_GET(self, request: Request) -> bytes:
        path = path_rest(request)
        if path.endswith("/messages"):
            return self._messages(request, path.removesuffix("/messages"))
        user = user_of(request)
        if path:
            name = subject_of(path)
            _check(user.subscribe.may_subscribe(name), f"read {name}")
            topic = self.hub.topics().get(name)
            if topic is None:
                raise RefusedError(404, "TOPIC_NOT_FOUND", f"no topic {name}")
            return answer(request, self._described(name))
        names = (n for n in self.hub.topics() if user.subscribe.may_subscribe(n))
        return answer(request, {"topics": [self._described(name) for name in sorted(names)]})

    def _described(self, name: str) -> dict[str, Any]:
        return {"name": shown(name), "subscribers": len(self.hub.subscriptions_of(name))}

    def _messages(self, request: Request, path: str) -> bytes:
        name, user = subject_of(path), user_of(request)
        _check(user.subscribe.may_subscribe(name), f"read {name}")
        if name not in self.hub.topics():
            raise RefusedError(404, "TOPIC_NOT_FOUND", f"no topic {name}")
        found = self.hub.newest(name, whole_number(request, "last_n", self.hub.history.depth))
        return answer(request, [self._message(m) for m in found])

    def _message(self, message: Message) -> dict[str, Any]:
        headers: dict[str, list[str]] = {}
        for name, value in wire.decode_headers(message.headers or b""):
            headers.setdefault(shown(name), []).append(shown(value))
        return {**message_body(message), "ts": timestamp(message.time), "headers": headers}

    def render_POST(self, request: Request) -> bytes:
        if path_rest(request):
            raise RefusedError(404, "NOT_FOUND", "POST /topics makes a topic")
        try:
            body = msgspec.json.decode(body_of(request))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            body = None
        name = body.get("name") if isinstance(body, dict) else None
        if not isinstance(name, str):
            raise bad('the body must be {"name": "..."}')
        subject_of(name)
        _check(user_of(request).publish.may_publish(name), f"make {name}")
        if name in self.hub.topics() and not self._comes_of_itself(name):
            raise RefusedError(409, "CONFLICT", f"there is a topic {name}")
        self.hub.create_topic(name)
        return answer(request, {"status": "created", "topic": name}, 201)

    def _comes_of_itself(self, name: str) -> bool:
        """Whether a topic is only there because someone subscribed to it."""
        return self.hub.history.get(name) is None

    def render_DELETE(self, request: Request) -> bytes:
        name, user = subject_of(path_rest(request)), user_of(request)
        allowed = user.publish.may_publish(name) and user.subscribe.may_subscribe(name)
        _check(allowed, f"delete {name}")
        if not self.hub.delete_topic(name):
            raise RefusedError(404, "TOPIC_NOT_FOUND", f"no topic {name}")
        self.hub.flush()
        return answer(request, {"status": "deleted", "topic": name})


class Health(Call):
    """``GET /health``."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._started = broker.hub.clock()

    def render_GET(self, request: Request) -> bytes:
        found = {
            "uptime_sec": int(self.hub.clock() - self._started),
            "topics": len(self.hub.topics()),
            "subscribers": len(self.hub.trie),
        }
        return answer(request, found)


class Stats(Call):
    """``GET /stats``."""

    def render_GET(self, request: Request) -> bytes:
        user = user_of(request)
        found = {
            shown(name): {
                "messages": topic.messages,
                "subscribers": len(self.hub.subscriptions_of(name)),
            }
            for name, topic in self.hub.topics().items()
            if user.subscribe.may_subscribe(name)
        }
        return answer(request, {"topics": found})


class Publish(Call):
    """``POST /publish/{subject}``: the body is the payload."""

    def message(self, request: Request, reply: str | None) -> Message:
        subject = subject_of(path_rest(request))
        _check(user_of(request).publish.may_publish(subject), f"publish to {subject}")
        payload, headers = body_of(request), _headers_in(request)
        message = Message(subject, payload, reply=reply, headers=headers, door="http")
        if message.size > self.broker.settings.max_payload:
            raise RefusedError(
                413, "TOO_LARGE", f"at most {self.broker.settings.max_payload} bytes"
            )
        return message

    def render_POST(self, request: Request) -> bytes | int:
        reply = argument(request, "reply")
        message = self.message(request, subject_of(reply) if reply is not None else None)
        visitor = Visitor(request)
        number = self.hub.join(visitor)
        count = self.hub.publish(message, visitor)
        self.hub.leave(number)
        found = {"status": "published", "topic": message.subject, "receivers": count}
        return answer(request, found)


class Ask(Publish):
    """``POST /request/{subject}?timeout=``: publishes, and answers with the first reply."""

    def render_POST(self, request: Request) -> bytes | int:
        asked = argument(request, "timeout")
        try:
            timeout = seconds(asked) if asked is not None else TIMEOUT
        except ValueError:
            timeout = LONGEST + 1
        if timeout > LONGEST:
            raise bad(f"timeout must be a number of seconds up to {LONGEST:g}")
        inbox = f"{INBOX}{uuid.uuid4().hex}"
        message = self.message(request, inbox)
        visitor = Visitor(request)
        number, subscription = self.hub.join(visitor), Subscription(visitor, inbox)
        self.hub.subscribe(subscription)

        def leave(result: Message | Failure) -> Message | Failure:
            self.hub.unsubscribe(subscription)
            self.hub.leave(number)
            return result

        def done(result: Message | Failure) -> None:
            if not cast(Any, request)._disconnected:
                request.write(self._answer(request, result, message.subject))
                request.finish()

        reply = visitor.reply.addTimeout(timeout, self.broker.reactor).addBoth(leave)
        if not self.hub.publish(message, visitor):
            reply.addErrback(lambda failure: None)
            reply.cancel()
            return self._nobody(request, message.subject)
        reply.addBoth(done)
        request.notifyFinish().addErrback(lambda failure: reply.cancel())
        return NOT_DONE_YET

    def _answer(self, request: Request, result: Message | Failure, subject: str) -> bytes:
        if isinstance(result, Failure):
            return refuse(request, 504, "TIMEOUT", f"no reply from {subject} in time")
        if result.headers is not None and wire.header_status(result.headers) == "503":
            return self._nobody(request, subject)
        for name, value in wire.decode_headers(result.headers or b""):
            known = name.lower().startswith("nats-")
            _add_header(request, name if known else PREFIX + name, value)
        request.setHeader(b"content-type", content_type(result.payload))
        return result.payload

    def _nobody(self, request: Request, subject: str) -> bytes:
        return refuse(request, 503, "NO_RESPONDERS", f"nobody listens to {subject}")


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
        found += [(name, wire.from_wire(value)) for value in values if name]
    return wire.encode_headers(found) if found else None


def _add_header(request: Request, name: str, value: str) -> None:
    with suppress(UnicodeError, ValueError):  # a name that HTTP does not know how to write
        request.responseHeaders.addRawHeader(name.encode("ascii"), wire.to_wire(value))


def rest(broker: Broker) -> dict[bytes, IResource]:
    """The resources by name, for the root of the HTTP door."""
    return {
        b"topics": Topics(broker),
        b"health": Health(broker),
        b"stats": Stats(broker),
        b"publish": Publish(broker),
        b"request": Ask(broker),
    }
