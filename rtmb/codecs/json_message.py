"""A message as the HTTP door shows it: one JSON object, made once for all who get it.

``{"topic", "message": {"id", "payload"}, "ts"}``. A payload that is JSON stands there as it came,
text as a JSON string. What is neither has no form in JSON: it is base64, and `message` says so with
``"encoding": "base64"``; whoever publishes may say the same.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec

from rtmb.codecs import nats as wire
from rtmb.core.message import ID_HEADER, Message, to_value
from rtmb.core.subjects import to_raw

_encode = msgspec.json.Encoder().encode
_ID_FIELD = ID_HEADER.encode() + b":"
#: Line breaks between the tokens of JSON are blanks as well; Server-Sent Events end at one.
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


def timestamp(seconds: float) -> str:
    """
    >>> timestamp(1756116000.25)
    '2025-08-25T10:00:00.250000Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def shown(subject: str) -> str:
    """A subject as text that JSON can hold: what is no UTF-8 has a mark in its place."""
    return to_raw(subject).decode("utf-8", "replace")


def message_id(message: Message) -> str:
    """What the publisher called it, else a UUID made from the message: the same each time that it
    is shown, now and when it is replayed."""
    if message.headers is not None and _ID_FIELD in message.headers:
        for name, value in wire.decode_headers(message.headers):
            if name == ID_HEADER:
                return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    made = blake2b(to_raw(message.subject), digest_size=16)
    made.update(b" %d " % round(message.time * 1e6))
    made.update(message.payload)
    text = made.hexdigest()
    return f"{text[:8]}-{text[8:12]}-8{text[13:16]}-8{text[17:20]}-{text[20:]}"


def message_body(message: Message) -> dict[str, Any]:
    """``{"id", "payload"}``, the payload as it stands in JSON."""
    body = {"id": message_id(message)}
    return body | value_fields("payload", message.value, message.payload)


def payload_fields(name: str, payload: bytes) -> dict[str, Any]:
    """A payload by a name, as it stands in JSON."""
    return value_fields(name, to_value(payload), payload)


def value_fields(name: str, value: Any, payload: bytes) -> dict[str, Any]:
    """The same of a payload whose value is known."""
    if isinstance(value, bytes):
        return {name: base64.b64encode(value).decode("ascii"), "encoding": "base64"}
    if isinstance(value, str):
        return {name: to_raw(value).decode("utf-8", "replace")}
    # JSON as it came: no number loses a digit on the way.
    return {name: msgspec.Raw(payload.translate(_ONE_LINE))}


def decode_payload(payload: Any, encoding: str | None) -> Any:
    """The value that someone published in JSON; ValueError when it is not what `encoding` says."""
    if encoding is None:
        return payload
    if encoding != "base64" or not isinstance(payload, str):
        raise ValueError("message.encoding may be base64, and message.payload is text then")
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error:
        raise ValueError("message.payload is no base64") from None


def event_json(message: Message) -> bytes:
    """The whole object."""
    return _encode(
        {
            "topic": shown(message.subject),
            "message": message_body(message),
            "ts": timestamp(message.time),
        }
    )


class OncePerMessage:
    """Makes something of a message, once: the hub delivers one message to all before the next."""

    __slots__ = ("_made", "_make", "_message")

    def __init__(self, make: Callable[[Message], bytes]) -> None:
        self._make = make
        self._message: Message | None = None
        self._made = b""

    def __call__(self, message: Message) -> bytes:
        if message is not self._message:
            self._made = self._make(message)
            self._message = message
        return self._made
