"""The alert job: a SQL condition over windows, told once when it begins and once when it ends.

Each window is judged when no more messages can come to it, so that what is told stays true. The
condition is about the columns of a roll-up. Which keys are in alert is kept beside the checkpoint,
an entry for each batch; a batch done again publishes the same messages with the same ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from rtmb.core.subjects import overlap
from rtmb.spark.jobs.broker import Broker
from rtmb.spark.jobs.files import Folder
from rtmb.spark.jobs.messages import patterns, subject_of
from rtmb.spark.jobs.rollup import STAMP, Rollup, windows
from rtmb.spark.jobs.streams import triggered

#: Entries that are kept: Spark repeats the last batch at most.
_KEPT = 10


@dataclass(frozen=True)
class Alert:
    """What to look out for."""

    #: It is a token of the subject.
    name: str
    #: SQL over the columns of a roll-up: `temperature.mean > 30 and count > 10`.
    when: str
    windows: Rollup = field(default_factory=Rollup)
    #: Messages are on `<prefix>.<name>.<key>`.
    prefix: str = "alert"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\s.*>]+", self.name):
            raise ValueError(f"an alert's name is one token of a subject, not {self.name!r}")


@dataclass(frozen=True)
class AlertMessage:
    """One message of an alert."""

    key: str
    #: `begins` or `ends`.
    state: str
    #: The start of the first window that met the condition.
    began: str
    #: The window that changed it, with all its columns.
    window: dict[str, Any]


def changes(
    rows: Iterable[tuple[bool, dict[str, Any]]], active: Mapping[str, str]
) -> tuple[list[AlertMessage], dict[str, str]]:
    """What is to be told of some windows, in order of time, and which keys are then in alert since
    when; `active` are those that were before. A window is whether the condition is met, and its
    columns."""
    told, now = [], dict(active)
    for met, window in rows:
        key = window["key"]
        if met and key not in now:
            now[key] = window["start"]
            told.append(AlertMessage(key, "begins", now[key], window))
        elif not met and key in now:
            told.append(AlertMessage(key, "ends", now.pop(key), window))
    return told, now


def start(
    spark: SparkSession,
    broker: Broker,
    subject: str,
    alert: Alert,
    path: str,
    *,
    starting: str = "earliest",
    ending: str | None = None,
    every: str = "5 seconds",
    once: bool = False,
    on_data_loss: str = "skip",
    on_epoch_change: str = "earliest",
) -> StreamingQuery:
    """Begin, or go on where the last run stopped."""
    not_of_itself(subject, alert)
    folder = Folder(spark, path)
    name = f"alert {alert.name}"
    messages = broker.stream(
        spark,
        subject=subject,
        startingPosition=starting,
        endingPosition=ending,
        onDataLoss=on_data_loss,
        onEpochChange=on_epoch_change,
        consumer=name,
    )
    return write(spark, messages, alert, broker, folder, every=every, once=once)


def not_of_itself(subject: str, alert: Alert) -> None:
    """Raise a `ValueError` when an alert would listen to what it publishes."""
    if any(overlap(f"{alert.prefix}.>", p) for p in patterns(subject)):
        raise ValueError(f"{subject} takes in {alert.prefix}.>: the alert would hear itself")


def write(
    spark: SparkSession,
    messages: DataFrame,
    alert: Alert,
    broker: Broker,
    folder: Folder,
    *,
    every: str = "5 seconds",
    once: bool = False,
) -> StreamingQuery:
    """Publish the alerts of a stream of messages."""
    judged = windows(messages, alert.windows).withColumn(
        "met", fn.coalesce(fn.expr(alert.when).cast("boolean"), fn.lit(False))
    )
    state = State(folder)

    def judge(closed: DataFrame, batch: int) -> None:
        if state.has(batch):
            return
        active = state.before(batch)
        told, now = changes(_rows(closed, active), active)
        if told:
            query = json.loads(folder.read("checkpoint/metadata"))["id"]
            broker.publish(as_messages(spark, told, alert, f"{query}/{batch}"), idColumn="id")
        state.write(batch, now)

    writer = (
        judged.writeStream.queryName(f"alert {alert.name}")
        .outputMode("append")
        .foreachBatch(judge)
        .option("checkpointLocation", folder.full("checkpoint"))
    )
    return triggered(writer, every, once).start()


def _rows(closed: DataFrame, active: Mapping[str, str]) -> list[tuple[bool, dict[str, Any]]]:
    """Of the closed windows those that can change something, in order of time."""
    columns = fn.struct(*(name for name in closed.columns if name != "met"))
    closed = closed.persist()
    try:
        met = {row.key for row in closed.where("met").select("key").distinct().collect()}
        wanted = closed.where(fn.col("key").isin(*met, *active)).orderBy("start", "key")
        as_json = fn.to_json(columns, {"timestampFormat": STAMP}).alias("window")
        found = wanted.select("met", as_json).collect() if met or active else []
    finally:
        closed.unpersist()
    return [(row.met, json.loads(row.window)) for row in found]


def as_messages(
    spark: SparkSession, told: Iterable[AlertMessage], alert: Alert, source: str
) -> DataFrame:
    """What is told as messages: JSON on `<prefix>.<name>.<key>`."""
    rows = []
    for number, one in enumerate(told):
        said = {
            "alert": alert.name,
            "state": one.state,
            "key": one.key,
            "began": one.began,
            "when": alert.when,
            "window": one.window,
        }
        subject = f"{alert.prefix}.{alert.name}.{subject_of(one.key)}"
        rows.append((subject, json.dumps(said), f"{source}/{number}"))
    return spark.createDataFrame(rows, "subject string, data string, id string").coalesce(1)


class State:
    """Which keys are in alert since when, after each of the last batches."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def _numbers(self) -> list[int]:
        names = self._folder.names("state")
        return sorted(int(n.removesuffix(".json")) for n in names if n.endswith(".json"))

    def has(self, batch: int) -> bool:
        return self._folder.exists(f"state/{batch}.json")

    def before(self, batch: int) -> dict[str, str]:
        """After the batch before this one."""
        earlier = [number for number in self._numbers() if number < batch]
        if not earlier:
            return {}
        found: dict[str, str] = json.loads(self._folder.read(f"state/{earlier[-1]}.json"))
        return found

    def write(self, batch: int, active: Mapping[str, str]) -> None:
        self._folder.write(f"state/{batch}.json", json.dumps(active))
        for number in self._numbers()[:-_KEPT]:
            self._folder.delete(f"state/{number}.json")
