"""Lengths of time as people say them."""

from __future__ import annotations

_SPANS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def span(seconds: float) -> str:
    """A length of time as people say it.

    >>> span(0.25), span(75), span(7200)
    ('0.2 s', '1 min 15 s', '2 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    size, unit, less, small = next(step for step in _SPANS if seconds >= step[0])
    rest = int(seconds % size / less)
    return f"{int(seconds // size)} {unit}" + (f" {rest} {small}" if rest else "")
