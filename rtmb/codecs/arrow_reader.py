"""Messages out of an Arrow IPC stream that someone posted. nanoarrow reads and checks it."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import nanoarrow as na
from nanoarrow import ipc

_BATCH = 3
#: The text and binary types that hold what has to be text or bytes.
_TEXTS = ("string", "large_string")
_BYTES = ("binary", "large_binary", *_TEXTS)


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
    """The messages of a stream, or an `ArrowError`."""
    try:
        if sum(_rows_announced(body)) > most:
            raise ArrowError(f"at most {most} messages at once")
        rows = Rows()
        with ipc.InputStream.from_readable(io.BytesIO(body)) as stream:
            for batch in na.c_array_stream(stream):
                _read_batch(batch, rows)
        return rows
    except ArrowError:
        raise
    except (ValueError, LookupError, RuntimeError, struct.error) as error:
        raise ArrowError(str(error) or type(error).__name__) from None


def _rows_announced(body: bytes) -> Iterator[int]:
    """How many rows each batch says that it has; refuses what would unpack to anything."""
    pos = 0
    while pos + 8 <= len(body):
        mark, size = struct.unpack_from("<Ii", body, pos)
        if mark != 0xFFFFFFFF or size < 0 or pos + 8 + size > len(body):
            raise ArrowError("not an Arrow IPC stream, or cut off")
        if size == 0:
            return
        told = body[pos + 8 : pos + 8 + size]
        root = _Table(told, struct.unpack_from("<I", told)[0])
        header = root.table(2)
        if root.number("B", 1) == _BATCH and header is not None:
            if header.table(3) is not None:
                raise ArrowError("send it without compression")
            yield header.number("q", 0)
        length = root.number("q", 3)
        if not 0 <= length <= len(body):
            raise ArrowError("not an Arrow IPC stream, or cut off")
        pos += 8 + size + length
    if pos < len(body):
        raise ArrowError("not an Arrow IPC stream, or cut off")


class _Table:
    """A table of flatbuffers, read."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._start = data, start
        self._vtable = start - struct.unpack_from("<i", data, start)[0]
        if self._vtable < 0:
            raise ArrowError("metadata that is none")

    def _place(self, slot: int) -> int | None:
        size: int = struct.unpack_from("<H", self._data, self._vtable)[0]
        if 4 + 2 * slot >= size:
            return None
        place: int = struct.unpack_from("<H", self._data, self._vtable + 4 + 2 * slot)[0]
        return self._start + place if place else None

    def number(self, code: str, slot: int) -> int:
        place = self._place(slot)
        found: int = 0 if place is None else struct.unpack_from(f"<{code}", self._data, place)[0]
        return found

    def table(self, slot: int) -> _Table | None:
        place = self._place(slot)
        if place is None:
            return None
        return _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])


def _read_batch(batch: Any, rows: Rows) -> None:
    schema = batch.schema
    columns = {schema.child(i).name: batch.child(i) for i in range(schema.n_children)}
    for name in ("subject", "data"):
        if name not in columns:
            raise ArrowError(f"there is no column {name}")
    before = len(rows.payloads)
    subjects = _values(columns["subject"], "subject", _TEXTS)
    if None in subjects:
        raise ArrowError("a row has no subject")
    rows.subjects += subjects
    rows.payloads += [_bytes(value) for value in _values(columns["data"], "data", _BYTES)]
    if "id" in columns:
        ids = _values(columns["id"], "id", _BYTES)
        if None in ids:
            raise ArrowError("a row has no id")
        rows.ids = [*(rows.ids or ()), *map(_bytes, ids)]
    if "reply" in columns:
        for row, reply in enumerate(_values(columns["reply"], "reply", _TEXTS), before):
            if reply is not None:
                rows.replies[row] = reply
    if "headers" in columns:
        for row, block in _header_fields(columns["headers"]):
            rows.headers[before + row] = block


def _values(column: Any, name: str, kinds: tuple[str, ...]) -> list[Any]:
    """A column of texts or bytes, None where there is nothing."""
    if column.schema.dictionary is not None:
        known = _values(column.dictionary, name, kinds)
        found = [known[number] for number in _numbers(column, 1)]
    else:
        kind = na.Schema(column.schema).type.name.lower()
        if kind not in kinds:
            raise ArrowError(f"column {name} is {kind}, not {' or '.join(kinds)}")
        whole = bytes(column.view().buffer(2))
        starts = _numbers(column, 1, 1)
        if kind in _TEXTS and whole.isascii():
            text = whole.decode("ascii")
            found = [text[a:b] for a, b in pairwise(starts)]
        else:
            found = [whole[a:b] for a, b in pairwise(starts)]
            if kind in _TEXTS:
                found = [value.decode() for value in found]
    if column.null_count:
        bits = bytes(column.view().buffer(0))
        found = [v if bits[i >> 3] >> (i & 7) & 1 else None for i, v in enumerate(found)]
    return found


def _numbers(column: Any, buffer: int, more: int = 0) -> list[int]:
    """A buffer of numbers, one a row and so many more."""
    found = memoryview(column.view().buffer(buffer)).tolist()
    return found[: len(column) + more]


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _header_fields(column: Any) -> Iterator[tuple[int, bytes]]:
    """The rows of a map that have something, each as the fields of a header block."""
    if na.Schema(column.schema).type.name != "MAP":
        raise ArrowError("column headers is not a map of texts")
    entries = column.child(0)
    names = _values(entries.child(0), "headers", _TEXTS)
    values = _values(entries.child(1), "headers", _TEXTS)
    for row, (low, high) in enumerate(pairwise(_numbers(column, 1, 1))):
        if low < high:
            yield row, b"".join(_header_line(names[i], values[i]) for i in range(low, high))


def _header_line(name: str, value: str | None) -> bytes:
    """A field after a line end. Line breaks in it would begin another, so they become blanks."""
    line = f"{name}: {value or ''}"
    return b"\r\n" + " ".join(line.splitlines()).encode()
