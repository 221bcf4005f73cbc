"""Messages in order, for the journal: as lists of what was there anyway, and in columns.

Keeping a message costs some appends. Only when a full segment is first read it becomes columns,
which also hold less memory; from then on reading it is slicing.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from rtmb.core.journal_writer import RARE_COST, Lists
from rtmb.core.subjects import OWN

#: What a message costs in columns, beyond its bytes.
COLUMN_COST = 48
#: How many subjects are remembered as wanted or not.
_KNOWN_SUBJECTS = 65_536

_T = TypeVar("_T")


class Selection:
    """Which subjects someone asked for, less those that they may not see."""

    __slots__ = ("_known", "_unwanted", "_wanted", "deny", "patterns")

    def __init__(self, patterns: Iterable[str] = (">",), deny: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self.deny = tuple(deny)
        # One expression for all: the time for a subject hardly depends on how many there are.
        self._wanted = re.compile("|".join(_heard(p) for p in self.patterns), re.DOTALL)
        self._unwanted = re.compile("|".join(_matched(p) for p in self.deny) or "(?!)", re.DOTALL)
        self._known: dict[str, bool] = {}

    def __contains__(self, subject: str) -> bool:
        found = self._known.get(subject)
        if found is None:
            found = self._wanted.fullmatch(subject) is not None
            found = found and self._unwanted.fullmatch(subject) is None
            if len(self._known) >= _KNOWN_SUBJECTS:
                self._known.clear()
            self._known[subject] = found
        return found


def _matched(pattern: str) -> str:
    """`rtmb.core.subjects.matches` as an expression."""
    wild = {"*": r"[^.]+", ">": r".+"}
    return r"\.".join(wild.get(token) or re.escape(token) for token in pattern.split("."))


def _heard(pattern: str) -> str:
    """`rtmb.core.subjects.hears` as an expression."""
    guard = f"(?!{OWN})" if pattern.partition(".")[0] in ("*", ">") else ""
    return guard + _matched(pattern)


class Names:
    """A column of names that come again and again: each different one, and which one each is."""

    __slots__ = ("known", "which")

    def __init__(self, names: Sequence[str]) -> None:
        known: dict[str, int] = {}
        self.which = array("i", [known.setdefault(name, len(known)) for name in names])
        self.known = list(known)

    def pick(self, rows: Sequence[int]) -> tuple[list[str], array[int]]:
        """Some of the rows; of the names only those that are there."""
        which = _pick(self.which, rows)
        if len(self.known) <= len(rows):
            return self.known, which
        used = {number: i for i, number in enumerate(dict.fromkeys(which))}
        return [self.known[number] for number in used], array("i", [used[n] for n in which])


class Texts:
    """Many bytes as one, and where each begins and the last ends."""

    __slots__ = ("starts", "whole")

    def __init__(self, texts: Iterable[bytes]) -> None:
        texts = list(texts)
        self.starts = array("i", accumulate(map(len, texts), initial=0))
        self.whole: bytes | memoryview = b"".join(texts)

    def pick(self, rows: Sequence[int]) -> Texts:
        starts, whole = self.starts, self.whole
        if not isinstance(rows, range):
            return Texts(bytes(whole[starts[row] : starts[row + 1]]) for row in rows)
        found = Texts(())
        here = starts[rows.start : rows.stop + 1]
        begin = here[0]
        found.starts = array("i", [start - begin for start in here]) if begin else here
        found.whole = memoryview(whole)[begin : here[-1]]
        return found


@dataclass(slots=True)
class Excerpt:
    """Messages in columns, as a reader gets them: some rows of a segment."""

    seqs: array[int]
    #: Microseconds since 1970.
    times: array[int]
    subjects: tuple[list[str], array[int]]
    doors: tuple[list[str], array[int]]
    payloads: Texts
    #: What few messages have, by row.
    replies: dict[int, str]
    headers: dict[int, bytes]

    @property
    def rows(self) -> int:
        return len(self.seqs)


class Columns:
    """Messages in columns."""

    __slots__ = ("doors", "headers", "payloads", "replies", "subjects", "times")

    def __init__(
        self,
        subjects: Sequence[str],
        times: Sequence[float],
        doors: Sequence[str],
        payloads: Sequence[bytes],
        replies: dict[int, str],
        headers: dict[int, bytes],
    ) -> None:
        self.subjects = Names(subjects)
        self.times = array("q", [int(time * 1_000_000) for time in times])
        self.doors = Names(doors)
        self.payloads = Texts(payloads)
        self.replies = replies
        self.headers = headers

    @property
    def cost(self) -> int:
        """The memory it holds, on the generous side."""
        rare = sum(map(len, self.replies.values())) + sum(map(len, self.headers.values()))
        rare += sum(map(len, self.subjects.known))
        count = len(self.replies) + len(self.headers) + len(self.subjects.known)
        others = rare + count * RARE_COST
        return len(self.payloads.whole) + len(self.times) * COLUMN_COST + others

    def pick(self, rows: Sequence[int], first: int) -> Excerpt:
        """Some of the rows, in order; `first` is the number of the first row of all."""
        seqs = range(first + rows[0], first + rows[-1] + 1)
        return Excerpt(
            array("q", seqs if isinstance(rows, range) else [first + row for row in rows]),
            _pick(self.times, rows),
            self.subjects.pick(rows),
            self.doors.pick(rows),
            self.payloads.pick(rows),
            _rare(self.replies, rows),
            _rare(self.headers, rows),
        )


def _pick(column: array[int], rows: Sequence[int]) -> array[int]:
    if isinstance(rows, range):
        return column[rows.start : rows.stop]
    return array(column.typecode, [column[row] for row in rows])


def _rare(texts: dict[int, _T], rows: Sequence[int]) -> dict[int, _T]:
    if not texts:
        return texts
    return {i: texts[row] for i, row in enumerate(rows) if row in texts}


class Segment(Lists):
    """Messages that follow each other, as they came or packed."""

    __slots__ = ("columns",)

    def __init__(self, first: int) -> None:
        super().__init__(first)
        #: The same once it is full and was read; then the lists are empty.
        self.columns: Columns | None = None

    @property
    def count(self) -> int:
        columns = self.columns
        return len(self.subjects) if columns is None else len(columns.times)

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def newest(self) -> float:
        """The time of the last message; there must be one."""
        return self.time(self.end - 1)

    def time(self, seq: int) -> float:
        """The time of a message of it."""
        row = seq - self.first
        return self.times[row] if self.columns is None else self.columns.times[row] / 1_000_000

    def at_time(self, time: float) -> int:
        """The number of the first message that is not older than `time`."""
        if self.columns is None:
            return self.first + bisect_left(self.times, time)
        return self.first + bisect_left(self.columns.times, int(time * 1_000_000))

    def rows(self, start: int, end: int, wanted: Selection) -> Sequence[int]:
        """Which of the messages from `start` on and before `end` are wanted; a range where all
        between two are."""
        low, high = max(0, start - self.first), min(self.count, end - self.first)
        if low >= high:
            return ()
        if self.columns is not None:
            return self._packed_rows(self.columns.subjects, low, high, wanted)
        names = self.subjects[low:high]
        different = set(names)
        found = {name for name in different if name in wanted}
        if len(found) == len(different):
            return range(low, high)
        return [row for row, name in enumerate(names, low) if name in found] if found else ()

    def _packed_rows(
        self, subjects: Names, low: int, high: int, wanted: Selection
    ) -> Sequence[int]:
        found = {i for i, name in enumerate(subjects.known) if name in wanted}
        if len(found) == len(subjects.known):
            return range(low, high)
        if not found:
            return ()
        return [row for row, i in enumerate(subjects.which[low:high], low) if i in found]

    def size(self, row: int) -> int:
        """The bytes of one payload."""
        if self.columns is not None:
            starts = self.columns.payloads.starts
            return starts[row + 1] - starts[row]
        return len(self.payloads[row])

    def pack(self) -> None:
        """Make it columns for good."""
        if self.columns is not None:
            return
        self.columns = self._columns(0, self.count)
        self.cost = self.columns.cost
        self.subjects, self.times, self.doors, self.payloads = [], [], [], []

    def read(self, rows: Sequence[int]) -> Excerpt:
        """Some of the messages, in order."""
        if self.columns is not None:
            return self.columns.pick(rows, self.first)
        low, high = rows[0], rows[-1] + 1
        here = range(high - low) if isinstance(rows, range) else [row - low for row in rows]
        return self._columns(low, high).pick(here, self.first + low)

    def _columns(self, low: int, high: int) -> Columns:
        part = slice(low, high)
        return Columns(
            self.subjects[part],
            self.times[part],
            self.doors[part],
            self.payloads[part],
            _rare(self.replies, range(low, high)),
            _rare(self.headers, range(low, high)),
        )
