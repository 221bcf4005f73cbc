"""The journal as an Arrow IPC stream: its schema, declared here and nowhere else, and the writer.

An IPC stream is headers of flatbuffers in front of the columns as they stand, so little that it is
written here: nanoarrow, the small library for it, writes no dictionaries, and dies of some damaged
streams that it is to read. https://arrow.apache.org/docs/format/Columnar.html is the word on it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from rtmb.codecs import flatbuffer
from rtmb.codecs.flatbuffer import Number, Structs, Table, Value
from rtmb.core.segments import Excerpt

Buffer = bytes | bytearray | memoryview

_CONTINUED = b"\xff\xff\xff\xff"
_VERSION = 4  # V5
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3

# The types that the journal has, as the union `Type` numbers them.
_INT64 = 2, Table({0: Number("i", 64), 1: Number("b", 1)})
_INT32 = 2, Table({0: Number("i", 32), 1: Number("b", 1)})
_BINARY = 4, Table()
_TEXT = 5, Table()
_MOMENT = 10, Table({0: Number("h", 2), 1: "UTC"})  # in microseconds
_STRUCT = 13, Table()
_MAP = 17, Table({0: Number("b", 0)})


def _field(
    name: str,
    kind: tuple[int, Table],
    *,
    null: bool = True,
    dictionary: int | None = None,
    children: Sequence[Table] = (),
) -> Table:
    slots: dict[int, Value] = {
        0: name,
        1: Number("b", null),
        2: Number("b", kind[0]),
        3: kind[1],
        5: children,
    }
    if dictionary is not None:
        slots[4] = Table({0: Number("q", dictionary), 1: _INT32[1], 2: Number("b", 0)})
    return Table(slots)


#: The columns of the journal, for the broker, Spark's source and its sink. A message to publish has
#: `subject` and `data`, and may have `headers`, `reply` and `id`.
FIELDS = (
    _field("subject", _TEXT, dictionary=0),
    _field("data", _BINARY),
    _field(
        "headers",
        _MAP,
        children=[
            _field(
                "entries",
                _STRUCT,
                null=False,
                children=[_field("key", _TEXT, null=False), _field("value", _TEXT)],
            )
        ],
    ),
    _field("reply", _TEXT),
    _field("seq", _INT64),
    _field("timestamp", _MOMENT),
    _field("door", _TEXT, dictionary=1),
)


def _message(kind: int, header: Table, body: Sequence[Buffer] = ()) -> bytes:
    """An encapsulated message: its metadata and the buffers of its body."""
    length = sum(len(piece) for piece in body)
    slots = Table(
        {0: Number("h", _VERSION), 1: Number("b", kind), 2: header, 3: Number("q", length)}
    )
    told = flatbuffer.encode(slots)
    return b"".join([_CONTINUED, struct.pack("<I", len(told)), told, *body])


#: How every stream begins, and ends.
SCHEMA = _message(_SCHEMA, Table({0: Number("h", 0), 1: FIELDS}))
END = _CONTINUED + bytes(4)


class _Body:
    """The buffers of a record batch, one after the other, and what its metadata says of them."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.pieces: list[Buffer] = []
        self._nodes: list[int] = []
        self._buffers: list[int] = []
        self._length = 0

    def node(self, rows: int, nulls: int = 0) -> None:
        self._nodes += (rows, nulls)

    def buffer(self, data: Buffer | array[int]) -> None:
        piece = _little(data) if isinstance(data, array) else data
        size = len(piece)
        self._buffers += (self._length, size)
        self.pieces += (piece, bytes(-size % 8))
        self._length += size + -size % 8

    def header(self) -> Table:
        return Table(
            {0: Number("q", self.rows), 1: Structs(2, self._nodes), 2: Structs(2, self._buffers)}
        )

    # Columns

    def numbers(self, column: array[int]) -> None:
        self.node(len(column))
        self.buffer(b"")
        self.buffer(column)

    def texts(
        self, starts: array[int], whole: Buffer, validity: Buffer = b"", nulls: int = 0
    ) -> None:
        self.node(len(starts) - 1, nulls)
        self.buffer(validity)
        self.buffer(starts)
        self.buffer(whole)

    def replies(self, replies: dict[int, str]) -> None:
        found = {row: _readable(reply) for row, reply in replies.items()}
        validity, nulls = _validity(found, self.rows)
        lengths = [0] * self.rows
        for row, reply in found.items():
            lengths[row] = len(reply)
        self.texts(_starts(lengths), b"".join(found.values()), validity, nulls)

    def headers(self, blocks: dict[int, bytes]) -> None:
        """Header blocks as maps."""
        lengths = [0] * self.rows
        names: list[bytes] = []
        values: list[bytes] = []
        for row, block in blocks.items():
            before = len(names)
            for name, value in header_fields(block):
                names.append(name)
                values.append(value)
            lengths[row] = len(names) - before
        validity, nulls = _validity(blocks, self.rows)
        self.node(self.rows, nulls)
        self.buffer(validity)
        self.buffer(_starts(lengths))
        self.node(len(names))
        self.buffer(b"")
        for column in (names, values):
            self.texts(_starts(map(len, column)), b"".join(column))


def _little(column: array[int]) -> memoryview:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return memoryview(column).cast("B")


def _starts(lengths: Iterable[int]) -> array[int]:
    return array("i", accumulate(lengths, initial=0))


def _validity(rows: Iterable[int], count: int) -> tuple[bytes, int]:
    """The bits of the rows that have a value, and how many have none."""
    bits, valid = bytearray((count + 7) // 8), 0
    for row in rows:
        bits[row >> 3] |= 1 << (row & 7)
        valid += 1
    return bytes(bits), count - valid


def _readable(text: str) -> bytes:
    """Text that any program can read: what was no UTF-8 on the wire has a mark in its place."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()


def header_fields(block: bytes) -> Iterable[tuple[bytes, bytes]]:
    """The fields of a header block, names as written, repeats joined as HTTP does."""
    if not block.isascii():
        block = block.decode("utf-8", "replace").encode()
    found: dict[bytes, bytes] = {}
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            name, value = name.strip(), value.strip()
            found[name] = b"%b, %b" % (found[name], value) if name in found else value
    return found.items()


class StreamWriter:
    """Writes one stream, a batch at a time."""

    media_type = "application/vnd.apache.arrow.stream"

    def __init__(self, headers: bool = True) -> None:
        self._headers = headers
        #: What the reader knows: a dictionary is only sent when it is another.
        self._known: dict[int, list[str]] = {}

    def start(self) -> bytes:
        return SCHEMA

    def batch(self, batch: Excerpt) -> Iterator[bytes]:
        (subjects, which_subject), (doors, which_door) = batch.subjects, batch.doors
        yield from self._dictionary(0, subjects)
        yield from self._dictionary(1, doors)
        body = _Body(batch.rows)
        body.numbers(which_subject)
        body.texts(batch.payloads.starts, batch.payloads.whole)
        body.headers(batch.headers if self._headers else {})
        body.replies(batch.replies)
        body.numbers(batch.seqs)
        body.numbers(batch.times)
        body.numbers(which_door)
        yield _message(_BATCH, body.header(), body.pieces)

    def _dictionary(self, number: int, names: list[str]) -> Iterator[bytes]:
        if self._known.get(number) == names:
            return
        self._known[number] = names
        readable = [_readable(name) for name in names]
        body = _Body(len(names))
        body.texts(_starts(map(len, readable)), b"".join(readable))
        yield _message(_DICTIONARY, Table({0: Number("q", number), 1: body.header()}), body.pieces)

    def end(self) -> bytes:
        return END
