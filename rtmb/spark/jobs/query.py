"""SQL over the archive and the live journal as one table, and what becomes of the answer."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from itertools import islice
from types import NoneType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from rtmb.spark.jobs import charts
from rtmb.spark.jobs.broker import Broker
from rtmb.spark.jobs.messages import EVERYTHING, between, placed, text
from rtmb.spark.jobs.store import Archive

#: The name of the table.
TABLE = "messages"


def messages(
    spark: SparkSession,
    archive: Archive | None = None,
    broker: Broker | None = None,
    *,
    subject: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    on_data_loss: str = "fail",
) -> DataFrame:
    """What is in the archive, and what is in the journal and not in the archive yet.

    The journal is read from where the archive ends, and with its subjects unless others are given.
    """
    if archive is None and broker is None:
        raise ValueError("nothing to read: give an archive, a broker, or both")
    frames = []
    position = None
    if archive is not None:
        snapshot = archive.snapshot(since, until)
        frames.append(archive.messages(since, until, snapshot))
        subject = subject or archive.subject
        position = snapshot.position
    if broker is not None:
        frames.append(_journal(spark, broker, subject, position, since, until, on_data_loss))
    found = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    return found.withColumn("text", text())


def _journal(
    spark: SparkSession,
    broker: Broker,
    subject: str | None,
    position: dict[str, Any] | None,
    since: datetime | None,
    until: datetime | None,
    on_data_loss: str,
) -> DataFrame:
    """What the journal has from a position on; all it has where the position is of another life of
    the broker, of which then nothing is in the archive."""
    options = journal_options(subject, on_data_loss)
    if position is not None and position["epoch"] == broker.bounds()["epoch"]:
        options["startingPosition"] = position["seq"]
    return between(placed(broker.read(spark, **options)), since, until)


def journal_options(subject: str | None, on_data_loss: str) -> dict[str, Any]:
    """How all of the journal is read."""
    return {
        "subject": subject or EVERYTHING,
        "startingPosition": "earliest",
        "onDataLoss": on_data_loss,
    }


def show(answer: DataFrame, most: int = 50, console: Console | None = None) -> None:
    """Print an answer as a table."""
    console = console or Console()
    rows = answer.take(most + 1)
    table = Table(header_style="bold", row_styles=["", "dim"])
    for name, kind in answer.dtypes:
        numeric = kind.startswith(("bigint", "int", "double", "float", "decimal", "smallint"))
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows[:most]:
        table.add_row(*map(shown, row))
    console.print(table)
    if len(rows) > most:
        console.print(f"and more; --limit shows more than {most}", style="dim")


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "–"
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex(" ")
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, datetime):
        # Spark gives moments in this machine's zone, and does not say so.
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    return str(value)


def to_csv(answer: DataFrame, path: str) -> None:
    """Write one CSV file, on this machine; `-` is standard output."""
    import csv

    def write(file: Any) -> None:
        writer = csv.writer(file)
        writer.writerow(answer.columns)
        writer.writerows([_plain(v) for v in row] for row in answer.toLocalIterator(True))

    if path == "-":
        write(sys.stdout)
        return
    with open(path, "w", newline="", encoding="utf-8") as file:
        write(file)


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return shown(value)
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def to_json(answer: DataFrame) -> None:
    """Print each row as a line of JSON."""
    for row in answer.toLocalIterator(True):
        print(json.dumps({n: _as_json(v) for n, v in row.asDict(recursive=True).items()}))


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _as_json(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_as_json(part) for part in value]
    plain = _plain(value)
    return plain if isinstance(plain, (str, int, float, bool, NoneType)) else str(plain)


def to_parquet(answer: DataFrame, path: str) -> None:
    """Write a folder of Parquet, wherever Spark can; it must be new."""
    answer.write.parquet(path)


def to_chart(answer: DataFrame, path: str, title: str = "", most: int = 10_000) -> None:
    """Draw the first column against those that are numbers."""
    rows = [tuple(row) for row in islice(answer.toLocalIterator(True), most)]
    charts.save(charts.chart_of(answer.columns, rows, title), path)
