"""A driver for the tests to kill: ``in.>`` to Parquet, and by way of the sink to ``out.…``.

    python -m rtmb.test.support.spark_driver MASTER SERVER FOLDER [now]

With ``now`` it does what is there and ends; else it goes on for ever. It prints each batch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rtmb.spark.jobs.session import session


def main(master: str, server: str, folder: str, mode: str = "") -> None:
    spark = session("test driver", master)
    trigger: dict[str, Any] = {"processingTime": "0 seconds"}
    if mode == "now":
        trigger = {"availableNow": True}

    def source(consumer: str) -> Any:
        reader = spark.readStream.format("rtmb").option("servers", server)
        reader = reader.option("subject", "in.>").option("consumer", consumer)
        return reader.option("minPartitions", "2").option("longPollMs", "50").load()

    def started(writer: Any, name: str) -> Any:
        writer = writer.option("checkpointLocation", str(Path(folder, f"{name}-checkpoint")))
        return writer.trigger(**trigger).start()

    to_parquet = source("parquet").writeStream.format("parquet")
    copies = source("copy").selectExpr("concat('out.', substring(subject, 4)) AS subject", "data")
    queries = [
        started(to_parquet.option("path", str(Path(folder, "parquet"))), "parquet"),
        started(copies.writeStream.format("rtmb").option("servers", server), "copy"),
    ]
    seen = [-1, -1]
    while any(query.isActive for query in queries):
        for i, query in enumerate(queries):
            query.awaitTermination(0.05)
            last = query.lastProgress
            if last and last["batchId"] > seen[i] and last["numInputRows"]:
                seen[i] = last["batchId"]
                print(f"batch {last['batchId']} of {i}: {last['numInputRows']}", flush=True)
    for query in queries:
        query.awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
