"""What is collected for one client during a batch, before it is sent: bytes in few pieces.

Small pieces are written one behind another into a room; a large one is kept as it is. Rooms are
used again, so that a busy client always writes to the same memory.
"""

from __future__ import annotations

from rtmb.core import raw
from rtmb.core.publication import WHOLE

#: The first room of a batch: few bytes, for the many who get a message now and then. Who got much
#: the last time begins with a large one. A room that is too small moves into one eight times as
#: large, up to the last, which holds what comes of one read, and is closed when full.
SMALL = 512
GROWTH = 8
LARGE = 768 * 1024
#: Large rooms that are kept to be used again, for all clients together.
_MOST_SPARE = 16
_spare: list[bytearray] = []

_WHOLE = WHOLE
_SMALL, _GROWTH, _LARGE = SMALL, GROWTH, LARGE

Piece = bytes | memoryview


class Batch:
    """Bytes for one client."""

    __slots__ = ("_before", "_closed", "_full", "_pieces", "_room", "_used")

    def __init__(self) -> None:
        self._pieces: list[Piece] | None = None
        self._room: bytearray | None = None
        #: Rooms that are full.
        self._closed: list[bytearray] | None = None
        self._used = 0
        #: Bytes in `_pieces`.
        self._full = 0
        #: Bytes of the last batch.
        self._before = 0

    def __bool__(self) -> bool:
        return self._used > 0 or self._full > 0

    def __len__(self) -> int:
        return self._used + self._full

    def size(self) -> int:
        """How many bytes there are."""
        return self._used + self._full

    def room(self, size: int) -> bytearray:
        """A room with space for `size` bytes at `used()`; `wrote` takes them over."""
        room = self._room
        if room is None:
            room = self._room = _new_room(max(size, self._before))
        elif len(room) - self._used < size:
            room = self._grow(room, size)
        return room

    def used(self) -> int:
        return self._used

    def wrote(self, end: int) -> None:
        """The room is now written up to `end`."""
        self._used = end

    def append(self, piece: bytes) -> None:
        """Add some bytes."""
        if len(piece) >= _WHOLE:
            self._close_room()
            if self._pieces is None:
                self._pieces = []
            self._pieces.append(piece)
            self._full += len(piece)
        else:
            room = self.room(len(piece))
            self._used = raw.put(room, self._used, piece)

    def take(self) -> list[Piece]:
        """All that was collected, in order. The views are of rooms: who gets them sends them or
        copies them, and then calls `clear`."""
        pieces: list[Piece] = [] if self._pieces is None else self._pieces
        if self._used and self._room is not None:
            pieces.append(memoryview(self._room)[: self._used])
        self._before = min(self._used + self._full, _LARGE)
        self._pieces = None
        self._used = 0
        self._full = 0
        return pieces

    def clear(self) -> None:
        """Forget everything, and give the rooms to others."""
        if self._room is not None:
            _give_back(self._room)
            self._room = None
        if self._closed is not None:
            for room in self._closed:
                _give_back(room)
            self._closed = None
        self._pieces = None
        self._used = 0
        self._full = 0

    def _grow(self, room: bytearray, size: int) -> bytearray:
        """More space: a smaller room moves into a larger one, the largest is closed."""
        used = self._used
        if len(room) < _LARGE and used + size <= _LARGE:
            larger = _new_room(used + size)
            larger[:used] = memoryview(room)[:used]
        else:
            self._close_room()
            if self._room is not None and len(self._room) >= size:
                return self._room
            larger = _new_room(size)
        self._room = larger
        return larger

    def _close_room(self) -> None:
        """What is in the room becomes a piece."""
        if not self._used or self._room is None:
            return
        if self._pieces is None:
            self._pieces = []
        if self._used * 2 < len(self._room):
            # Mostly empty: copy what there is, and go on writing here.
            self._pieces.append(bytes(memoryview(self._room)[: self._used]))
        else:
            self._pieces.append(memoryview(self._room)[: self._used])
            if self._closed is None:
                self._closed = []
            self._closed.append(self._room)
            self._room = None
        self._full += self._used
        self._used = 0


def _new_room(size: int) -> bytearray:
    """The smallest room that is large enough."""
    capacity = _SMALL
    while capacity < size and capacity < _LARGE:
        capacity = min(capacity * _GROWTH, _LARGE)
    if capacity == _LARGE and size <= capacity and _spare:
        return _spare.pop()
    return bytearray(max(capacity, size))


def _give_back(room: bytearray) -> None:
    if len(room) == _LARGE and len(_spare) < _MOST_SPARE:
        _spare.append(room)
