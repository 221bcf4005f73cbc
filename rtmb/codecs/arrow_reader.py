"""Messages out of an Arrow IPC stream that someone posted: whatever the bytes are, they are read or
refused. Of the columns that nobody asked for, only where they end is looked at."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rtmb.codecs.flatbuffer import View

_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3

# What the union `Type` calls them.
_NULL, _INT, _BINARY, _TEXT, _STRUCT, _UNION, _MAP = 1, 2, 4, 5, 13, 14, 17
_LARGE_BINARY, _LARGE_TEXT, _BINARY_VIEW, _TEXT_VIEW = 19, 20, 23, 24
_TEXTS = (_TEXT, _LARGE_TEXT, _TEXT_VIEW)
_BYTES = (_BINARY, _LARGE_BINARY, _BINARY_VIEW)
#: Lists of all kinds have children behind their offsets; what is nowhere here has bits and numbers.
_LISTS = {12: 2, 16: 1, _MAP: 2, 21: 2}
_UNREAD = (_UNION, 22, 25, 26)
_INDEX = {8: "b", 16: "h", 32: "i", 64: "q"}
#: Fields within fields, at most: what we read has three.
_DEEPEST = 16


class ArrowError(ValueError):
    """These bytes are no stream of messages; the text says why."""


@dataclass
class Rows:
    """Messages to publish, by column."""

    subjects: list[str] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    ids: list[bytes] | None = None
    #: By row: fields as they stand in a header block, each after a line end.
    headers: dict[int, bytes] = field(default_factory=dict)
    replies: dict[int, str] = field(default_factory=dict)


def read_rows(body: bytes, most: int) -> Rows:
    """The messages of a stream, at most so many, or an `ArrowError`."""
    try:
        return _Stream(body, most).rows
    except (struct.error, LookupError, UnicodeDecodeError, OverflowError) as error:
        raise ArrowError(f"not an Arrow IPC stream, or cut off ({error})") from None


def _messages(body: bytes) -> Iterator[tuple[int, View, memoryview]]:
    """Kind, header and body of each message."""
    whole, pos = memoryview(body), 0
    while pos < len(body):
        mark, size = struct.unpack_from("<Ii", body, pos)
        pos += 8
        if mark != 0xFFFFFFFF or size < 0 or pos + size > len(body):
            raise ArrowError("not an Arrow IPC stream, or cut off")
        if size == 0:
            if pos < len(body):
                raise ArrowError("something stands behind the end of the stream")
            return
        message = View.root(whole[pos : pos + size])
        pos += size
        header, length = message.table(2), message.number("q", 3)
        if header is None or not 0 <= length <= len(body) - pos:
            raise ArrowError("not an Arrow IPC stream, or cut off")
        yield message.number("B", 1), header, whole[pos : pos + length]
        pos += length


class _Field:
    """A column as the schema tells of it."""

    def __init__(self, told: View, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise ArrowError("fields within fields without end")
        self.name = told.text(0)
        self.kind = told.number("B", 2)
        self.children = [_Field(child, depth + 1) for child in told.tables(5)]
        self.dictionary: int | None = None
        coded = told.table(4)
        if coded is not None:
            self.dictionary = coded.number("q", 0)
            index = coded.table(1)
            self.index = "i" if index is None else _INDEX[index.number("i", 0)]

    def must_be(self, kinds: tuple[int, ...], wanted: str) -> None:
        if self.kind not in kinds:
            raise ArrowError(f"column {self.name} is not {wanted}")


class _Stream:
    """A stream that is being read."""

    def __init__(self, body: bytes, most: int) -> None:
        self.rows = Rows()
        self._fields: list[_Field] = []
        self._coded: dict[int, _Field] = {}
        self._dictionaries: dict[int, list[Any]] = {}
        count = 0
        for kind, header, data in _messages(body):
            if kind == _SCHEMA:
                self._schema(header)
                continue
            batch = header.table(1) if kind == _DICTIONARY else header
            if kind not in (_DICTIONARY, _BATCH) or batch is None or not self._fields:
                raise ArrowError("not a schema and then batches")
            if batch.table(3) is not None:
                raise ArrowError("send it without compression")
            length = batch.number("q", 0)
            count += length
            if length < 0 or count > most:
                raise ArrowError(f"at most {most} messages at once")
            if kind == _DICTIONARY:
                self._dictionary(header, _Batch(batch, data, self._dictionaries))
            else:
                self._batch(_Batch(batch, data, self._dictionaries))
        if not self._fields:
            raise ArrowError("there is no schema")

    def _schema(self, header: View) -> None:
        if self._fields:
            raise ArrowError("there is more than one schema")
        if header.number("h", 0) != 0:
            raise ArrowError("send it with the low byte first")
        self._fields = [_Field(told) for told in header.tables(1)]
        named = {found.name: found for found in self._fields}
        for name in ("subject", "data"):
            if name not in named:
                raise ArrowError(f"there is no column {name}")
        for name, found in named.items():
            if name in ("subject", "reply"):
                found.must_be(_TEXTS, "text")
            elif name in ("data", "id"):
                found.must_be(_TEXTS + _BYTES, "bytes or text")
            elif name == "headers" and not _is_map_of_texts(found):
                raise ArrowError("column headers is not a map of texts")
            if found.dictionary is not None:
                self._coded[found.dictionary] = found

    def _dictionary(self, header: View, batch: _Batch) -> None:
        number = header.number("q", 0)
        found = batch.values(self._coded[number], coded=True)
        if header.number("B", 2):  # more of it
            found = self._dictionaries.get(number, []) + found
        self._dictionaries[number] = found

    def _batch(self, batch: _Batch) -> None:
        rows, before = self.rows, len(self.rows.payloads)
        columns: dict[str, list[Any]] = {}
        for told in self._fields:
            if told.name in ("subject", "data", "id", "reply"):
                columns[told.name] = batch.values(told)
            elif told.name == "headers":
                for row, block in batch.maps(told):
                    rows.headers[before + row] = block
            else:
                batch.skip(told)
        for name, column in columns.items():
            if len(column) != batch.length:
                raise ArrowError(f"column {name} has not one value a row")
            if name in ("subject", "id") and None in column:
                raise ArrowError(f"a row has no {name}")
        rows.subjects += columns["subject"]
        rows.payloads += [_bytes(value) for value in columns["data"]]
        if "id" in columns:
            rows.ids = [*(rows.ids or ()), *map(_bytes, columns["id"])]
        for row, reply in enumerate(columns.get("reply", ()), before):
            if reply is not None:
                rows.replies[row] = reply


def _is_map_of_texts(told: _Field) -> bool:
    if told.kind != _MAP or len(told.children) != 1 or told.dictionary is not None:
        return False
    entries = told.children[0]
    well = entries.kind == _STRUCT and len(entries.children) == 2 and entries.dictionary is None
    return well and all(c.kind in _TEXTS and c.dictionary is None for c in entries.children)


class _Batch:
    """A batch that is being read, column by column."""

    def __init__(self, told: View, data: memoryview, known: dict[int, list[Any]]) -> None:
        self.length = told.number("q", 0)
        self._data = data
        self._known = known
        self._nodes = iter(told.structs(1))
        self._buffers = iter(told.structs(2))
        self._variadic = iter(told.longs(4))

    def _node(self) -> tuple[int, int]:
        length, nulls = next(self._nodes, (-1, 0))
        if not 0 <= length <= 8 * len(self._data):
            raise ArrowError("a column has no length")
        return length, nulls

    def _buffer(self) -> memoryview:
        start, size = next(self._buffers, (-1, 0))
        if start < 0 or not 0 <= size <= len(self._data) - start:
            raise ArrowError("a buffer stands outside of its batch")
        return self._data[start : start + size]

    def _numbers(self, code: str, count: int) -> array[int]:
        found, data = array(code), self._buffer()
        if len(data) < count * found.itemsize:
            raise ArrowError("a buffer is too short")
        found.frombytes(data[: count * found.itemsize])
        if sys.byteorder == "big":
            found.byteswap()
        return found

    def _starts(self, code: str, count: int) -> array[int]:
        found = self._numbers(code, count + 1 if count else 0)
        if found and (found[0] < 0 or any(a > b for a, b in pairwise(found))):
            raise ArrowError("offsets that go back")
        return found

    def values(self, told: _Field, coded: bool = False) -> list[Any]:
        """A column of text or bytes, None where there is nothing; `coded`: the dictionary's."""
        length, nulls = self._node()
        validity = self._buffer()
        if told.dictionary is not None and not coded:
            known = self._known.get(told.dictionary, [])
            which = self._numbers(told.index, length)
            if which and min(which) < 0 and not nulls:
                raise ArrowError("a dictionary has no such entry")
            found = [known[i] if i >= 0 else None for i in which]
        elif told.kind in (_BINARY_VIEW, _TEXT_VIEW):
            found = self._views(length)
        else:
            large = told.kind in (_LARGE_BINARY, _LARGE_TEXT)
            starts, whole = self._starts("q" if large else "i", length), bytes(self._buffer())
            if starts and starts[-1] > len(whole):
                raise ArrowError("a buffer is too short")
            found = [whole[a:b] for a, b in pairwise(starts)]
        if nulls:
            bits = bytes(validity)
            found = [v if bits[i >> 3] >> (i & 7) & 1 else None for i, v in enumerate(found)]
        if told.kind in _TEXTS and (told.dictionary is None or coded):
            found = [None if value is None else value.decode() for value in found]
        return found

    def _views(self, length: int) -> list[Any]:
        views = self._buffer()
        buffers = [self._buffer() for _ in range(next(self._variadic, 0))]
        found: list[Any] = []
        for place in range(0, 16 * length, 16):
            size, _, which, start = struct.unpack_from("<iiii", views, place)
            if 0 <= size <= 12:
                found.append(bytes(views[place + 4 : place + 4 + size]))
                continue
            if size < 0 or which < 0 or not 0 <= start <= len(buffers[which]) - size:
                raise ArrowError("a view looks outside of its batch")
            found.append(bytes(buffers[which][start : start + size]))
        return found

    def maps(self, told: _Field) -> Iterator[tuple[int, bytes]]:
        """The rows of a map that have something, each as the fields of a header block."""
        length, _ = self._node()
        self._buffer()
        starts = self._starts("i", length)
        self._node()
        self._buffer()
        names, values = (self.values(child) for child in told.children[0].children)
        if len(starts) != length + 1 if length else starts:
            raise ArrowError("column headers has not one value a row")
        for row, (low, high) in enumerate(pairwise(starts)):
            if low < high:
                yield row, b"".join(_header_line(names[i], values[i]) for i in range(low, high))

    def skip(self, told: _Field) -> None:
        """Pass a column by."""
        if told.kind in _UNREAD:
            raise ArrowError(f"column {told.name} is of a kind that is not read here; leave it out")
        self._node()
        if told.kind == _NULL:
            return
        plain = told.dictionary is not None
        count = 2 if plain else {_STRUCT: 1, **_LISTS}.get(told.kind, 2)
        if not plain and told.kind in _TEXTS + _BYTES:
            views = told.kind in (_TEXT_VIEW, _BINARY_VIEW)
            count = 2 + next(self._variadic, 0) if views else 3
        for _ in range(count):
            self._buffer()
        for child in told.children if not plain else ():
            self.skip(child)


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _header_line(name: str | None, value: str | None) -> bytes:
    """A field after a line end. Line breaks in it would begin another, so they become blanks."""
    if not name:
        raise ArrowError("a header has no name")
    return b"\r\n" + " ".join(f"{name}: {value or ''}".splitlines()).encode()
