"""A message, and the one rule by which it changes form between doors.

Byte doors (NATS) carry bytes, value doors (WebSocket, msgpack) carry values. Within one kind of
door a message passes exactly. Between them:

- value to bytes: bytes as they are, text as UTF-8, anything else as JSON;
- bytes to value: what parses as JSON becomes that value, else UTF-8 text, else bytes.

What is kept of a message is always its bytes: Python's objects can take fifty times as much, and
the history counts bytes. A value is made anew each time it is asked for.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

#: The header that carries a message's id; `message.id` of the WebSocket door.
ID_HEADER = "Nats-Msg-Id"

#: What is nested deeper than this has no form at another kind of door: in JSON, text stands for it.
MOST_NESTED = 100

_ABSENT: Final = object()


def _unusual(value: Any) -> Any:
    """What JSON has no word for: bytes inside a structure become base64, the rest its `str`."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    return str(value)


_encode_json = msgspec.json.Encoder(enc_hook=_unusual).encode
_decode_json = msgspec.json.Decoder().decode


def _plain(value: Any, depth: int = 0) -> Any:
    """A value without what JSON cannot have: keys that are no text, text that is no UTF-8, and
    what is nested too deep."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if not isinstance(value, (dict, list, tuple)):
        return value
    if depth >= MOST_NESTED:
        return "…"
    if isinstance(value, dict):
        return {
            _plain(k) if isinstance(k, str) else to_bytes(k).decode("utf-8", "replace"):
            _plain(v, depth + 1)
            for k, v in value.items()
        }  # fmt: skip
    return [_plain(v, depth + 1) for v in value]


def to_bytes(value: Any) -> bytes:
    """A value on its way to a byte door."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    try:
        return _encode_json(value)
    except (TypeError, ValueError, RecursionError):
        return _encode_json(_plain(value))


def to_value(payload: bytes) -> Any:
    """Bytes on their way to a value door."""
    try:
        return _decode_json(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # nested without end
        pass
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return payload


class Message:
    """What was published: a subject, a payload or a value, and what came with it."""

    __slots__ = ("_form", "_payload", "_size", "door", "headers", "reply", "subject", "time")

    def __init__(
        self,
        subject: str,
        payload: bytes | None = None,
        *,
        value: Any = _ABSENT,
        reply: str | None = None,
        headers: bytes | None = None,
        time: float = 0.0,
        door: str = "",
        size: int | None = None,
    ) -> None:
        self.subject = subject
        self._payload = payload
        #: What the value was, where the bytes do not tell: the text ``12``, not the number.
        self._form: type | None = None
        if value is not _ABSENT:
            self._payload = to_bytes(value)
            self._form = type(value) if isinstance(value, (bytes, str)) else None
        self.reply = reply
        #: The header block as it stands on the wire (``NATS/1.0\\r\\n…\\r\\n\\r\\n``), or None.
        self.headers = headers
        #: Seconds since the epoch, set by the hub when it is published.
        self.time = time
        #: The door it came in by.
        self.door = door
        self._size = size

    @property
    def size(self) -> int:
        """Bytes of payload and headers, as they came; a door that knows better says so."""
        if self._size is None:
            self._size = len(self.payload) + len(self.headers or b"")
        return self._size

    @property
    def plain(self) -> bool:
        """Whether subject, reply, headers and payload are all there is to it."""
        return self._form is None and type(self) is Message

    @property
    def payload(self) -> bytes:
        return self._payload or b""

    @property
    def value(self) -> Any:
        if self._form is str:
            return self.payload.decode("utf-8", "surrogateescape")
        return self.payload if self._form is bytes else to_value(self.payload)

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Message {self.subject} {self.payload[:40]!r}>"
