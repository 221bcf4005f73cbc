"""The msgpack door's wire: what frames say, and messages as they go over it. Pure bytes.

A client sends ``{command: arguments}``, the arguments as an array or as a map with their names; it
is sent ``[topic, value]``. What stands in a ``Publish`` is just that, so a message is passed on as
the bytes that came (`PackedMessage`): nothing in it is taken apart but the topic, and nothing can
change on the way. docs/msgpack.md tells the protocol.
"""

from __future__ import annotations

from typing import Any

import msgpack

from rtmb.core.message import Message, to_bytes

DOOR = "msgpack"
#: How most clients begin to publish, ``{"Publish": [[topic, value]]}``, and where the inner array
#: stands in that: it can be passed on as it is.
PUBLISH = b"\x81\xa7Publish\x91\x92"
INNER = len(PUBLISH) - 1
#: Deeper values reach the other doors as bytes: what JSON makes of them could not be read there.
MOST_NESTED = 100
#: Every byte that begins no map and no array.
_NO_CONTAINER = bytes(set(range(256)) - {*range(0x80, 0xA0), *range(0xDC, 0xE0)})


class BadFrameError(Exception):
    """A client sent what this protocol has no meaning for; the text says what."""


# Frames


def _take(unpacker: Any, data: bytes) -> bytes:
    """The next value in `data`, as it is written there."""
    start = unpacker.tell()
    unpacker.skip()
    return data[start : unpacker.tell()]


def _fields(raw: bytes, what: str, *names: str) -> list[bytes]:
    """The fields of a structure, as they are written: it is an array of them, or a map by name."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(raw))
    unpacker.feed(raw)
    first = raw[0]
    if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
        if unpacker.read_array_header() == len(names):
            return [_take(unpacker, raw) for _ in names]
    elif (0x80 <= first <= 0x8F or first in (0xDE, 0xDF)) and (
        unpacker.read_map_header() == len(names)
    ):
        found = {text_of(_take(unpacker, raw), what): _take(unpacker, raw) for _ in names}
        if found.keys() == set(names):
            return [found[name] for name in names]
    raise BadFrameError(f"{what} wants [{', '.join(names)}]")


def text_of(raw: bytes, what: str) -> str:
    """A text, from how it is written."""
    if not (0xA0 <= raw[0] <= 0xBF or raw[0] in (0xD9, 0xDA, 0xDB)):
        raise BadFrameError(f"{what} is no text")
    try:
        return str(msgpack.unpackb(raw))
    except UnicodeDecodeError:
        raise BadFrameError(f"{what} is not UTF-8") from None


def parse(frame: bytes) -> tuple[str, bytes]:
    """A command and its argument: a pattern, or ``[topic, value]`` as it goes to the clients."""
    if not 0x80 <= frame[0] <= 0x8F and frame[0] not in (0xDE, 0xDF):
        raise BadFrameError("a frame is a map with one key, the command")
    unpacker = msgpack.Unpacker(max_buffer_size=len(frame))
    unpacker.feed(frame)
    if unpacker.read_map_header() != 1:
        raise BadFrameError("a frame is a map with one key, the command")
    command = text_of(_take(unpacker, frame), "a command")
    argument = _take(unpacker, frame)
    if command in ("Subscribe", "Unsubscribe"):
        return command, _fields(argument, command, "pattern")[0]
    if command == "Publish":
        (message,) = _fields(argument, command, "message")
        return command, b"\x92" + b"".join(_fields(message, "a message", "topic", "value"))
    raise BadFrameError(f"unknown command {command[:40]!r}")


def topic_end(packed: bytes) -> int:
    """Where the topic of a packed ``[topic, value]`` ends and its value begins."""
    first = packed[1]
    if 0xA0 <= first <= 0xBF:
        return 2 + (first & 0x1F)
    width = {0xD9: 1, 0xDA: 2, 0xDB: 4}.get(first)
    if width is None:
        raise BadFrameError("a topic is no text")
    return 2 + width + int.from_bytes(packed[2 : 2 + width], "big")


# Messages


class PackedMessage(Message):
    """A message that came by this door: what is kept is the bytes that came."""

    __slots__ = ("_start", "packed")

    def __init__(self, topic: str, packed: bytes, start: int) -> None:
        super().__init__(topic, door=DOOR, size=len(packed) - start)
        #: ``[topic, value]``, and where the value begins.
        self.packed, self._start = packed, start

    @property
    def value(self) -> Any:
        return unpack(self.packed[self._start :])

    @property
    def payload(self) -> bytes:
        if self._payload is None:  # once for all the byte doors' clients
            self._payload = to_bytes(self.value)
        return self._payload


def unpack(raw: bytes) -> Any:
    """A value for the other doors; its bytes where it is none that they could have."""
    how = {"strict_map_key": False, "timestamp": 3, "unicode_errors": "replace"}
    try:
        try:
            value = msgpack.unpackb(raw, **how)
        except TypeError:  # a key of a map that Python cannot have as one
            value = msgpack.unpackb(raw, **how, object_pairs_hook=_with_text_keys)
    except (ValueError, OverflowError):  # a time beyond the calendar
        return raw
    return raw if _nested_too_deep(raw, value) else value


def _with_text_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {
        to_bytes(key).decode("utf-8", "replace") if isinstance(key, (list, dict)) else key: value
        for key, value in pairs
    }


def _nested_too_deep(raw: bytes, value: Any) -> bool:
    if len(raw.translate(None, _NO_CONTAINER)) <= MOST_NESTED:
        return False  # the cheap answer, for nearly all
    level = [value]
    for _ in range(MOST_NESTED):
        level = [
            inner
            for outer in level
            if isinstance(outer, (list, dict))
            for inner in (outer if isinstance(outer, list) else outer.values())
        ]
        if not level:
            return False
    return True


def pack(message: Message) -> bytes:
    """A message of any door as it goes to the clients of this one."""
    if isinstance(message, PackedMessage):
        return message.packed
    topic = message.subject.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    try:
        packed: bytes = msgpack.packb([topic, message.value])
    except (ValueError, OverflowError, TypeError):  # too large a number, too deep
        try:
            text: str | bytes = message.payload.decode("utf-8")
        except UnicodeDecodeError:
            text = message.payload
        packed = msgpack.packb([topic, text])
    return packed
