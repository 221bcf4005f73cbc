"""The report job: one page of what happened in a period. Here is the arithmetic; `page` draws."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as fn

from rtmb.core.subjects import OWN
from rtmb.spark.jobs.charts import spread as width_of
from rtmb.spark.jobs.messages import json_field
from rtmb.spark.reading import GAP_SUBJECT

EVENTS = "!system/events/"
#: Subjects that have a line of their own; the rest are one.
_LINES = 6
#: Rows of the tables.
_ROWS = 15
#: Milliseconds; what is faster is counted with it.
_FINEST = 0.125
_OTHERS = "others"
_INBOX = "_INBOX."


@dataclass
class Traffic:
    """Messages of something: a subject, a door."""

    name: str
    messages: int
    bytes: int
    door: str = ""
    #: Messages in the busiest bucket, a second.
    peak: float = 0.0


@dataclass
class Trouble:
    """A client that did not keep up."""

    client: str
    door: str
    slow: int = 0
    dropped: int = 0
    policies: set[str] = field(default_factory=set)
    subjects: set[str] = field(default_factory=set)
    last: float = 0.0


@dataclass
class Latency:
    """How long something took, in milliseconds."""

    name: str
    count: int
    p50: float
    p90: float
    p99: float
    most: float
    #: The upper ends of buckets, and how many were in each.
    spread: list[tuple[float, int]] = field(default_factory=list)


@dataclass
class Facts:
    """All that the page shows."""

    since: datetime
    until: datetime
    messages: int = 0
    bytes: int = 0
    subjects: list[Traffic] = field(default_factory=list)
    different: int = 0
    doors: list[Traffic] = field(default_factory=list)
    talkers: list[Traffic] = field(default_factory=list)
    bucket: timedelta = timedelta(seconds=1)
    times: list[datetime] = field(default_factory=list)
    by_subject: dict[str, list[float]] = field(default_factory=dict)
    by_door: dict[str, list[float]] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    drops: list[float] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)
    #: What the journal lost before it was archived.
    gaps: list[dict[str, Any]] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return max((self.until - self.since).total_seconds(), 1e-3)


def gather(
    messages: DataFrame,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    sent_field: str | None = None,
) -> Facts:
    """Everything about the messages of a period; of all there are, when none is given.

    `sent_field` names a field of the payload, or a header, with the time at which a message was
    sent: then the way to the broker is measured too.
    """
    own = fn.col("subject").startswith(OWN)
    slim = messages.select(
        "subject", "door", "reply", "data", fn.unix_micros("timestamp").alias("micros"),
        fn.length("data").alias("size"),
        (_sent(messages, sent_field) if sent_field else fn.lit(None).cast("double")).alias("sent"),
    ).persist()  # fmt: skip
    try:
        begun, ended = _period(slim, since, until)
        facts = Facts(begun, ended, bucket=width_of(begun, ended))
        traffic = slim.where(~own)
        # Each answer has a subject of its own: as one they say more.
        inbox = fn.col("subject").startswith(_INBOX)
        named = fn.when(inbox, _INBOX + ">").otherwise(fn.col("subject"))
        folded = traffic.withColumn("subject", named)
        _count(facts, folded)
        _over_time(facts, folded)
        _events(facts, slim.where(fn.col("subject").startswith(EVENTS)))
        gaps = slim.where(fn.col("subject") == GAP_SUBJECT).limit(_ROWS).collect()
        facts.gaps = [json.loads(bytes(row.data)) for row in gaps]
        facts.latencies = _latencies(traffic, sent_field)
        return facts
    finally:
        slim.unpersist()


def _period(
    slim: DataFrame, since: datetime | None, until: datetime | None
) -> tuple[datetime, datetime]:
    row = slim.agg(fn.min("micros"), fn.max("micros")).first()
    low, high = (row[0], row[1]) if row is not None and row[0] is not None else (0, 0)
    found = (datetime.fromtimestamp(t / 1e6, UTC) for t in (low, high))
    begun, ended = next(found), next(found)
    return since or begun, until or max(ended, begun + timedelta(seconds=1))


def _count(facts: Facts, traffic: DataFrame) -> None:
    counts = [fn.count("*").alias("messages"), fn.sum("size").alias("bytes")]
    by_both = traffic.groupBy("subject", "door").agg(*counts).persist()
    sums = [fn.sum("messages").alias("messages"), fn.sum("bytes").alias("bytes")]

    def top(frame: DataFrame, order: str) -> list[Row]:
        return frame.orderBy(fn.desc(order), *frame.columns[:1]).limit(_ROWS).collect()

    by_subject = by_both.groupBy("subject").agg(
        *sums, fn.array_sort(fn.collect_set("door")).alias("doors")
    )
    facts.different = by_subject.count()
    facts.subjects = [
        Traffic(r.subject, r.messages, r.bytes, ", ".join(r.doors))
        for r in top(by_subject, "messages")
    ]
    facts.talkers = [Traffic(r.subject, r.messages, r.bytes, r.door) for r in top(by_both, "bytes")]
    facts.doors = [
        Traffic(r.door, r.messages, r.bytes)
        for r in top(by_both.groupBy("door").agg(*sums), "messages")
    ]
    by_both.unpersist()
    facts.messages = sum(t.messages for t in facts.doors)
    facts.bytes = sum(t.bytes for t in facts.doors)


def _over_time(facts: Facts, traffic: DataFrame) -> None:
    """Rates in buckets: by the busiest subjects, by door; and each subject's busiest bucket."""
    width = facts.bucket.total_seconds()
    first = int(facts.since.timestamp() // width)
    count = max(1, int(-(-facts.until.timestamp() // width)) - first)
    facts.times = [datetime.fromtimestamp((first + i) * width, UTC) for i in range(count)]
    known = [t.name for t in facts.subjects]
    shown = fn.when(fn.col("subject").isin(known), fn.col("subject")).otherwise(_OTHERS)
    bucket = fn.floor(fn.col("micros") / int(width * 1e6)) - first
    rows = traffic.groupBy(bucket.alias("bucket"), shown.alias("name"), "door").count().collect()
    lines = {t.name for t in facts.subjects[:_LINES]}
    by_subject: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * count)
    by_door: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * count)
    each: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * count)
    for row in rows:
        if 0 <= row.bucket < count:
            rate = row["count"] / width
            by_subject[row.name if row.name in lines else _OTHERS][row.bucket] += rate
            by_door[row.door][row.bucket] += rate
            each[row.name][row.bucket] += rate
    order = [*(t.name for t in facts.subjects[:_LINES]), _OTHERS]
    facts.by_subject = {name: by_subject[name] for name in order if name in by_subject}
    facts.by_door = {t.name: by_door[t.name] for t in facts.doors}
    for subject in facts.subjects:
        subject.peak = max(each[subject.name], default=0.0)


def _events(facts: Facts, events: DataFrame) -> None:
    """Who did not keep up, and how often each other thing happened."""
    kind = fn.substring_index("subject", "/", -1).alias("kind")
    facts.events = {r.kind: r["count"] for r in events.groupBy(kind).count().collect()}
    told = events.where(kind.isin("slow_consumer", "drop")).select(
        kind, "micros",
        *(json_field(name).alias(name) for name in ("client", "door", "policy", "subject")),
        json_field("count").cast("long").alias("dropped"),
        fn.from_json(json_field("subjects"), "array<string>").alias("subjects"),
    )  # fmt: skip
    by_client: dict[str, Trouble] = {}
    width, first = facts.bucket.total_seconds(), facts.times[0].timestamp()
    facts.drops = [0.0] * len(facts.times)
    for row in told.toLocalIterator():
        trouble = by_client.setdefault(row.client, Trouble(row.client or "?", row.door or "?"))
        trouble.last = max(trouble.last, row.micros / 1e6)
        if row.kind == "drop":
            trouble.dropped += row.dropped or 0
            trouble.subjects.update(row.subjects or ())
            bucket = int((row.micros / 1e6 - first) // width)
            if 0 <= bucket < len(facts.drops):
                facts.drops[bucket] += row.dropped or 0
        else:
            trouble.slow += 1
            trouble.policies.update(filter(None, [row.policy]))
            trouble.subjects.update(filter(None, [row.subject]))
    facts.troubles = sorted(by_client.values(), key=lambda t: (-t.dropped, -t.slow, t.client))


# Latency


def _sent(messages: DataFrame, name: str) -> Column:
    """The time at which a message says it was sent, in seconds: a field or a header, as seconds or
    milliseconds since 1970 or as ISO 8601."""
    told = fn.coalesce(fn.element_at("headers", name), json_field(name))
    number = told.try_cast("double")
    number = fn.when(number > 1e11, number / 1000).otherwise(number)
    moment = fn.unix_micros(told.try_cast("timestamp")) / 1e6
    return fn.coalesce(number, moment)


def _latencies(traffic: DataFrame, sent_field: str | None) -> list[Latency]:
    found = []
    if sent_field:
        way = (fn.col("micros") / 1e6 - fn.col("sent")) * 1000
        found.append(
            _latency(f"publisher to broker ({sent_field})", traffic.select(way.alias("ms")))
        )
    asked = traffic.where(fn.col("reply").isNotNull()).select(
        "reply", fn.col("micros").alias("asked")
    )
    # A request may have many answers; the first is the one that was waited for.
    answers = traffic.groupBy(fn.col("subject").alias("reply")).agg(
        fn.min("micros").alias("answered")
    )
    took = (fn.col("answered") - fn.col("asked")) / 1000
    pairs = asked.join(answers, "reply").select(took.alias("ms"))
    found.append(_latency("request to answer", pairs))
    return [latency for latency in found if latency is not None]


def _latency(name: str, times: DataFrame) -> Latency | None:
    times = times.where(fn.col("ms").isNotNull() & (fn.col("ms") >= 0)).persist()
    points = [fn.percentile_approx("ms", [0.5, 0.9, 0.99]).alias("points")]
    row = times.agg(fn.count("*").alias("count"), fn.max("ms").alias("most"), *points).first()
    if row is None or not row["count"]:
        times.unpersist()
        return None
    step = fn.floor(fn.log2(fn.greatest("ms", fn.lit(_FINEST))))
    buckets = times.groupBy(step.alias("step")).count().orderBy("step").collect()
    times.unpersist()
    counts = {int(b.step): int(b["count"]) for b in buckets}
    steps = range(min(counts), max(counts) + 1)
    p50, p90, p99 = row.points
    spread = [(2.0 ** (s + 1), counts.get(s, 0)) for s in steps]
    return Latency(name, row["count"], p50, p90, p99, row.most, spread)
