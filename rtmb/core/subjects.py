"""Subjects: their grammar, and the names that mean something to the broker.

A subject is tokens joined by dots, none empty, none with white space. In a pattern ``*`` stands for
one token and ``>``, at the end, for one or more.
"""

from __future__ import annotations

import re

#: How the broker's own subjects begin: ``!system/events/slow_consumer``. A wildcard that means all
#: does not mean these: who wants them says so.
OWN = "!"
#: How the subjects of replies begin. They are used once, so they are not remembered.
INBOX = "_INBOX."
#: What stands before a pattern to ask for its past: the last value, or the last so many.
LAST, REPLAY = "$LAST.", "$REPLAY."
#: What nobody may give as the subject of a reply: the broker would answer it, or nobody can hear
#: it (``_R_.`` is how nats-server's own service replies begin).
NO_REPLY = (LAST, REPLAY, "_R_.")

_PAST = re.compile(r"\$(?:LAST|REPLAY\.(?P<count>\d{1,9}))\.(?P<pattern>.+)")

# White space is what separates fields on the wire (`bytes.split()`), and nothing more.
_SUBJECT = re.compile(r"[^ \t\r\n\f\v.]+(?:\.[^ \t\r\n\f\v.]+)*")


def is_pattern(text: str) -> bool:
    """Whether `text` may be subscribed to."""
    if _SUBJECT.fullmatch(text) is None:
        return False
    return ">" not in text or ">" not in text.split(".")[:-1]


def is_subject(text: str) -> bool:
    """Whether `text` may be published to: a pattern without wildcards."""
    return _SUBJECT.fullmatch(text) is not None and not has_wildcard(text)


def has_wildcard(pattern: str) -> bool:
    """Whether a token of `pattern` is a wildcard. ``foo*`` is an ordinary token."""
    if "*" not in pattern and ">" not in pattern:
        return False
    tokens = pattern.split(".")
    return "*" in tokens or ">" in tokens


def matches(pattern: str, subject: str) -> bool:
    """Whether one pattern matches one subject: the plain rule that the trie must agree with.

    Given a pattern for `subject`, it says whether the first covers all that the second matches.
    """
    if pattern == subject:
        return True
    wanted, given = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if i >= len(given):
            return False
        if token == ">":
            return True
        if given[i] == ">" or (token != "*" and token != given[i]):
            return False
    return len(wanted) == len(given)


def hears(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` gets `subject`: as `matches` says, but what begins with
    ``!`` (the broker's own subjects) is asked for by name, not by a wildcard that means all."""
    return matches(pattern, subject) and not (
        subject[:1] == OWN and pattern.partition(".")[0] in ("*", ">")
    )


def overlap(one: str, other: str) -> bool:
    """Whether some subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if a == ">" or b == ">":
            return True
        if a != b and a != "*" and b != "*":
            return False
    return len(left) == len(right)


def split_past(pattern: str) -> tuple[str, int]:
    """A subscription's pattern, and how many messages of each subject it wants from the past.

    >>> split_past("$REPLAY.20.orders.*"), split_past("$LAST.weather.>"), split_past("orders")
    (('orders.*', 20), ('weather.>', 1), ('orders', 0))
    """
    asked = _PAST.fullmatch(pattern) if pattern.startswith("$") else None
    if asked is None:
        return pattern, 0
    return asked["pattern"], int(asked["count"] or 1)


def to_raw(text: str) -> bytes:
    """A subject as bytes; what was no UTF-8 on the way in is the same bytes on the way out."""
    return text.encode("utf-8", "surrogateescape")


def from_raw(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
