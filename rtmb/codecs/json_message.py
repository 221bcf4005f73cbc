"""A message as the HTTP door shows it: one JSON object, made once for all who get it.

``{"topic", "message": {"id", "payload", "headers", "reply"}, "ts"}``. A payload that is JSON stands
there as it came, text as a JSON string. What is neither has no form in JSON: it is base64, and
`message` says so with ``"encoding": "base64"``. The id is the header ``Nats-Msg-Id``; the other
headers, and the reply subject, are there when the message has them. Whoever publishes says the same
things in the same way.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec

from rtmb.codecs import nats as wire
from rtmb.core.message import ID_HEADER, Message, to_value
from rtmb.core.subjects import to_raw

_encode = msgspec.json.Encoder().encode
#: What the name of a header may be (RFC 9110, 5.6.2).
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
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


def headers_of(message: Message) -> dict[str, list[str]]:
    """All headers by name, each with its values in their order."""
    found: dict[str, list[str]] = {}
    if message.headers is not None:
        for name, value in wire.decode_headers(message.headers):
            found.setdefault(shown(name), []).append(shown(value))
    return found


def message_id(message: Message) -> str:
    """What the publisher called it, else a UUID made from the message: the same each time that it
    is shown, now and when it is replayed."""
    return headers_of(message).get(ID_HEADER, [""])[0] or _made_id(message)


def _made_id(message: Message) -> str:
    made = blake2b(to_raw(message.subject), digest_size=16)
    made.update(b" %d " % round(message.time * 1e6))
    made.update(message.payload)
    text = made.hexdigest()
    return f"{text[:8]}-{text[8:12]}-8{text[13:16]}-8{text[17:20]}-{text[20:]}"


def message_body(message: Message) -> dict[str, Any]:
    """``{"id", "payload", …}``, the payload as it stands in JSON."""
    headers = headers_of(message)
    found: dict[str, Any] = {"id": headers.pop(ID_HEADER, [""])[0] or _made_id(message)}
    found |= value_fields("payload", message.value, message.payload)
    if headers:
        found["headers"] = headers
    if message.reply is not None:
        found["reply"] = shown(message.reply)
    return found


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


def encode_given_headers(headers: Mapping[str, str | list[str]], name: str | None) -> bytes | None:
    """The header block of what someone published in JSON, with the id that they gave it; ValueError
    when a name is none."""
    pairs = [(ID_HEADER, name)] if name is not None else []
    for header, given in headers.items():
        values = [given] if isinstance(given, str) else given
        if _HEADER_NAME.fullmatch(header) is None:
            raise ValueError(f"message.headers: not a name: {header!r}")
        if header.lower() != ID_HEADER.lower() or name is None:
            pairs += [(header, value) for value in values]
    return wire.encode_headers(pairs) if pairs else None


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
