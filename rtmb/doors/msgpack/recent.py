"""What was asked for lately, bounded; the oldest few make room for what is new."""

from __future__ import annotations

from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound="str | bytes")
V = TypeVar("V")

#: So many go at once: one at a time, each would search the front of the dict anew.
_FEW = 64


class Recent(Generic[K, V]):
    """At most `count` values, under keys of at most `size` characters in all."""

    def __init__(self, count: int, size: int) -> None:
        #: What there is. Look there, for a plain dict is the fastest; but fill it with `keep`.
        self.there: dict[K, V] = {}
        self._count = count
        self._size = size
        self._held = 0

    def keep(self, key: K, value: V) -> None:
        """Keep the value of a key that is not there."""
        there = self.there
        there[key] = value
        self._held += len(key)
        while len(there) > self._count or (self._held > self._size and len(there) > 1):
            for old in list(islice(there, min(_FEW, len(there) - 1))):
                self.drop(old)

    def drop(self, key: K) -> None:
        if self.there.pop(key, None) is not None:
            self._held -= len(key)

    def clear(self) -> None:
        self.there.clear()
        self._held = 0
