"""The roll-up job: numbers of JSON payloads, by windows of time.

One row for each window and key: how many messages, how many a second, and for each field its least,
greatest and mean value and its quantiles. Windows go to Parquet once, when they are closed, and to
the broker whenever they change, on `rollup.<key>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from rtmb.core.subjects import overlap
from rtmb.spark.jobs.broker import ANY, Broker, Payloads
from rtmb.spark.jobs.files import Folder
from rtmb.spark.jobs.messages import NOT_IN_SUBJECTS, json_field, patterns
from rtmb.spark.jobs.streams import triggered

#: What the columns of a roll-up are called, besides the fields.
_OWN_COLUMNS = ("start", "end", "key", "count", "rate")

#: How times are written in messages.
STAMP = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"

_PARTS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


@dataclass(frozen=True)
class Rollup:
    """What to compute."""

    #: Fields of the payload: `temperature`, `wind.speed`, or `.` for a payload that is a number.
    fields: tuple[str, ...] = ()
    #: What rows belong together: `subject`, or a field of the payload.
    by: str = "subject"
    window: str = "1 minute"
    #: A window begins each so often; one after the other when not given.
    slide: str | None = None
    #: How late a message may come and still be counted.
    late: str = "30 seconds"
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.99)
    #: A field with the time that counts, as ISO 8601 or seconds since 1970; else when the broker
    #: got the message.
    time_field: str | None = None

    def __post_init__(self) -> None:
        seconds(self.window)
        seconds(self.late)
        if self.slide is not None and seconds(self.slide) > seconds(self.window):
            raise ValueError("slide must not be longer than the window: messages would be left out")
        names = [column_name(field) for field in self.fields]
        for name in names:
            if names.count(name) > 1 or name in _OWN_COLUMNS:
                raise ValueError(f"two columns would be called {name}")
        if not all(0 <= q <= 1 for q in self.quantiles):
            raise ValueError("quantiles are between 0 and 1")


def seconds(interval: str) -> float:
    """The length of an interval such as `10 seconds` or `1 minute`.

    >>> seconds("90 seconds"), seconds("1 minute"), seconds("2 hours")
    (90.0, 60.0, 7200.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(second|minute|hour|day)s?\s*", interval)
    if found is None or not float(found[1]):
        raise ValueError(f"not an interval such as '10 seconds' or '1 minute': {interval!r}")
    return float(found[1]) * _PARTS[found[2]]


def schema_of(fields: Sequence[str]) -> str:
    """The columns of payloads that have numbers where the fields are, or nothing.

    >>> schema_of(["t", "wind.speed", "wind.gust"])
    '`t` double, `wind` struct<`speed`: double, `gust`: double>'
    """
    tree: dict[str, Any] = {}
    for field in fields:
        *above, last = field.split(".")
        here = tree
        for step in above:
            here = here.setdefault(step, {})
        here[last] = None
    if not tree or "" in tree:
        raise ValueError("modes need a --field that is inside the payload, or a --schema")
    return ", ".join(f"`{name}` {_type(part)}" for name, part in tree.items())


def _type(part: dict[str, Any] | None) -> str:
    if part is None:
        return "double"
    return "struct<" + ", ".join(f"`{name}`: {_type(inner)}" for name, inner in part.items()) + ">"


def column_name(field: str) -> str:
    """The column of a field: `wind.speed` is `wind_speed`, a payload that is a number `value`."""
    return "value" if field == "." else field.replace(".", "_")


def quantile_name(quantile: float) -> str:
    """0.5 is `p50`, 0.999 `p99_9`."""
    return f"p{quantile * 100:.10g}".replace(".", "_")


def _number(field: str) -> Column:
    """A field as a number; null where it is none, NaN among them."""
    found = json_field(field).try_cast("double")
    return fn.when(~fn.isnan(found), found)


def _event_time(rollup: Rollup) -> Column:
    if rollup.time_field is None:
        return fn.col("timestamp")
    told = json_field(rollup.time_field)
    return fn.coalesce(
        fn.timestamp_micros((told.try_cast("double") * 1e6).cast("long")),
        told.try_cast("timestamp"),
    )


def _statistics(field: str, quantiles: Sequence[float]) -> Column:
    name = column_name(field)
    number = fn.col(name)
    parts = [
        fn.count(number).alias("count"),
        fn.min(number).alias("min"),
        fn.max(number).alias("max"),
        fn.avg(number).alias("mean"),
        *(fn.percentile_approx(number, q).alias(quantile_name(q)) for q in quantiles),
    ]
    return fn.struct(*parts).alias(name)


def windows(messages: DataFrame, rollup: Rollup) -> DataFrame:
    """The windows of a frame or a stream of messages."""
    key = fn.col("subject") if rollup.by == "subject" else json_field(rollup.by)
    length = fn.window("time", rollup.window, rollup.slide)
    numbers = [_number(field).alias(column_name(field)) for field in rollup.fields]
    counted = (
        messages.select(_event_time(rollup).alias("time"), key.alias("key"), *numbers)
        .where(fn.col("time").isNotNull() & fn.col("key").isNotNull())
        .withWatermark("time", rollup.late)
        .groupBy(length.alias("window"), "key")
        .agg(
            fn.count("*").alias("count"), *(_statistics(f, rollup.quantiles) for f in rollup.fields)
        )
    )
    return counted.select(
        fn.col("window.start").alias("start"),
        fn.col("window.end").alias("end"),
        "key",
        "count",
        (fn.col("count") / seconds(rollup.window)).alias("rate"),
        *(column_name(field) for field in rollup.fields),
    )


def as_messages(rolled: DataFrame, prefix: str = "rollup") -> DataFrame:
    """Windows as messages: JSON on `<prefix>.<key>`. What a subject cannot hold becomes `_`."""
    key = fn.regexp_replace("key", NOT_IN_SUBJECTS, "_")
    return rolled.select(
        fn.concat_ws(".", fn.lit(prefix), key).alias("subject"),
        fn.to_json(fn.struct("*"), {"timestampFormat": STAMP}).cast("binary").alias("data"),
        fn.concat_ws("/", "key", fn.unix_millis("start").cast("string")).alias("id"),
    )


def to_parquet(
    spark: SparkSession,
    messages: DataFrame,
    rollup: Rollup,
    path: str,
    *,
    every: str = "5 seconds",
    once: bool = False,
) -> StreamingQuery:
    """Write each window once, when no more messages can come to it, to `<path>/windows`."""
    folder = Folder(spark, path)
    writer = (
        windows(messages, rollup)
        .withColumn("date", fn.date_format("start", "yyyy-MM-dd"))
        .writeStream.queryName(f"rollup {folder.name} windows")
        .outputMode("append")
        .format("parquet")
        .partitionBy("date")
        .option("path", folder.full("windows"))
        .option("checkpointLocation", folder.full("checkpoint/windows"))
    )
    return triggered(writer, every, once).start()


def to_broker(
    spark: SparkSession,
    messages: DataFrame,
    rollup: Rollup,
    broker: Broker,
    path: str,
    *,
    prefix: str = "rollup",
    every: str = "5 seconds",
    once: bool = False,
) -> StreamingQuery:
    """Publish each window whenever it changes. A batch that a restart repeats is known by its ids,
    and the broker passes it on once."""
    folder = Folder(spark, path)

    def publish(changed: DataFrame, batch: int) -> None:
        # Spark made this name when the checkpoint was new: a roll-up begun anew has another.
        query = json.loads(folder.read("checkpoint/broker/metadata"))["id"]
        name = fn.concat_ws("/", fn.lit(f"{query}/{batch}"), "id")
        broker.publish(as_messages(changed, prefix).withColumn("id", name), idColumn="id")

    writer = (
        windows(messages, rollup)
        .writeStream.queryName(f"rollup {folder.name} broker")
        .outputMode("update")
        .foreachBatch(publish)
        .option("checkpointLocation", folder.full("checkpoint/broker"))
    )
    return triggered(writer, every, once).start()


def not_of_itself(subject: str, prefix: str | None) -> None:
    """Raise a `ValueError` when a roll-up would take in what it publishes."""
    if prefix is not None and any(overlap(f"{prefix}.>", p) for p in patterns(subject)):
        raise ValueError(f"{subject} takes in {prefix}.>: the roll-up would roll up itself")


def start(
    spark: SparkSession,
    broker: Broker,
    subject: str,
    rollup: Rollup,
    path: str,
    *,
    prefix: str | None = "rollup",
    starting: str = "earliest",
    ending: str | None = None,
    every: str = "5 seconds",
    once: bool = False,
    on_data_loss: str = "skip",
    on_epoch_change: str = "earliest",
    payloads: Payloads = ANY,
) -> list[StreamingQuery]:
    """Begin, or go on where the last run stopped. Without a prefix nothing is published."""
    not_of_itself(subject, prefix)
    name = Folder(spark, path).name

    def stream(consumer: str, payloads: Payloads) -> DataFrame:
        return broker.stream(
            spark,
            payloads,
            subject=subject,
            startingPosition=starting,
            endingPosition=ending,
            onDataLoss=on_data_loss,
            onEpochChange=on_epoch_change,
            consumer=f"rollup {name} {consumer}",
        )

    kept = stream("windows", payloads)
    queries = [to_parquet(spark, kept, rollup, path, every=every, once=once)]
    if prefix is not None:
        # Two queries read the same messages, and a dead letter is wanted once.
        if payloads.mode == "deadLetter":
            payloads = replace(payloads, mode="drop", dead_letter="")
        live = to_broker(
            spark,
            stream("broker", payloads),
            rollup,
            broker,
            path,
            prefix=prefix,
            every=every,
            once=once,
        )
        queries.append(live)
    return queries
