"""The msgpack door's wire: what frames say, and messages as they go over it. Pure bytes.

A client sends ``{command: arguments}``, the arguments as an array or as a map with their names; it
is sent ``[topic, value]``. What stands in a ``Publish`` is just that, so a message is passed on as
the bytes that came (`PackedMessage`): nothing in it is taken apart but the topic, and nothing can
change on the way. docs/msgpack.md tells the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from rtmb.core.message import MOST_NESTED, Message, to_bytes

DOOR = "msgpack"
#: How most clients begin to publish, ``{"Publish": [[topic, value]]}``, and where the inner array
#: stands in that: it can be passed on as it is.
PUBLISH = b"\x81\xa7Publish\x91\x92"
INNER = len(PUBLISH) - 1
#: The deepest nesting that the msgpack library can walk through.
DEEPEST = 1024
#: Put before a value, these arrays leave room for `MOST_NESTED` levels in it, and no more.
_ARRAYS = b"\x91" * (DEEPEST - MOST_NESTED)
#: The most tokens of a topic, and the most wildcards of a pattern: the time that it takes to find
#: who wants a topic grows with them.
MOST_TOKENS, MOST_WILDCARDS = 128, 16
#: JSON has at most this many characters for a byte of msgpack, quotes within quotes set aside.
_JSON_FOR_BYTE = 8


class BadFrameError(Exception):
    """A client sent what this protocol has no meaning for; the text says what."""


# Frames

#: What a client says: a message to publish, ``[topic, value]`` as it goes to the others; or another
#: command and its pattern.
Said = bytes | tuple[str, str]


class Frames:
    """The frames of one stream of bytes, whichever way it is cut into chunks."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(max_buffer_size=0)
        # The bytes of a frame that has not ended yet, and where in the stream it began.
        self._pieces: list[bytes] = []
        self.waiting = 0
        self._start = 0

    def read(self, data: bytes, most: int) -> Iterator[Said]:
        """What each whole frame says, now that `data` has come; the beginning of the next is kept.

        Raises `BadFrameError` where one makes no sense or has more than `most` bytes."""
        self._unpacker.feed(data)
        skip, tell, start = self._unpacker.skip, self._unpacker.tell, self._start
        base = start  # where in the stream `data` begins
        try:
            while True:
                skip()
                if self._pieces:
                    data = b"".join([*self._pieces, data])
                    self._pieces.clear()
                    self.waiting = 0
                at, end = start - base, tell()
                if end - start > most:
                    break
                start = self._start = end
                if data.startswith(PUBLISH, at):
                    yield data[at + INNER : end - base]
                else:
                    yield parse(data[at : end - base])
        except msgpack.OutOfData:
            rest = data[start - base :] if not self._pieces else data
            if rest:
                self._pieces.append(rest)
                self.waiting += len(rest)
            if self.waiting <= most:
                return
        except msgpack.StackError:
            raise BadFrameError("nested too deeply") from None
        except msgpack.FormatError:
            raise BadFrameError("not msgpack") from None
        raise BadFrameError(f"a frame of more than {most} bytes")


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


def parse(frame: bytes) -> Said:
    """What a frame says."""
    if not 0x80 <= frame[0] <= 0x8F and frame[0] not in (0xDE, 0xDF):
        raise BadFrameError("a frame is a map with one key, the command")
    unpacker = msgpack.Unpacker(max_buffer_size=len(frame))
    unpacker.feed(frame)
    if unpacker.read_map_header() != 1:
        raise BadFrameError("a frame is a map with one key, the command")
    command = text_of(_take(unpacker, frame), "a command")
    argument = _take(unpacker, frame)
    if command in ("Subscribe", "Unsubscribe"):
        return command, text_of(_fields(argument, command, "pattern")[0], "a pattern")
    if command == "Publish":
        (message,) = _fields(argument, command, "message")
        return b"\x92" + b"".join(_fields(message, "a message", "topic", "value"))
    raise BadFrameError(f"unknown command {command[:40]!r}")


def check_topic(topic: str, longest: int) -> None:
    """Raise `BadFrameError` for a topic beyond the limits."""
    if len(topic) > longest:
        raise BadFrameError(f"a topic of {len(topic)} characters, over max_control_line")
    tokens = topic.count(".") + 1
    if tokens > MOST_TOKENS:
        raise BadFrameError(f"a topic of {tokens} tokens; {MOST_TOKENS} are the most")


def check_pattern(pattern: str, longest: int) -> None:
    """Raise `BadFrameError` for a pattern beyond the limits."""
    if len(pattern) > longest:
        raise BadFrameError(f"a pattern of {len(pattern)} characters, over max_control_line")
    wildcards = pattern.count("*") + pattern.count("?")
    if wildcards > MOST_WILDCARDS:
        raise BadFrameError(f"a pattern of {wildcards} wildcards; {MOST_WILDCARDS} are the most")


def topic_end(packed: bytes) -> int:
    """Where the topic of a packed ``[topic, value]`` ends and its value begins."""
    first = packed[1]
    if 0xA0 <= first <= 0xBF:
        return 2 + (first & 0x1F)
    if not 0xD9 <= first <= 0xDB:
        raise BadFrameError("a topic is no text")
    width = 1 << (first - 0xD9)
    return 2 + width + int.from_bytes(packed[2 : 2 + width], "big")


# Messages


class PackedMessage(Message):
    """A message that came by this door: what is kept is the bytes that came."""

    __slots__ = ("_start", "packed")

    # The same for all of them, so nothing to set when one is made: that is done for every message
    # (benchmark: msgpack, 1→1).
    door = DOOR
    reply = headers = _form = None
    plain = False

    def __init__(self, topic: str, packed: bytes, start: int, time: float = 0.0) -> None:
        self.subject = topic
        self.time = time
        self._size = len(packed) - start
        self._payload = None
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


def _is_deep(raw: bytes) -> bool:
    """Whether a value is nested more than `MOST_NESTED` deep, keys of maps included."""
    if len(raw) <= MOST_NESTED or not (0x80 <= raw[0] <= 0x9F or 0xDC <= raw[0] <= 0xDF):
        return False
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(_ARRAYS)
    unpacker.feed(raw)
    try:
        unpacker.skip()
    except msgpack.StackError:
        return True
    return False


def check_value(packed: bytes, start: int) -> None:
    """Raise `BadFrameError` for a value that is deep and has arrays or maps as keys: no other door
    could tell what it is."""
    if len(packed) - start > MOST_NESTED and _is_deep(raw := packed[start:]):
        try:
            msgpack.unpackb(raw, strict_map_key=False, unicode_errors="replace")
        except TypeError:
            raise BadFrameError("keys of a map nested too deeply") from None
        except ValueError:  # a time beyond the calendar: see `unpack`
            pass


def unpack(raw: bytes) -> Any:
    """A value for the other doors; its bytes where it is none that they could have."""
    if _is_deep(raw):  # what JSON makes of it could not be read there
        return raw
    how = {"strict_map_key": False, "timestamp": 3, "unicode_errors": "replace"}
    try:
        try:
            return msgpack.unpackb(raw, **how)
        except TypeError:  # a key of a map that Python cannot have as one
            most = _JSON_FOR_BYTE * len(raw)
            return msgpack.unpackb(raw, **how, object_pairs_hook=_with_text_keys(most))
    except (ValueError, OverflowError):  # a time beyond the calendar, a key beyond all measure
        return raw


def _with_text_keys(most: int) -> Callable[[list[tuple[Any, Any]]], dict[Any, Any]]:
    """Makes maps whose keys are text where they were arrays or maps. A key in a key is quoted
    twice, and so on: texts longer than `most` are a `ValueError`."""

    def made(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        found = {}
        for key, value in pairs:
            if isinstance(key, (list, dict)):
                key = to_bytes(key).decode("utf-8", "replace")
                if len(key) > most:
                    raise ValueError("keys within keys")
            found[key] = value
        return found

    return made


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
