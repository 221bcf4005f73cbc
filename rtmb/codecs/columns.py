"""Frames: tables as bytes, a column at a time, for the journal's HTTP bodies. Imports no rtmb.

A frame is a description in JSON and then columns, which are plain bytes: 64 or 32-bit numbers, low
byte first, or texts one after another. Numbers can so be used where they stand, by Arrow among
others, and nothing is looked at message by message. A body is one frame or several::

    u32 length of the description | u32 0 | description | column | column | …

Each part is filled up to a multiple of 8 bytes. The description holds ``sizes``, the bytes of each
column, and whatever else there is to say.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

_START = struct.Struct("<II")
_FILL = bytes(8)

Buffer = bytes | bytearray | memoryview


class FrameError(ValueError):
    """These bytes are no frame."""


def numbers(code: str, values: Iterable[int]) -> bytes:
    """A column of numbers: `code` is ``q`` for 64 bits, ``i`` for 32."""
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def from_numbers(code: str, column: Buffer) -> array[int]:
    """The other way round."""
    found = array(code)
    try:
        found.frombytes(column)
    except ValueError:
        raise FrameError("a column of numbers has a part of one") from None
    if sys.byteorder == "big":
        found.byteswap()
    return found


def encode(description: dict[str, Any], columns: Sequence[Buffer] = ()) -> list[Buffer]:
    """A frame in pieces, to be joined with others."""
    text = json.dumps(description | {"sizes": [len(c) for c in columns]}).encode()
    pieces: list[Buffer] = [_START.pack(len(text), 0), text, _FILL[: -len(text) % 8]]
    for column in columns:
        pieces += (column, _FILL[: -len(column) % 8])
    return pieces


def decode(body: Buffer) -> Iterator[tuple[dict[str, Any], list[memoryview]]]:
    """The frames of a body. The columns are views of it: nothing is copied."""
    view, pos = memoryview(body), 0
    while pos < len(view):
        if pos + _START.size > len(view):
            raise FrameError("cut off before a description")
        length, _ = _START.unpack_from(view, pos)
        pos += _START.size
        try:
            description = json.loads(bytes(view[pos : pos + length]))
            sizes = description["sizes"]
            well = all(type(size) is int and size >= 0 for size in sizes)
        except (ValueError, TypeError, KeyError, RecursionError):
            well = False
        if not well:
            raise FrameError("the description is not what it should be")
        pos += length + -length % 8
        columns = []
        for size in sizes:
            columns.append(view[pos : pos + size])
            pos += size + -size % 8
        if pos > len(view):
            raise FrameError("cut off in a column")
        yield description, columns


def spans(offsets: Buffer, data: Buffer, rows: int) -> list[bytes]:
    """A column of texts: where each begins (32 bits, and where the last ends), and all of them."""
    ends = from_numbers("i", offsets)
    well = len(ends) == rows + 1 and ends[0] == 0 and ends[-1] == len(data)
    if not well or any(a > b for a, b in pairwise(ends)):
        raise FrameError("a column of texts has wrong offsets")
    whole = bytes(data)
    return [whole[a:b] for a, b in pairwise(ends)]
