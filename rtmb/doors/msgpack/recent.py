"""A dict of what was asked for lately, bounded; the oldest few make room for what is new."""

from __future__ import annotations

from itertools import islice
from typing import TypeVar

K = TypeVar("K", bound="str | bytes")
V = TypeVar("V")

#: So many go at once: one at a time, each would search the front of the dict anew.
_FEW = 64


class Recent(dict[K, V]):
    """At most `count` values, under keys of at most `size` characters in all. `get` it as any dict,
    but fill it with `keep`."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self._count = count
        self._size = size
        self._held = 0

    def keep(self, key: K, value: V) -> None:
        """Keep the value of a key that is not there."""
        self[key] = value
        self._held += len(key)
        while len(self) > self._count or (self._held > self._size and len(self) > 1):
            for old in list(islice(self, min(_FEW, len(self) - 1))):
                self.drop(old)

    def drop(self, key: K) -> None:
        if self.pop(key, None) is not None:
            self._held -= len(key)

    def clear(self) -> None:
        super().clear()
        self._held = 0
