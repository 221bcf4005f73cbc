"""What the age of an archive costs: python -m benchmarks.archive

Makes archives of a day and of a year as a batch every ten seconds and ten first tokens leave them,
with real files of one message each, and times what is done with them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rtmb.spark.jobs import archive as job
from rtmb.spark.jobs.messages import placed
from rtmb.spark.jobs.session import session
from rtmb.spark.jobs.store import Archive
from rtmb.spark.jobs.streams import watch
from rtmb.spark.reading import SCHEMA

TOKENS = 10
BATCHES = 720  # two hours, which is what compaction leaves


def aged(spark: Any, folder: Path, days: int, some: Path, now: datetime) -> Archive:
    """An archive of so many days; `some` is the Parquet file that all its files are."""
    found = Archive(spark, str(folder))
    found.begin(">")
    content = some.read_bytes()

    def file(name: str) -> str:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return name

    def write(name: str, entry: dict[str, Any]) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(entry))

    for back in range(days):
        date = (now - timedelta(days=back)).date().isoformat()
        hours = [f"{hour:02}" for hour in range(24 if back else now.hour - 2)]
        files = [
            file(f"compact/date={date}/hour={hour}/token=t{token}/part.parquet")
            for hour in hours
            for token in range(TOKENS)
        ]
        told = {hour: {"time": 0.0, "batches": []} for hour in hours}
        write(f"days/{date}/24.json", {"files": files, "hours": told})
    newest = days * 8640
    for number in range(newest - BATCHES, newest):
        moment = now - timedelta(seconds=10 * (newest - number))
        at = f"live/batch={number}/date={moment:%Y-%m-%d}/hour={moment:%H}"
        files = [file(f"{at}/token=t{token}/part.parquet") for token in range(TOKENS)]
        entry = {"time": moment.timestamp(), "query": "q", "position": None, "files": files}
        write(f"batches/{number}.json", entry)
    return found


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def main() -> None:
    spark = session("benchmark", "local[2]")
    folder = Path(tempfile.mkdtemp(prefix="rtmb-archive-"))
    now = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
    row = ("t.a", b"{}", None, None, 1, now, "nats")
    frame = spark.createDataFrame([row], SCHEMA)
    try:
        placed(frame).drop("date", "hour", "token").coalesce(1).write.parquet(str(folder / "x"))
        (some,) = (folder / "x").glob("*.parquet")
        frame.write.parquet(str(folder / "input"))

        def start(found: Archive) -> None:
            stream = spark.readStream.schema(SCHEMA).parquet(str(folder / "input"))
            query = job.write(found, stream, once=True)
            watch([job.job(found, query, compact_every=0)])

        hour = now - timedelta(hours=1)
        steps: dict[str, Callable[[Archive], object]] = {
            "start and a batch": start,
            "what there is of an hour": lambda found: found.snapshot(hour),
            "count of an hour": lambda found: found.messages(hour).count(),
            "compact": lambda found: found.compact(now=now.timestamp()),
            "clean": lambda found: found.clean(now=now.timestamp() + 7200),
        }
        ages = {"warm-up": 1, "a day": 1, "a year": 365}
        archives = {n: aged(spark, folder / n, days, some, now) for n, days in ages.items()}
        for step, do in steps.items():
            took = {name: timed(partial(do, found)) for name, found in archives.items()}
            told = ", ".join(f"{name} {took[name]:6.2f} s" for name in ("a day", "a year"))
            print(f"{step:28} {told}", flush=True)
    finally:
        shutil.rmtree(folder)
        spark.stop()


if __name__ == "__main__":
    main()
