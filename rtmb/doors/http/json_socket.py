"""The clients of `/ws`: JSON over WebSocket. See docs/http.md."""

from __future__ import annotations

import uuid
from collections import deque
from typing import Annotated, Any, Literal

import msgspec
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure
from twisted.web.server import Request

from rtmb.codecs.json_message import (
    OncePerMessage,
    decode_payload,
    encode_given_headers,
    shown,
    timestamp,
)
from rtmb.core.message import Message
from rtmb.core.subjects import is_pattern, is_subject
from rtmb.core.subscriptions import Subscription
from rtmb.doors.http.kit import Code, RefusedError, bad, encode_json, reply_of, user_of
from rtmb.doors.http.sockets import (
    GOING_AWAY,
    PING,
    POLICY,
    TEXT,
    Parts,
    Socket,
    close_frame,
    frame,
)
from rtmb.doors.http.streams import GO_ELSEWHERE, MOST_ANSWERS, Stream, Streams
from rtmb.doors.session import LAME_DUCK, STOPPING

#: Seconds of silence after which a `/ws` client is told that we are still here.
HEARTBEAT = 30.0
#: How often a subscription with a `max_rate` sends what it has, in seconds.
_BEAT = 0.1


# The JSON protocol


class Body(msgspec.Struct):
    """A message that is published."""

    payload: Any = msgspec.UNSET
    id: str | None = None
    encoding: str | None = None
    headers: dict[str, str | list[str]] = {}
    reply: str | None = None


class Command(msgspec.Struct):
    """What a client may say."""

    type: Literal["subscribe", "unsubscribe", "publish", "ping"]
    topic: str | None = None
    message: Body | None = None
    client_id: str | None = None
    last_n: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    max_rate: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    request_id: str | int | None = None


class Fault(msgspec.Struct):
    """Why a command was refused, or the connection is closed."""

    code: str
    message: str


class Dropped(msgspec.Struct):
    """What a client did not get because it did not read."""

    count: int
    topics: list[str]


class Sampled(msgspec.Struct):
    """How many messages there were in the last second, and how many were shown."""

    seen: int
    sent: int


class Shown(msgspec.Struct, omit_defaults=True):
    """A message as clients get it; an `ack` has only its id."""

    id: str
    payload: Any = msgspec.UNSET
    encoding: Literal["base64"] | msgspec.UnsetType = msgspec.UNSET
    headers: dict[str, list[str]] | msgspec.UnsetType = msgspec.UNSET
    reply: str | msgspec.UnsetType = msgspec.UNSET


class Said(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What the broker may say. It is written field by field; this is its description."""

    type: Literal["ack", "event", "error", "pong", "info"]
    ts: str
    request_id: str | int | msgspec.UnsetType = msgspec.UNSET
    topic: str | msgspec.UnsetType = msgspec.UNSET
    status: Literal["ok"] | msgspec.UnsetType = msgspec.UNSET
    message: Shown | msgspec.UnsetType = msgspec.UNSET
    error: Fault | msgspec.UnsetType = msgspec.UNSET
    msg: str | msgspec.UnsetType = msgspec.UNSET
    dropped: Dropped | msgspec.UnsetType = msgspec.UNSET
    sampled: Sampled | msgspec.UnsetType = msgspec.UNSET


_command = msgspec.json.Decoder(Command).decode


def _request_id(text: str | bytes) -> Any:
    """The request id of a command that is wrong in some other way."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    given = found.get("request_id") if isinstance(found, dict) else None
    return given if isinstance(given, (str, int)) else None


class Sampler:
    """A subscription that shows at most so many messages a second, the newest. What it leaves out
    does not count as sent."""

    def __init__(self, client: JsonClient, subscription: Subscription, rate: int) -> None:
        self._client, self._subscription, self._rate = client, subscription, rate
        self._held: deque[Message] = deque(maxlen=rate)
        self._allowance = 1.0
        self._beats = self._seen = self._sent = 0
        self._lacking = False
        self._beating = LoopingCall(self._beat)
        self._beating.clock = client.roster.reactor
        self._beating.start(_BEAT, now=False)

    def stop(self) -> None:
        if self._beating.running:
            self._beating.stop()

    def take(self, message: Message) -> None:
        self._seen += 1
        self._held.append(message)
        # The hub has counted it already: that is taken back until it is sent.
        self._client.hub.count_out(self._subscription, -1, -message.size)

    def _beat(self) -> None:
        self._allowance = min(self._rate, self._allowance + self._rate * _BEAT)
        count = min(len(self._held), int(self._allowance))
        if count:
            newest = list(self._held)[-count:]
            self._held.clear()
            self._allowance -= count
            self._sent += count
            for message in newest:
                self._client.hub.count_out(self._subscription, 1, message.size)
                self._client.push(message.subject, self._client.encode(message))
            self._client.hub.flush()
        self._beats += 1
        if self._beats * _BEAT >= 1:
            self._tell()

    def _tell(self) -> None:
        """Once a second: what was left out, and once more when nothing is left out any longer."""
        lacking = self._seen > self._sent + len(self._held)
        if lacking or self._lacking:
            told = {"seen": self._seen, "sent": self._sent}
            self._client.tell("info", topic=shown(self._subscription.pattern), sampled=told)
        self._lacking = lacking
        self._beats = self._sent = 0
        self._seen = len(self._held)


class JsonClient(Socket, Stream):
    """One client of `/ws`."""

    door = "ws"

    def __init__(self, request: Request, factory: JsonSocketFactory) -> None:
        Socket.__init__(self, request)
        Stream.__init__(self, factory.streams, user_of(request), request.getClientAddress())
        self.encode = factory.event  # type: ignore[method-assign]
        self._samplers: dict[str, Sampler] = {}
        self._client_id = ""
        self._pings_out = 0
        self._next_ping = self.started + self.settings.ping_interval
        self._last_said = self.started
        self._ping_sent = 0.0
        self._unread = False

    def opened(self) -> None:
        most = self.settings.max_payload + self.settings.max_control_line
        limit = 2 * self.settings.max_pending + MOST_ANSWERS
        self.take(limit, self.overflowed, Parts("", most), Parts(b"", most))
        self.begin(self.outbox)

    def describe(self) -> dict[str, str]:
        return {"name": self._client_id} if self._client_id else {}

    # Ending

    def connectionLost(self, reason: Failure) -> None:
        super().connectionLost(reason)
        self.lost("client closed")

    def forget(self) -> None:
        super().forget()
        for sampler in self._samplers.values():
            sampler.stop()
        self._samplers.clear()

    def hang_up(self, code: int, reason: str) -> None:
        self._leave(close_frame(code, reason), reason)

    def peer_closed(self, answer: bytes) -> None:
        code = int.from_bytes(answer[2:4], "big")
        self._leave(
            answer,
            "client closed"
            if code in (0, 1000, 1001)
            else f"protocol error: {answer[4:].decode('utf-8', 'replace') or code}",
        )

    def _leave(self, last: bytes, reason: str, said: bytes = b"", *, flush: bool = False) -> None:
        self.closing = True
        self.finish([said, last], reason, flush=flush)

    def close(self, reason: str) -> None:
        code = GOING_AWAY if reason in (STOPPING, LAME_DUCK) else POLICY
        said = self._encoded("info", msg=reason)
        self._leave(close_frame(code, reason), reason, said, flush=True)

    def tell_lame_duck(self) -> None:
        self.tell("info", msg=GO_ELSEWHERE)

    def abort(self) -> None:
        self.closing = self.done = True
        self.outbox.discard()
        self.raw.abortConnection()

    def too_slow(self, count: int, topics: list[str]) -> None:
        error = {"code": "SLOW_CONSUMER", "message": f"you do not read: {count} messages dropped"}
        said = self._encoded("error", error=error, dropped={"count": count, "topics": topics})
        self._leave(close_frame(POLICY, "slow consumer"), "slow consumer", said)

    def tell_dropped(self, count: int, topics: list[str]) -> None:
        self.tell("info", dropped={"count": count, "topics": topics})

    def not_welcome(self, why: str) -> None:
        said = self._encoded("error", error={"code": "UNAUTHORIZED", "message": why})
        self._leave(close_frame(POLICY, why), why, said)

    def not_allowed(self, subscription: Subscription) -> None:
        super().not_allowed(subscription)
        pattern = subscription.pattern
        self._stop_sampling(pattern)
        text = f"you may no longer subscribe to {pattern}"
        self.tell("error", topic=pattern, error={"code": "UNAUTHORIZED", "message": text})

    # Talking

    def tell(self, kind: str, **fields: Any) -> None:
        self._last_said = self.hub.clock()
        self.say(self._encoded(kind, **fields))

    def _encoded(self, kind: str, **fields: Any) -> bytes:
        known = {name: value for name, value in fields.items() if value is not None}
        now = timestamp(self.hub.clock())
        return frame(TEXT, encode_json({"type": kind, **known, "ts": now}))

    def tick(self, now: float) -> None:
        if self.done:
            return
        if now - self._last_said >= HEARTBEAT and not self._full:
            self.tell("info", msg="heartbeat")
        if now >= self._next_ping:
            if now - self.last_input < self.settings.ping_interval:
                self._next_ping = self.last_input + self.settings.ping_interval
            elif self._pings_out >= self.settings.ping_max:
                self.closed_reason = "stale connection"
                self.abort()
            else:
                self._pings_out += 1
                self._next_ping, self._ping_sent = now + self.settings.ping_interval, now
                self.say(frame(PING, b""))

    def pongReceived(self, payload: bytes) -> None:
        if self._ping_sent:
            self.rtt, self._ping_sent = self.hub.clock() - self._ping_sent, 0.0

    # Listening

    def dataReceived(self, data: bytes) -> None:
        self.last_input = self.hub.clock()
        self._pings_out = 0
        self.busy = True
        try:
            super().dataReceived(data)
        finally:
            self.busy = False
        self.hub.flush()
        if self.outbox.pending > MOST_ANSWERS and not self.done:
            self._unread = True
            self.raw.pauseProducing()

    def caught_up(self) -> None:
        if self._unread and not self.done:
            self._unread = False
            self.raw.resumeProducing()

    def bytesMessageReceived(self, data: bytes | bytearray) -> None:
        self._received(bytes(data))

    def textMessageReceived(self, message: str) -> None:
        self._received(message)

    def _received(self, text: str | bytes) -> None:
        if self.closing:
            return
        request_id: Any = None
        try:
            try:
                command = _command(text)
            except msgspec.ValidationError as error:
                request_id = _request_id(text)
                raise bad(str(error)) from None
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise bad("that is no JSON") from None
            request_id = command.request_id
            self._do(command)
        except RefusedError as error:
            said = {"code": error.code.name, "message": str(error)}
            self.tell("error", request_id=request_id, error=said)

    def _do(self, command: Command) -> None:
        if command.type == "ping":
            self.tell("pong", request_id=command.request_id)
            return
        if command.topic is None:
            raise bad("topic is required")
        if command.type == "publish":
            self._publish(command, command.topic)
            return
        if not command.client_id:
            raise bad("client_id is required")
        if command.type == "subscribe":
            self._subscribe(command, command.topic)
        else:
            self._unsubscribe(command, command.topic)

    def _ack(self, command: Command, **fields: Any) -> None:
        self.tell("ack", request_id=command.request_id, topic=command.topic, status="ok", **fields)

    def _subscribe(self, command: Command, topic: str) -> None:
        if not is_pattern(topic):
            raise bad(f"not a topic or pattern: {topic!r}")
        rule = self.user.subscribe
        if not rule.may_subscribe(topic):
            raise RefusedError(Code.UNAUTHORIZED, f"you may not subscribe to {topic}")
        most = self.settings.max_subscriptions
        old = self.by_pattern.get(topic)
        if old is None and most and len(self.subscriptions) >= most:
            raise bad(f"at most {most} subscriptions")
        self._client_id = str(command.client_id)[:100]
        self.name = f"{self.host}:{self.port} - cid:{self.number} - {self._client_id}"
        if old is not None:
            self.hub.unsubscribe(old)
        self._stop_sampling(topic)
        self._ack(command)
        key = topic.encode("utf-8", "surrogateescape")
        subscription = Subscription(self, topic, None, key, rule.hidden(topic))
        self.by_pattern[topic] = subscription
        self.hub.subscribe(subscription, command.last_n or 0)
        if command.max_rate is not None:
            self._samplers[topic] = Sampler(self, subscription, command.max_rate)

    def _unsubscribe(self, command: Command, topic: str) -> None:
        subscription = self.by_pattern.pop(topic, None)
        if subscription is None:
            raise RefusedError(Code.TOPIC_NOT_FOUND, f"you are not subscribed to {topic}")
        self.hub.unsubscribe(subscription)
        self._stop_sampling(topic)
        self._ack(command)

    def _stop_sampling(self, topic: str) -> None:
        sampler = self._samplers.pop(topic, None)
        if sampler is not None:
            sampler.stop()

    def _publish(self, command: Command, topic: str) -> None:
        body = command.message
        if body is None or body.payload is msgspec.UNSET:
            raise bad("message.payload is required")
        try:
            name = str(uuid.UUID(body.id)) if body.id is not None else str(uuid.uuid4())
        except ValueError:
            raise bad("message.id must be a valid UUID") from None
        try:
            value = decode_payload(body.payload, body.encoding)
            headers = encode_given_headers(body.headers, body.id or name)
        except ValueError as error:
            raise bad(str(error)) from None
        if not is_subject(topic):
            raise bad(f"not a topic: {topic!r}")
        if not self.user.publish.may_publish(topic):
            raise RefusedError(Code.UNAUTHORIZED, f"you may not publish to {topic}")
        reply = reply_of(body.reply) if body.reply is not None else None
        message = Message(topic, value=value, reply=reply, headers=headers, door=self.door)
        if message.size > self.settings.max_payload:
            raise bad(f"at most {self.settings.max_payload} bytes")
        self._ack(command, message={"id": body.id or name})
        self.hub.deliver(message, self)

    # What the hub calls

    def deliver(self, subscription: Subscription, message: Message) -> None:
        sampler = self._samplers.get(subscription.pattern)
        if sampler is not None:
            sampler.take(message)
        else:
            self.push(message.subject, self.encode(message))

    def ended(self, subscription: Subscription, reason: str) -> None:
        super().ended(subscription, reason)
        self._stop_sampling(subscription.pattern)
        self.tell("info", topic=shown(subscription.pattern), msg=f"topic {reason}")


class JsonSocketFactory:
    """Makes the clients of `/ws`."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.event = OncePerMessage(self._event)

    def _event(self, message: Message) -> bytes:
        return frame(TEXT, b'{"type":"event",' + self.streams.event(message)[1:])

    def buildProtocol(self, request: Request) -> JsonClient:
        return JsonClient(request, self)
