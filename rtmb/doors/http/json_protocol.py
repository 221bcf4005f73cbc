"""What is said over `/ws`: the commands of clients, and what the broker says. See docs/http.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec


class NewMessage(msgspec.Struct):
    """A message that is published."""

    payload: Any = msgspec.UNSET
    id: str | None = None
    encoding: str | None = None
    headers: dict[str, str | list[str]] = {}
    reply: str | None = None


class JsonCommand(msgspec.Struct):
    """What a client may say."""

    type: Literal["subscribe", "unsubscribe", "publish", "ping"]
    topic: str | None = None
    message: NewMessage | None = None
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


decode_command = msgspec.json.Decoder(JsonCommand).decode


def request_id_of(text: str | bytes) -> Any:
    """The request id of a command that is wrong in some other way."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    given = found.get("request_id") if isinstance(found, dict) else None
    return given if isinstance(given, (str, int)) else None
