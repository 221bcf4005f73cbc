"""Flatbuffers, the little of them that Arrow's metadata needs. Imports no rtmb.

A buffer is a tree of tables. A table has numbered slots; each holds a number, or refers to a table,
a text or a vector that stands behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Number:
    """A number as `struct` packs it: ``b`` for 8 bits, ``h`` for 16, ``i`` for 32, ``q`` for 64."""

    code: str
    value: int


@dataclass(frozen=True)
class Structs:
    """A vector of structs of 64-bit numbers, so many in each."""

    width: int
    numbers: Sequence[int]


@dataclass(frozen=True)
class Table:
    """A table: what is in which slot."""

    slots: Mapping[int, Value] = field(default_factory=dict)


Value: TypeAlias = Number | Structs | Table | Sequence[Table] | str


def encode(root: Table) -> bytes:
    """A whole buffer, filled up to a multiple of 8 bytes."""
    out = bytearray(4)
    struct.pack_into("<I", out, 0, _table(out, root))
    _align(out, 8)
    return bytes(out)


def _align(out: bytearray, size: int, ahead: int = 0) -> None:
    """Fill up, so that what comes `ahead` bytes later stands at a multiple of `size`."""
    out += bytes(-(len(out) + ahead) % size)


def _table(out: bytearray, table: Table) -> int:
    """Write a table and all behind it; where it stands."""
    places: dict[int, int] = {}
    end = 4  # behind the offset of the vtable
    for slot, value in table.slots.items():
        size = struct.calcsize(value.code) if isinstance(value, Number) else 4
        end += -end % size
        places[slot] = end
        end += size
    entries = max(places, default=-1) + 1
    header = 4 + 2 * entries
    _align(out, 8, header)
    vtable, start = len(out), len(out) + header
    out += struct.pack("<HH", header, end)
    out += struct.pack(f"<{entries}H", *(places.get(slot, 0) for slot in range(entries)))
    out += bytes(end)
    struct.pack_into("<i", out, start, start - vtable)
    for slot, value in table.slots.items():
        place = start + places[slot]
        if isinstance(value, Number):
            struct.pack_into(f"<{value.code}", out, place, value.value)
        else:
            struct.pack_into("<I", out, place, _behind(out, value) - place)
    return start


def _behind(out: bytearray, value: Value) -> int:
    """Write what a slot refers to; where it stands."""
    assert not isinstance(value, Number)
    if isinstance(value, Table):
        return _table(out, value)
    if isinstance(value, Structs):
        _align(out, 8, 4)
        start = len(out)
        out += struct.pack("<I", len(value.numbers) // value.width)
        out += struct.pack(f"<{len(value.numbers)}q", *value.numbers)
        return start
    _align(out, 4)
    start = len(out)
    out += struct.pack("<I", len(value))
    if isinstance(value, str):
        out += value.encode("ascii") + b"\0"
        return start
    out += bytes(4 * len(value))
    for i, table in enumerate(value):
        place = start + 4 + 4 * i
        struct.pack_into("<I", out, place, _table(out, table) - place)
    return start


class View:
    """A table, read where it stands. Reading outside of the buffer is a `struct.error`."""

    __slots__ = ("_data", "_size", "_start", "_vtable")

    def __init__(self, data: memoryview, start: int) -> None:
        self._data, self._start = data, start
        self._vtable = start - self._at("i", start)
        self._size = self._at("H", self._vtable)

    @classmethod
    def root(cls, data: memoryview) -> View:
        return cls(data, struct.unpack_from("<I", data)[0])

    def _at(self, code: str, place: int) -> int:
        if place < 0:  # which would count from the end
            raise struct.error("a place before the beginning")
        found: int = struct.unpack_from(f"<{code}", self._data, place)[0]
        return found

    def _place(self, slot: int) -> int | None:
        if 4 + 2 * slot >= self._size:
            return None
        place = self._at("H", self._vtable + 4 + 2 * slot)
        return self._start + place if place else None

    def _refers(self, slot: int) -> int | None:
        place = self._place(slot)
        return None if place is None else place + self._at("I", place)

    def number(self, code: str, slot: int) -> int:
        place = self._place(slot)
        return 0 if place is None else self._at(code, place)

    def table(self, slot: int) -> View | None:
        place = self._refers(slot)
        return None if place is None else View(self._data, place)

    def text(self, slot: int) -> str:
        place = self._refers(slot)
        if place is None:
            return ""
        return bytes(self._data[place + 4 : place + 4 + self._at("I", place)]).decode()

    def tables(self, slot: int) -> list[View]:
        place = self._refers(slot)
        if place is None:
            return []
        spots = range(place + 4, place + 4 + 4 * self._count(place, 4), 4)
        return [View(self._data, spot + self._at("I", spot)) for spot in spots]

    def longs(self, slot: int) -> tuple[int, ...]:
        """A vector of 64-bit numbers."""
        place = self._refers(slot)
        if place is None:
            return ()
        return struct.unpack_from(f"<{self._count(place, 8)}q", self._data, place + 4)

    def structs(self, slot: int) -> list[tuple[int, int]]:
        """A vector of structs of two 64-bit numbers."""
        place = self._refers(slot)
        if place is None:
            return []
        found = struct.unpack_from(f"<{2 * self._count(place, 16)}q", self._data, place + 4)
        return list(zip(found[::2], found[1::2], strict=True))

    def _count(self, place: int, width: int) -> int:
        """How many things of so many bytes a vector has."""
        count = self._at("I", place)
        if count * width > len(self._data):
            raise struct.error("a vector longer than all")
        return count
