"""The few things done to bytes in place, many million times a second.

Compiled modules get these functions in C, from `raw.pxd` beside this file; everyone else gets them
from here. Both forms do the same, and the tests hold them to each other.
"""

from __future__ import annotations

import re
from array import array

#: What `kind_of` finds: not a subject, a subject, a pattern with wildcards.
INVALID, LITERAL, WILDCARD = 0, 1, 2

_SUBJECT = re.compile(rb"[^ \t\r\n\f\v.]+(?:\.[^ \t\r\n\f\v.]+)*")
_FIELD = re.compile(rb"[^ \t\r\n\f\v]+")


def find_line_end(data: bytes, start: int, end: int) -> int:
    """Where the next line feed is, or -1."""
    return data.find(b"\n", start, end)


def split_fields(data: bytes, start: int, end: int, spans: array[int]) -> int:
    """Find the fields of a line, which white space separates: writes where each begins and ends
    into `spans`, and returns how many there are, one more than fit if there are too many."""
    most = len(spans) // 2
    count = 0
    for field in _FIELD.finditer(data, start, end):
        if count < most:
            spans[2 * count], spans[2 * count + 1] = field.span()
        count += 1
        if count > most:
            break
    return count


def number(data: bytes, start: int, end: int) -> int:
    """A whole number of one to nine digits, or -1."""
    digits = data[start:end]
    return int(digits) if digits.isdigit() and len(digits) <= 9 else -1


def verb(data: bytes, start: int, end: int) -> int:
    """A word of at most seven letters as a number, in capitals; `VERB` makes the same one."""
    return int.from_bytes(data[start:end].upper(), "big") if end - start < 8 else 0


def kind_of(data: bytes, start: int, end: int) -> int:
    """What these bytes are: `INVALID`, `LITERAL` or `WILDCARD`."""
    text = data[start:end]
    if _SUBJECT.fullmatch(text) is None:
        return INVALID
    if b"*" not in text and b">" not in text:
        return LITERAL
    tokens = text.split(b".")
    if b">" in tokens[:-1]:
        return INVALID
    return WILDCARD if b"*" in tokens or tokens[-1] == b">" else LITERAL


def put(room: bytearray, at: int, piece: bytes) -> int:
    """Write bytes into a room that is large enough; returns where they end."""
    end = at + len(piece)
    room[at:end] = piece
    return end


def put_part(room: bytearray, at: int, data: bytes, start: int, end: int) -> int:
    """Write a part of some bytes."""
    done = at + end - start
    room[at:done] = memoryview(data)[start:end]
    return done


def put_number(room: bytearray, at: int, value: int) -> int:
    """Write a number of 0 or more in digits."""
    return put(room, at, b"%d" % value)


def int_at(numbers: array[int], at: int) -> int:
    """One of an array of small numbers."""
    return numbers[at]


def set_int(numbers: array[int], at: int, value: int) -> None:
    numbers[at] = value


def long_at(numbers: array[int], at: int) -> int:
    """One of an array of large numbers; `split_fields` writes such a one."""
    return numbers[at]


def cut(data: bytes, start: int, end: int) -> bytes:
    """A part of some bytes."""
    return data[start:end]


def end_of_payload(data: bytes, at: int, end: int) -> int:
    """Where the line end behind a payload ends, which may be a bare line feed; -1 when it is not
    there, or not in these bytes yet."""
    if at < end and data[at] == 10:
        return at + 1
    return at + 2 if at + 1 < end and data[at : at + 2] == b"\r\n" else -1


def is_header_block(block: bytes) -> bool:
    """Whether this can stand as the headers of a message."""
    return block[:8] == b"NATS/1.0" and block[-4:] == b"\r\n\r\n"
