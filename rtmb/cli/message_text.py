"""Messages as text: as lines of JSON and back, which `sub --json` prints and `record` writes, and
fit for a terminal.

In JSON a payload that is UTF-8 is text under ``payload``; any other stands in base64
under ``payload_base64``.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, NamedTuple

import msgspec

from rtmb.client import Message
from rtmb.core.subjects import is_subject

# Of what others send, nothing may move the cursor or ring the bell.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Text of others, fit for a terminal."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text.replace("\r\n", "\n"))


class LineError(ValueError):
    """A line that is no message."""


class RecordedMessage(NamedTuple):
    """What is needed to publish a message again."""

    time: float  # seconds since the recording began
    subject: str
    payload: bytes
    reply: str | None
    headers: dict[str, list[str]]


def message_fields(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"subject": message.subject}
    if message.reply is not None:
        fields["reply"] = message.reply
    if message.headers:
        fields["headers"] = message.headers.lists()
    try:
        fields["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(message.payload).decode()
    return fields


def json_line(fields: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(fields) + b"\n"
    except UnicodeEncodeError:  # a subject or header that was no UTF-8 on the wire
        return msgspec.json.encode(_as_utf8(fields)) + b"\n"


def _as_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_as_utf8(k): _as_utf8(v) for k, v in value.items()}
    return [_as_utf8(v) for v in value] if isinstance(value, list) else value


def parse_line(line: bytes) -> RecordedMessage:
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise LineError("not JSON") from None
    if not isinstance(fields, dict):
        raise LineError("not a JSON object")
    time, subject = fields.get("t"), fields.get("subject")
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise LineError("no time in it (t)")
    if not isinstance(subject, str) or not is_subject(subject):
        raise LineError("no subject to publish on")
    reply, headers = fields.get("reply"), fields.get("headers", {})
    if reply is not None and not (isinstance(reply, str) and is_subject(reply)):
        raise LineError("reply is no subject")
    try:
        lists = msgspec.convert(headers, dict[str, list[str]])
        text = fields.get("payload")
        if isinstance(text, str):
            payload = text.encode()
        else:
            payload = base64.b64decode(fields["payload_base64"], validate=True)
    except (KeyError, TypeError, binascii.Error, msgspec.ValidationError):
        raise LineError("no payload, or headers that are none") from None
    return RecordedMessage(float(time), subject, payload, reply, lists)
