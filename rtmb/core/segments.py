"""Messages in order, for the journal: as lists of what was there anyway, and as columns of bytes.

Keeping a message costs some appends. Only when a full segment is first read it becomes columns,
which also hold less memory; from then on reading it is slicing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

from rtmb.codecs import columns as frames
from rtmb.core.message import Message
from rtmb.core.subjects import hears, matches, to_raw

#: What a kept message costs beyond its payload, rounded up: as a `Message`, as the bytes of the
#: text door, and in columns.
MESSAGE_COST = 320
TAIL_COST = 100
COLUMN_COST = 48
#: How many subjects are remembered as wanted or not.
_KNOWN_SUBJECTS = 65_536


class Selection:
    """Which subjects someone asked for, less those that they may not see."""

    def __init__(self, patterns: Iterable[str] = (">",), deny: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self.deny = tuple(deny)
        self._known: dict[str, bool] = {}

    def __contains__(self, subject: str) -> bool:
        found = self._known.get(subject)
        if found is None:
            found = any(hears(p, subject) for p in self.patterns)
            found = found and not any(matches(p, subject) for p in self.deny)
            if len(self._known) >= _KNOWN_SUBJECTS:
                self._known.clear()
            self._known[subject] = found
        return found


class Columns:
    """Messages as columns of bytes, as `rtmb.codecs.columns` writes them."""

    __slots__ = (
        "data", "doors", "first", "headers", "known_doors", "known_subjects", "replies", "seqs",
        "subjects", "times",
    )  # fmt: skip

    def __init__(
        self,
        seqs: Sequence[int],
        subjects: list[str],
        times: list[float],
        doors: list[str],
        bodies: list[bytes | Message],
    ) -> None:
        self.seqs = seqs
        self.times = array("q", [int(time * 1_000_000) for time in times])
        self.known_subjects, self.subjects = _numbered(subjects)
        self.known_doors, self.doors = _numbered(doors)
        data: list[bytes] = []
        replies: dict[int, bytes] = {}
        headers: dict[int, bytes] = {}
        for row, body in enumerate(bodies):
            if isinstance(body, bytes):
                eol = body.index(b"\n")
                data.append(body[eol + 1 : -2])
                space = body.find(b" ", 0, eol)
                if space >= 0:
                    replies[row] = body[:space]
                continue
            data.append(body.payload)
            if body.reply is not None:
                replies[row] = to_raw(body.reply)
            if body.headers is not None:
                headers[row] = body.headers
        self.data = Texts(data)
        self.replies = replies
        self.headers = headers

    @property
    def cost(self) -> int:
        """The memory it holds, on the generous side."""
        rare = [*self.replies.values(), *self.headers.values(), *self.known_subjects]
        others = sum(map(len, rare)) + len(rare) * TAIL_COST
        return len(self.data.whole) + len(self.times) * COLUMN_COST + others

    def frame(self, rows: Sequence[int], headers: bool) -> list[frames.Buffer]:
        """A frame of some of the rows, in order."""
        alone = isinstance(rows, range)
        low, high = (rows[0], rows[-1] + 1) if rows else (0, 0)

        def pick(column: Sequence[int]) -> Iterable[int]:
            return column[low:high] if alone else [column[row] for row in rows]

        names, numbers = self.known_subjects, pick(self.subjects)
        if len(names) > len(rows):  # name only what is there
            used = {number: i for i, number in enumerate(dict.fromkeys(numbers))}
            names, numbers = [names[n] for n in used], [used[n] for n in numbers]
        columns: list[frames.Buffer] = [
            frames.numbers("q", pick(self.seqs)),
            frames.numbers("q", pick(self.times)),
            frames.numbers("i", numbers),
            frames.numbers("i", pick(self.doors)),
            *self.data.columns(rows),
            *_rare(self.replies, rows),
            *_rare(self.headers if headers else {}, rows),
        ]
        described = {"rows": len(rows), "subjects": names, "doors": self.known_doors}
        return frames.encode(described, columns)


class Texts:
    """Many bytes as one, and where each begins and the last ends."""

    __slots__ = ("starts", "whole")

    def __init__(self, texts: list[bytes]) -> None:
        self.starts = array("q", accumulate(map(len, texts), initial=0))
        self.whole = b"".join(texts)

    def columns(self, rows: Sequence[int]) -> tuple[frames.Buffer, frames.Buffer]:
        starts, whole = self.starts, self.whole
        if isinstance(rows, range):
            here = starts[rows[0] : rows[-1] + 2] if rows else starts[:1]
            begin = here[0]
            if begin:
                here = array("q", [start - begin for start in here])
            return frames.numbers("i", here), memoryview(whole)[begin : begin + here[-1]]
        texts = [whole[starts[row] : starts[row + 1]] for row in rows]
        return frames.numbers("i", accumulate(map(len, texts), initial=0)), b"".join(texts)


def _rare(texts: dict[int, bytes], rows: Sequence[int]) -> tuple[frames.Buffer, frames.Buffer]:
    """The two columns of what few messages have; both empty when none of these rows does."""
    found = [texts.get(row, b"") for row in rows] if texts else []
    if not any(found):
        return b"", b""
    return frames.numbers("i", accumulate(map(len, found), initial=0)), b"".join(found)


def _numbered(names: list[str]) -> tuple[list[str], array[int]]:
    """The different names, as text that any program can read, and which of them each one is."""
    known: dict[str, int] = {}
    which = array("i", [known.setdefault(name, len(known)) for name in names])
    return [to_raw(name).decode("utf-8", "replace") for name in known], which


class Segment:
    """Messages that follow each other."""

    __slots__ = ("bodies", "columns", "cost", "count", "doors", "first", "subjects", "times")

    def __init__(self, first: int) -> None:
        self.first = first
        self.count = 0
        self.cost = 0
        self.subjects: list[str] = []
        self.times: list[float] = []
        self.doors: list[str] = []
        #: Each a `Message`, or as the text door has it: ``[reply ]size\r\npayload\r\n``.
        self.bodies: list[bytes | Message] = []
        #: The same once it is full and was read; then the bodies are gone.
        self.columns: Columns | None = None

    @property
    def end(self) -> int:
        return self.first + self.count

    def rows(self, start: int, end: int, wanted: Selection) -> Sequence[int]:
        """Which of the messages from `start` on and before `end` are wanted; a range where all
        between two are."""
        low, high = max(0, start - self.first), min(self.count, end - self.first)
        names = self.subjects[low:high] if low or high < self.count else self.subjects
        different = set(names)
        found = {name for name in different if name in wanted}
        if len(found) == len(different):
            return range(low, high)
        return [row for row, name in enumerate(names, low) if name in found] if found else ()

    def size(self, row: int) -> int:
        """The bytes of one message, as limits count them."""
        if self.columns is not None:
            starts = self.columns.data.starts
            return starts[row + 1] - starts[row]
        body = self.bodies[row]
        return len(body) if isinstance(body, bytes) else body.size

    def pack(self) -> None:
        """Make it columns for good."""
        columns, _ = self.as_columns(range(self.count))
        shared: dict[str, str] = {}
        self.subjects = [shared.setdefault(name, name) for name in self.subjects]
        moments: dict[float, float] = {}
        self.times = [moments.setdefault(time, time) for time in self.times]
        self.doors, self.bodies, self.columns = [], [], columns
        self.cost = columns.cost

    def as_columns(self, rows: Sequence[int]) -> tuple[Columns, Sequence[int]]:
        """These rows in columns; and how they are numbered there."""
        if self.columns is not None:
            return self.columns, rows
        low, high = rows[0], rows[-1] + 1
        part = slice(low, high)
        columns = Columns(
            range(self.first + low, self.first + high),
            self.subjects[part],
            self.times[part],
            self.doors[part],
            self.bodies[part],
        )
        if isinstance(rows, range):
            return columns, range(high - low)
        return columns, [row - low for row in rows]
