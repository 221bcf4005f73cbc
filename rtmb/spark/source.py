"""The source: the journal as a table, in batches and as a stream.

An offset is ``{"epoch", "seq"}``: the number of the next message to read, and the life of the
broker that it belongs to. What is lost is told as it was asked for (`onDataLoss`,
`onEpochChange`), never passed over.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StringType, StructType

from rtmb.spark import options
from rtmb.spark.options import OptionError, SparkOptions
from rtmb.spark.reading import (
    ARROW_SCHEMA,
    SCHEMA,
    DataLossError,
    Offset,
    Range,
    Reading,
    overwritten,
    restarted,
    sample,
    split,
)
from rtmb.spark.transport import BrokerError, path
from rtmb.spark.typed import Shape, columns_of, infer

#: A position moves on without a message that is wanted once this part of the journal has passed.
_PASSED = 4


class RtmbDataSource(DataSource):
    """``format("rtmb")``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "rtmb"

    def schema(self) -> str:
        given = self._source_options()
        payload = given["payload"]
        if given["schema"] or payload in ("json", "msgpack"):
            if not given["schema"]:
                raise OptionError(
                    f"payload {payload} needs columns: .schema(…), or the option schema, "
                    "which may be infer"
                )
            if given["schema"] == "infer":
                given["schema"] = infer(payload, sample(given))
            return columns_of(given)
        return SCHEMA.replace("data binary", "data string") if payload == "text" else SCHEMA

    def _source_options(self) -> SparkOptions:
        given = options.read(self._given, options.SOURCE)
        if given["schema"] and given["payload"] in ("binary", "text"):
            raise OptionError(f"payload {given['payload']} has columns of its own; no schema")
        return given

    def _reading(self, schema: StructType) -> tuple[SparkOptions, Shape | None]:
        """The options, and how payloads become columns if they do."""
        given = self._source_options()
        payload = given["payload"]
        own = [(f.name, f.dataType) for f in from_arrow_schema(ARROW_SCHEMA)]
        found = [(f.name, f.dataType) for f in schema.fields]
        if payload in ("", "binary") and found == own:
            return given, None
        own[1] = ("data", StringType())
        if payload in ("", "text") and found == own:
            given["payload"] = "text"
            return given, None
        if payload in ("binary", "text"):
            raise OptionError(f"payload {payload} has columns of its own, so give no schema")
        return given, Shape(schema, given)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(*self._reading(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(*self._reading(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rtmb.spark.sink import BatchWriter

        if overwrite:
            raise OptionError('a broker has nothing to overwrite: use mode("append")')
        return BatchWriter(options.read(self._given, options.SINK), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from rtmb.spark.sink import StreamWriter

        return StreamWriter(options.read(self._given, options.SINK), schema)


class BatchReader(Reading, DataSourceReader):
    """``spark.read``: from one position to another, as they are when the query is planned."""

    def partitions(self) -> list[InputPartition]:
        start = self.position(self.options["startingPosition"])
        end = self.position(self.options["endingPosition"])
        if start["epoch"] != end["epoch"]:
            raise DataLossError("the broker was restarted while the query was planned: try again")
        if start["seq"] >= end["seq"]:
            return [Range(end["epoch"], end["seq"], end["seq"])]
        least = self.options["minPartitions"]
        return list(split(end["epoch"], start["seq"], end["seq"], least))


class StreamReader(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``. It lives in one process of the driver, for as long as the query."""

    def __init__(self, given: SparkOptions, shape: Shape | None = None) -> None:
        super().__init__(given, shape)
        if not given["consumer"]:
            given["consumer"] = f"spark-{uuid.uuid4().hex[:8]}"
        self._initial: Offset | None = None
        self._began = False
        self._target_offset: Offset | None = None
        #: Up to here, of which epoch, there was nothing wanted: no need to look again.
        self._clear: Offset = {"epoch": "", "seq": 0}
        #: Where the newest batch ends, and whether that is the ending position.
        self._end: Offset | None = None
        self._ended = False
        #: When the last batch was given out.
        self._last = time.monotonic()

    def initialOffset(self) -> Offset:
        # Spark asks twice and must hear the same.
        if self._initial is None:
            self._initial = self.position(self.options["startingPosition"])
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options["maxMessagesPerTrigger"])

    def prepareForTriggerAvailableNow(self) -> None:
        self._target_offset = self.position("latest")

    def reportLatestOffset(self) -> Offset:
        """Where the journal ends and how far this query is behind: `latestOffset` in progress."""
        seen = None if self._end is None else self._seen(self._end)
        found = self.client.json("GET", path("journal", "position", at="latest", behind=seen))
        told = {
            name: found[name] for name in ("epoch", "seq", "lag", "lag_seconds") if name in found
        }
        return told | ({"ended": True} if self._ended else {})

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        found = self._latest_offset(start, limit)
        self._end = found
        return found

    def _latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        if not self._began:
            self._began = True
            if start == self._initial:
                # Spark writes down where batches end, not where the first one began. An empty
                # first batch makes that known to a restarted query too.
                return start
        try:
            return self._latest(start, limit)
        except BrokerError as error:
            if error.status != 409:
                raise
            if self.options["onEpochChange"] == "fail":
                raise DataLossError(restarted(start["epoch"], start["seq"])) from None
            new = {"epoch": error.facts["epoch"], "seq": 1}
            end: int = self._measure(new, limit)["to"]
            if self._target_offset is not None:
                if self._target_offset["epoch"] != new["epoch"]:  # all that it has now
                    self._target_offset = self.position("latest")
                end = min(end, self._target_offset["seq"])
            return {"epoch": new["epoch"], "seq": end}

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        self._lease(start)
        target = self._target_offset
        now, least = time.monotonic(), self.options["minMessagesPerTrigger"]
        due = self._last + self.options["maxTriggerDelay"]
        if target is not None or isinstance(limit, ReadAllAvailable) or now >= due:
            least = 1
        wait = 0.0 if target is not None else self.options["longPollMs"] / 1000
        if least > 1:
            wait = min(wait, due - now)
        begin = start
        if self._clear["epoch"] == start["epoch"] and self._clear["seq"] > start["seq"]:
            begin = self._clear
        found = self._measure(begin, limit, least, wait)
        ending = self._ending()  # asked for later than what is there, it can leave out none of it
        if start["seq"] < found["first"] and self.options["onDataLoss"] == "fail":
            raise DataLossError(overwritten(start["seq"], found["first"]))
        end: int = found["to"]
        if target is not None:
            end = max(start["seq"], min(end, target["seq"]))
        if ending is not None:
            self._ended = end >= ending
            end = max(start["seq"], min(end, ending))
        passed = (end - start["seq"]) * _PASSED > found["next"] - found["first"]
        if found["messages"]:
            give = found["enough"] or self._ended or time.monotonic() >= due
        else:  # or a filter that matches seldom would be left behind by the ring
            give = passed or self._ended or target is not None
            self._clear = {"epoch": start["epoch"], "seq": found["to"]}
        if not give or end == start["seq"]:
            return start
        self._last = time.monotonic()
        return {"epoch": start["epoch"], "seq": end}

    def _ending(self) -> int | None:
        """The number of the first message that is not to be read, once there is one. A time that
        has not come yet ends nothing."""
        wanted = self.options["endingPosition"]
        if not isinstance(wanted, float):
            return wanted if isinstance(wanted, int) else None
        over = time.time() >= wanted
        found = self.client.json("GET", path("journal", "position", time=wanted))
        return int(found["seq"]) if over or found["seq"] < found["next"] else None

    def _measure(
        self, start: Offset, limit: ReadLimit, least: int = 1, wait: float = 0.0
    ) -> dict[str, Any]:
        """How far the limits let this batch go; waits for something to come."""
        free = isinstance(limit, ReadAllAvailable)
        messages = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found: dict[str, Any] = self.client.json(
            "GET",
            path(
                "journal",
                "wait",
                epoch=start["epoch"],
                from_=start["seq"],
                subject=self.options["subject"],
                messages=messages,
                bytes=None if free else self.options["maxBytesPerTrigger"],
                least=least,
                timeout=wait or None,
            ),
            patience=wait,
        )
        return found

    def _seen(self, offset: Offset) -> int:
        """How far the journal is known from an offset on: where nothing is wanted, there is nothing
        to be behind with."""
        clear = self._clear if self._clear["epoch"] == offset["epoch"] else offset
        return max(int(offset["seq"]), int(clear["seq"]))

    def _lease(self, offset: Offset) -> None:
        """Say how far this query has come, so that others see if it falls behind."""
        self.client.json(
            "PUT",
            path("journal", "leases", self.options["consumer"], epoch=offset["epoch"]),
            {
                "position": self._seen(offset),
                "ttl": self.options["leaseTtl"],
                "subjects": self.options["subject"],
            },
        )

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        ranges: list[InputPartition] = []
        begin = start["seq"]
        if start["epoch"] != end["epoch"]:
            ranges.append(Range(start["epoch"], 0, 0, old=begin))
            begin = 1
        if begin < end["seq"]:
            ranges += split(end["epoch"], begin, end["seq"], self.options["minPartitions"])
        return ranges

    def commit(self, end: Offset) -> None:
        try:
            self._lease(end)
        except BrokerError as error:
            if error.status != 409:  # that of a restarted broker is told by `latestOffset`
                raise
