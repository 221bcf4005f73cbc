"""Where the journal's messages are written: some appends for each, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: What a kept message costs beyond its payload, reply and headers, rounded up.
MESSAGE_COST = 180
#: What one of the rare replies, header blocks or names costs beyond its bytes.
RARE_COST = 100
_MESSAGE_COST, _RARE_COST = MESSAGE_COST, RARE_COST


class Lists:
    """Messages that follow each other, a list for each thing that there is to know of them."""

    __slots__ = ("cost", "doors", "first", "headers", "payloads", "replies", "subjects", "times")

    def __init__(self, first: int) -> None:
        self.first = first
        #: The memory that they take, on the generous side.
        self.cost = 0
        self.subjects: list[str] = []
        self.times: list[float] = []
        self.doors: list[str] = []
        self.payloads: list[bytes] = []
        #: What few messages have, by row.
        self.replies: dict[int, str] = {}
        self.headers: dict[int, bytes] = {}


class Writer:
    """Writes into one `Lists` after the other."""

    __slots__ = ("_full", "_news", "_time", "lists", "room_bytes", "room_messages")

    def __init__(self, lists: Any, full: Callable[[], None]) -> None:
        #: Where the next message goes.
        self.lists = lists
        #: How far it may go before `full` is called.
        self.room_messages = 0
        self.room_bytes = 0
        self._full = full
        #: The time of the last message: none after it is older.
        self._time = 0.0
        self._news: Callable[[], None] | None = None

    def on_news(self, call: Callable[[], None]) -> None:
        """Call once, from the middle of a delivery, when there is a message more. Whoever asked
        last is called."""
        self._news = call

    def append(
        self,
        subject: str,
        time: float,
        door: str,
        payload: bytes,
        reply: str | None = None,
        headers: bytes | None = None,
    ) -> None:
        """Keep one message. The clock may go back, the times of the journal do not."""
        if time < self._time:
            time = self._time
        else:
            self._time = time
        lists = self.lists
        row = len(lists.subjects)
        cost = _MESSAGE_COST + len(subject) + len(payload)
        if reply is not None:
            lists.replies[row] = reply
            cost += _RARE_COST + len(reply)
        if headers is not None:
            lists.headers[row] = headers
            cost += _RARE_COST + len(headers)
        lists.subjects.append(subject)
        lists.times.append(time)
        lists.doors.append(door)
        lists.payloads.append(payload)
        lists.cost += cost
        if lists.cost >= self.room_bytes or row + 1 >= self.room_messages:
            self._full()
        if self._news is not None:
            news = self._news
            self._news = None
            news()
