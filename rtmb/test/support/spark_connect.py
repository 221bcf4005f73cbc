"""A program for the tests: reads and writes by way of Spark Connect, with a server of its own.

    python -m rtmb.test.support.spark_connect SERVER FOLDER

It publishes typed rows, reads them in a batch, in SQL and as a stream, and prints what it got.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

SCHEMA = "station string, celsius double, _seq bigint"


def main(server: str, folder: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    rows = spark.createDataFrame([("ber", 21.5), ("muc", 19.0)], "station string, celsius double")
    (
        rows.coalesce(1).write.format("rtmb").mode("append")
        .options(servers=server, payload="json", subject="weather.{station}").save()
    )  # fmt: skip
    given = {"servers": server, "subject": "weather.>"}
    batch = spark.read.format("rtmb").options(**given).schema(SCHEMA).load().orderBy("_seq")
    spark.sql(
        f"CREATE TEMPORARY VIEW weather ({SCHEMA}) USING rtmb "
        f"OPTIONS (servers '{server}', subject 'weather.>')"
    )
    stream = spark.readStream.format("rtmb").options(**given).schema(SCHEMA).load()
    writer = stream.writeStream.format("parquet").option("path", f"{folder}/out")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()
    found = {
        "batch": [list(row) for row in batch.collect()],
        "sql": [list(row) for row in spark.sql("SELECT sum(celsius) FROM weather").collect()],
        "stream": spark.read.parquet(f"{folder}/out").count(),
    }
    print("found " + json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
