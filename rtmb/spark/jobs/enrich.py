"""The enrich job: messages joined with a table of Parquet or CSV, and published again.

A message gets the columns of the row whose key it names. The table is read anew for each batch, so
that a table that changes is followed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from rtmb.core.subjects import overlap
from rtmb.spark.jobs.broker import Broker
from rtmb.spark.jobs.files import Folder
from rtmb.spark.jobs.messages import json_field, patterns, text
from rtmb.spark.jobs.streams import triggered


@dataclass(frozen=True)
class Enrichment:
    """What to add to messages."""

    #: A folder or file of Parquet, or a CSV file whose first line names the columns.
    table: str
    #: What names a row: a field of the payload, `subject`, or `$2` for a subject's second token.
    field: str
    #: The column of the table that it is compared with.
    column: str
    #: Messages are on `<prefix>.<subject>`.
    prefix: str = "enriched"
    #: Whether a message without a row is passed on as it is, or left out.
    unmatched: str = "pass"

    @classmethod
    def on(
        cls, table: str, on: str, prefix: str = "enriched", unmatched: str = "pass"
    ) -> Enrichment:
        """From `field=column`, or one name for both.

        >>> Enrichment.on("t.csv", "$2=city").column
        'city'
        """
        name, found, column = on.partition("=")
        if not found and name.startswith("$"):
            raise ValueError(f"say which column of the table {name} is: {name}=COLUMN")
        return cls(table, name, column or name, prefix, unmatched)

    def key(self) -> Column:
        """What a message names as its row."""
        token = re.fullmatch(r"\$(\d+)", self.field)
        if token is not None:
            return fn.element_at(fn.split("subject", r"\."), int(token[1]))
        return fn.col("subject") if self.field == "subject" else json_field(self.field)

    @property
    def is_csv(self) -> bool:
        return self.table.endswith((".csv", ".csv.gz"))


def read(spark: SparkSession, wanted: Enrichment, schema: StructType | None = None) -> DataFrame:
    """The table as it is now, each key once; with a schema, that of the first time."""
    reader = spark.read if schema is None else spark.read.schema(schema)
    if wanted.is_csv:
        if schema is None:
            reader = reader.option("inferSchema", True)
        found = reader.option("header", True).csv(wanted.table)
    else:
        found = reader.parquet(wanted.table)
    if wanted.column not in found.columns:
        raise ValueError(
            f"{wanted.table} has no column {wanted.column}; there are {', '.join(found.columns)}"
        )
    return found.dropDuplicates([wanted.column])


def enriched(messages: DataFrame, table: DataFrame, wanted: Enrichment) -> DataFrame:
    """Messages with the columns of their rows in their payloads, on new subjects. What is no JSON
    object has nowhere to put them, and is passed on as it is."""
    row = fn.to_json(fn.struct(*(table[name] for name in table.columns)))
    rows = table.select(table[wanted.column].cast("string").alias("_key"), row.alias("_row"))
    whole = fn.trim(text())
    is_object = whole.startswith("{") & fn.get_json_object(whole, "$").isNotNull()
    begun = fn.regexp_replace(whole, r"\s*\}$", "")
    comma = fn.when(begun.rlike(r"^\{$"), "").otherwise(",")
    joined = fn.concat(begun, comma, fn.substring(fn.col("_row"), 2, 2**31 - 1))
    found = messages.join(
        fn.broadcast(rows),
        wanted.key() == fn.col("_key"),
        "left" if wanted.unmatched == "pass" else "inner",
    )
    # `{}` is a row whose columns are all null.
    fits = is_object & fn.col("_row").isNotNull() & (fn.col("_row") != "{}")
    return found.select(
        fn.concat_ws(".", fn.lit(wanted.prefix), "subject").alias("subject"),
        fn.when(fits, joined.cast("binary")).otherwise(fn.col("data")).alias("data"),
        "headers",
        "seq",
    )


def not_of_itself(subject: str, wanted: Enrichment) -> None:
    """Raise a `ValueError` when the job would take in what it publishes."""
    if any(overlap(f"{wanted.prefix}.>", p) for p in patterns(subject)):
        raise ValueError(f"{subject} takes in {wanted.prefix}.>: the job would enrich itself")


def start(
    spark: SparkSession,
    broker: Broker,
    subject: str,
    wanted: Enrichment,
    path: str,
    *,
    starting: str = "earliest",
    ending: str | None = None,
    every: str = "1 second",
    once: bool = False,
    on_data_loss: str = "skip",
    on_epoch_change: str = "earliest",
) -> StreamingQuery:
    """Begin, or go on where the last run stopped; `path` is where the checkpoint is kept."""
    not_of_itself(subject, wanted)
    folder = Folder(spark, path)
    schema = read(spark, wanted).schema
    messages = broker.stream(
        spark,
        subject=subject,
        startingPosition=starting,
        endingPosition=ending,
        onDataLoss=on_data_loss,
        onEpochChange=on_epoch_change,
        consumer=f"enrich {folder.name}",
    )

    def publish(batch: DataFrame, number: int) -> None:
        query = json.loads(folder.read("checkpoint/metadata"))["id"]
        found = enriched(batch, read(spark, wanted, schema), wanted)
        name = fn.concat_ws("/", fn.lit(f"{query}/{number}"), fn.col("seq").cast("string"))
        broker.publish(found.withColumn("id", name), idColumn="id")

    writer = (
        messages.writeStream.queryName(f"enrich {folder.name}")
        .foreachBatch(publish)
        .option("checkpointLocation", folder.full("checkpoint"))
    )
    return triggered(writer, every, once).start()
