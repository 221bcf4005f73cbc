"""Messages as a table: what the jobs share. Pure functions from frames to frames."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from rtmb.core.subjects import OWN, is_pattern

_HOUR = 3600
_DAY = 86_400

#: All that people publish, and what a report tells of the broker itself: no wildcard means these.
EVERYTHING = ",".join(
    [">", *(f"!system/events/{event}" for event in ("slow_consumer", "drop", "journal_lag"))]
)

#: What a subject cannot hold, as Java and Python both read it: white space, wildcards, and the
#: places where an empty token would be.
NOT_IN_SUBJECTS = r"[\s*>]|(?<=\.)(?=\.)|^(?=\.)|(?<=\.)$|^$"

#: Columns that the archive's folders are named by.
PARTITIONS = ["date", "hour", "token"]


def placed(messages: DataFrame) -> DataFrame:
    """With the columns that say where in the archive a message stands: date and hour (of UTC,
    whatever zone the session is in) and the subject's first token."""
    second = fn.unix_seconds("timestamp")
    day = fn.date_from_unix_date(fn.floor(second / _DAY).cast("int"))
    return (
        messages.withColumn("date", day.cast("string"))
        .withColumn("hour", fn.format_string("%02d", fn.pmod(fn.floor(second / _HOUR), fn.lit(24))))
        .withColumn("token", fn.substring_index("subject", ".", 1))
    )


def text(column: str = "data") -> Column:
    """A payload as text; what is no UTF-8 has its bad bytes replaced."""
    return fn.make_valid_utf8(fn.col(column).cast("string"))


def json_field(name: str) -> Column:
    """A field of a JSON payload, as text: `a.b` is a field inside another, `.` all of it."""
    if name == ".":
        return fn.get_json_object(text(), "$")
    steps = "".join(f"['{step}']" for step in name.split("."))
    return fn.get_json_object(text(), "$" + steps)


def subject_of(key: str) -> str:
    """A key as tokens of a subject.

    >>> subject_of("new york"), subject_of("a..b")
    ('new_york', 'a._.b')
    """
    return re.sub(NOT_IN_SUBJECTS, "_", key)


def patterns(subject: str) -> list[str]:
    """The patterns of an option `subject`, which are separated by commas."""
    found = [pattern.strip() for pattern in subject.split(",")]
    for pattern in found:
        if not is_pattern(pattern):
            raise ValueError(f"not a subject pattern: {pattern!r}")
    return found


def expression(subject: str) -> str:
    """Patterns as a regular expression that Java and Python both read.

    >>> expression("weather.*.>")
    '^(?:weather\\\\.[^.]+\\\\..+)$'
    """
    return "^(?:" + "|".join(map(_expression, patterns(subject))) + ")$"


def _expression(pattern: str) -> str:
    wild = {"*": "[^.]+", ">": ".+"}
    tokens = pattern.split(".")
    # As everywhere in the broker, a wildcard that means all does not mean the broker's own.
    guard = f"(?!{OWN})" if tokens[0] in wild else ""
    return guard + r"\.".join(wild.get(token) or re.escape(token) for token in tokens)


def matching(messages: DataFrame, subject: str) -> DataFrame:
    """Messages on subjects that a pattern, or one of several, matches."""
    return messages.where(fn.col("subject").rlike(expression(subject)))


def between(messages: DataFrame, since: datetime | None, until: datetime | None) -> DataFrame:
    """Messages from `since` on and before `until`. Names the folders too, so that Spark opens only
    those hours."""
    stamp = fn.concat_ws("T", "date", "hour")
    if since is not None:
        messages = messages.where(fn.col("timestamp") >= fn.lit(since))
        messages = messages.where(stamp >= _folder(since))
    if until is not None:
        messages = messages.where(fn.col("timestamp") < fn.lit(until))
        messages = messages.where(stamp <= _folder(until))
    return messages


def _folder(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H")
