"""Tests for `rtmb.spark.typed`, `.outgoing` and `.deadletters`: messages as typed rows, and rows as
messages."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.support.processes import ServerProcess, need
from rtmb.test.support.spark_session import PATIENCE, JournalBroker, SparkCase, until

try:
    from pyspark.sql import types as spark

    from rtmb.spark import options, typed
    from rtmb.spark.options import OptionError
    from rtmb.spark.outgoing import Outgoing
    from rtmb.spark.reading import ARROW_SCHEMA
except ImportError:  # `need` says what is missing
    pass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

pytestmark = pytest.mark.slow


def messages(*payloads: bytes) -> pa.RecordBatch:
    """Payloads as the journal has them."""
    rows = {
        "subject": [f"s.{i}" for i in range(len(payloads))],
        "data": list(payloads),
        "headers": [None] * len(payloads),
        "reply": [None] * len(payloads),
        "seq": list(range(1, len(payloads) + 1)),
        "timestamp": [datetime(2030, 1, 1, tzinfo=UTC)] * len(payloads),
        "door": ["nats"] * len(payloads),
    }
    return pa.RecordBatch.from_pydict(rows, schema=ARROW_SCHEMA)


class NoSessionCase(SynchronousTestCase):
    def setUp(self) -> None:
        need(self, "rtmb.spark.typed" in sys.modules, "no pyspark")


class ShapeTests(NoSessionCase):
    """Payloads to rows, without Spark."""

    def shape(self, *columns: Any, **given: str) -> typed.Shape:
        fields = [spark.StructField(*column) for column in columns]
        return typed.Shape(spark.StructType(fields), options.read(given, options.SOURCE))

    def rows(self, shape: typed.Shape, *payloads: bytes) -> tuple[list[Any], list[tuple[int, str]]]:
        found, bad = shape.rows(messages(*payloads))
        found.validate(full=True)
        return found.to_pylist(), [(b.row, b.reason) for b in bad]

    def test_every_kind(self) -> None:
        wind = spark.StructType(
            [
                spark.StructField("speed", spark.DoubleType()),
                spark.StructField("from", spark.StringType()),
            ]
        )
        columns = {
            "b": (spark.ByteType(), -128, -128),
            "s": (spark.ShortType(), 1, 1),
            "i": (spark.IntegerType(), 2**31 - 1, 2**31 - 1),
            "l": (spark.LongType(), -(2**63), -(2**63)),
            "f": (spark.FloatType(), 0.5, 0.5),
            "d": (spark.DoubleType(), 7, 7.0),
            "t": (spark.StringType(), "é", "é"),
            "o": (spark.BooleanType(), True, True),
            "n": (spark.DecimalType(10, 2), "12.50", Decimal("12.50")),
            "y": (spark.DateType(), "2030-01-02", date(2030, 1, 2)),
            "m": (
                spark.TimestampType(),
                "2030-01-02T03:04:05.678901+02:00",
                datetime(2030, 1, 2, 1, 4, 5, 678901, tzinfo=UTC),
            ),
            "x": (spark.BinaryType(), "/w==", b"\xff"),
            "a": (spark.ArrayType(spark.LongType()), [1, None], [1, None]),
            "w": (wind, {"speed": 2}, {"speed": 2.0, "from": None}),
            "aw": (
                spark.ArrayType(wind),
                [{"from": "N"}, None],
                [{"speed": None, "from": "N"}, None],
            ),
            "aa": (
                spark.ArrayType(spark.ArrayType(spark.StringType())), [["x"], []], [["x"], []],
            ),
            "k": (spark.MapType(spark.StringType(), spark.LongType()), {"p": 1}, [("p", 1)]),
            "kw": (
                spark.MapType(spark.StringType(), wind),
                {"p": {"speed": 1}},
                [("p", {"speed": 1.0, "from": None})],
            ),
        }  # fmt: skip
        shape = self.shape(*[(name, kind) for name, (kind, _, _) in columns.items()])
        whole = {name: given for name, (_, given, _) in columns.items()}
        found, bad = self.rows(shape, json.dumps(whole).encode(), b"{}", b'{"more": 1}')
        self.assertEqual(bad, [])
        self.assertEqual(found[0], {name: wanted for name, (_, _, wanted) in columns.items()})
        self.assertEqual(found[1:], [dict.fromkeys(columns)] * 2)

    def test_what_does_not_fit(self) -> None:
        """Each is told of with the place, and the others are rows all the same."""
        shape = self.shape(
            ("n", spark.ByteType()),
            ("d", spark.DecimalType(4, 2)),
            ("must", spark.StringType(), False),
            ("_error", spark.StringType()),
            ("_seq", spark.LongType()),
            mode="drop",
        )
        good = b'{"n": 1, "d": "1.5", "must": "x"}'
        wrong = (
            (b"not JSON", "malformed"),
            (b"\xff", ""),
            (b"", "truncated"),
            (b"[1]", "Expected `object`, got `array`"),
            (b'{"must": "x", "n": 128}', "<= 127 - at `$.n`"),
            (b'{"must": "x", "n": "1"}', "Expected `int | null`, got `str` - at `$.n`"),
            (b'{"must": "x", "d": "123456"}', "does not fit"),
            (b'{"n": 1}', "missing required field `must`"),
            (b"[" * 5000, ""),
        )
        found, bad = self.rows(shape, good, *(payload for payload, _ in wrong), good)
        self.assertEqual(sorted(row for row, _ in bad), list(range(1, len(wrong) + 1)))
        reasons = dict(bad)
        for row, (_, pattern) in enumerate(wrong, 1):
            self.assertIn(pattern, reasons[row])
            self.assertEqual((found[row]["n"], found[row]["_error"]), (None, reasons[row]))
        self.assertEqual((found[0]["n"], found[0]["_error"], found[-1]["_seq"]), (1, None, 11))

    def test_msgpack(self) -> None:
        shape = self.shape(("n", spark.LongType()), ("b", spark.BinaryType()), payload="msgpack")
        found, bad = self.rows(shape, msgspec.msgpack.encode({"n": 7, "b": b"\xff"}), b"\xc1")
        self.assertEqual((found[0], [row for row, _ in bad]), ({"n": 7, "b": b"\xff"}, [1]))

    def test_wrong_columns(self) -> None:
        for columns, pattern in (
            ((("_sequence", spark.LongType()), ("a", spark.LongType())), "did you mean _seq"),
            ((("_seq", spark.StringType()), ("a", spark.LongType())), "_seq is bigint"),
            ((("_seq", spark.LongType()),), "no column for the payload"),
            ((("a", spark.LongType(), False),), "column a may not be null"),
            ((("a", spark.CalendarIntervalType()),), "column a: no payload becomes interval"),
        ):
            error = self.assertRaises(OptionError, self.shape, *columns)
            self.assertRegex(str(error), pattern)

    def test_infer(self) -> None:
        payloads = [
            b'{"s": "x", "n": 1, "w": {"v": 1, "q": null}, "l": [1, 2.5], "e": {}, "o": null}',
            b'{"n": 2.5, "w": {"u": "N"}, "l": [], "odd `name`": true, "s": 7, "_x": 1}',
            b"[]", b"junk",
        ]  # fmt: skip
        self.assertEqual(
            typed.infer("json", payloads),
            "`s` string, `n` double, `w` struct<`v`: bigint, `q`: string, `u`: string>, "
            "`l` array<double>, `e` map<string, string>, `o` string, `odd ``name``` boolean",
        )
        self.assertRaises(OptionError, typed.infer, "json", [b"1"])


class OutgoingTests(NoSessionCase):
    """Rows to messages, without Spark."""

    def outgoing(self, schema: pa.Schema, **given: str) -> Outgoing:
        from pyspark.sql.pandas.types import from_arrow_schema

        return Outgoing(options.read(given, options.SINK), from_arrow_schema(schema))

    def test_any_columns(self) -> None:
        batch = pa.RecordBatch.from_pydict(
            {
                "station": ["ber", "muc"], "celsius": [1.5, float("nan")],
                "at": pa.array([datetime(2030, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
                "n": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
                "headers": pa.array([[("A", "b")], None], pa.map_(pa.string(), pa.string())),
            }
        )  # fmt: skip
        outgoing = self.outgoing(batch.schema, payload="json", subject="weather.{station}.now")
        found, bad = outgoing.messages(batch, "q/0/0", 0, 1 << 20)
        self.assertEqual(bad, [])
        self.assertEqual(
            found.column("subject").to_pylist(), ["weather.ber.now", "weather.muc.now"]
        )
        self.assertEqual(
            [bytes(data) for data in found.column("data").to_pylist()],
            [
                b'{"station":"ber","celsius":1.5,"at":"2030-01-01T00:00:00Z","n":1.50}',
                b'{"station":"muc","celsius":null,"at":"2030-01-01T00:00:00Z","n":null}',
            ],
        )
        self.assertEqual(found.column("headers").to_pylist(), [[("A", "b")], None])

    def test_rows_that_cannot_be_sent(self) -> None:
        batch = pa.RecordBatch.from_pydict(
            {
                "to": ["ok", "a b", None, "", "ok", "ok", "*", "a.b", "ok"],
                "data": [b"x"] * 4 + [bytes(2000)] + [b"x"] * 4,
                "k": ["0", "1", "2", "3", "4", None, "6", "7", "k" * 2000],
            }
        )
        outgoing = self.outgoing(batch.schema, subject="s.{to}", idColumn="k")
        found, bad = outgoing.messages(batch, "q/0/0", 100, 1500)
        self.assertEqual(found.column("id").to_pylist(), ["0", "7"])
        self.assertEqual([row.row for row in bad], [1, 2, 3, 4, 5, 6, 8])
        told = {row.row: str(row) for row in bad}
        self.assertRegex(told[1], "subject s.a b, 1 bytes, id 1: not a subject: 's.a b'")
        self.assertRegex(told[2], "subject none, .* it has no subject")
        self.assertRegex(told[4], "subject s.ok, 2000 bytes, id 4: 2028 bytes .* at most 1500")
        self.assertRegex(told[5], "id q/0/0/105: it has no id")
        self.assertRegex(told[8], "its id is over 1024 bytes")

    def test_just_large_enough(self) -> None:
        """The broker's limit, to the byte."""
        schema = pa.schema([("data", pa.binary())])
        outgoing = self.outgoing(schema, subject="s")
        overhead = len(b"NATS/1.0\r\nNats-Msg-Id: q/0/0/1\r\n\r\n")
        for size, count in ((1000 - overhead, 0), (1001 - overhead, 1)):
            batch = pa.RecordBatch.from_pydict({"data": [bytes(size)]}, schema=schema)
            self.assertEqual(len(outgoing.messages(batch, "q/0/0", 0, 1000)[1]), count, size)

    def test_checked_before_anything_runs(self) -> None:
        row = pa.schema([("a", pa.string()), ("x", pa.float64()), ("data", pa.string())])
        for given, pattern in (
            ({"subject": "w.{b}"}, "no column b; there are a, x, data"),
            ({"subject": "w.{x}"}, "column x is double, which makes no part of a subject"),
            ({"subject": "w..{a}"}, "not a subject"),
            ({"subject": "w.*"}, "not a subject"),
            ({"subject": "w", "payload": "binary"}, "column data must be binary, not string"),
            ({"payload": "json"}, "needs a column subject"),
        ):
            error = self.assertRaises(OptionError, self.outgoing, row, **given)
            self.assertRegex(str(error), pattern)
        bare = pa.schema([("a", pa.string())])
        error = self.assertRaises(OptionError, self.outgoing, bare, subject="w")
        self.assertRegex(str(error), "needs a column data, or the option payload, such as json")


WEATHER = "station string, celsius double, wind struct<speed: double>"
GOOD = '{"station": "ber", "celsius": 21.5, "wind": {"speed": 3}}'
BAD = '{"station": "muc", "celsius": "warm"}'


class TypedSourceTests(SparkCase):
    """``.schema(…)`` and the options for it."""

    def setUp(self) -> None:
        super().setUp()
        self.journal = self.broker()
        self.journal.publish("weather.ber", [GOOD])
        self.journal.publish("weather.muc", [BAD])
        self.journal.publish("weather.ber", [GOOD])

    def read(self, ddl: str = "", /, **given: str) -> list[Row]:
        reader = self.spark.read.format("rtmb").option("servers", self.journal.server)
        reader = reader.options(**{"subject": "weather.>", **given})
        return (reader.schema(ddl) if ddl else reader).load().orderBy("_seq").collect()

    def test_columns_from_payloads(self) -> None:
        rows = self.read(f"{WEATHER}, _subject string, _seq bigint, _error string, _data binary")
        first, second, _ = rows
        self.assertEqual((first.station, first.celsius, first.wind.speed), ("ber", 21.5, 3.0))
        self.assertEqual((first._subject, first._seq, first._error), ("weather.ber", 1, None))
        self.assertEqual((second.station, second._subject), (None, "weather.muc"))
        self.assertRegex(second._error, r"Expected `float \| null`, got `str` - at `\$.celsius`")
        self.assertEqual(bytes(second._data).decode(), BAD)

    def test_modes(self) -> None:
        schema = f"{WEATHER}, _seq bigint"
        self.assertEqual([row._seq for row in self.read(schema, mode="drop")], [1, 3])
        error = self.refused(lambda: self.read(schema, mode="fail"))
        self.assertRegex(error, "message 2 on weather.muc is not what was expected: .*celsius")

    def test_the_option_schema(self) -> None:
        (row, *_) = self.read(schema=WEATHER)
        self.assertEqual(
            row.__fields__,
            ["station", "celsius", "wind", "_subject", "_timestamp", "_seq", "_error"],
        )
        (row, *_) = self.read(schema="station string", metadata="_seq,_door")
        self.assertEqual((row.station, row._seq, row._door), ("ber", 1, "nats"))

    def test_inferred(self) -> None:
        (row, *_) = self.read(schema="infer", payload="json", inferMessages="1")
        self.assertEqual((row.station, row.celsius, row.wind.speed), ("ber", 21.5, 3))

    def test_text(self) -> None:
        reader = self.spark.read.format("rtmb").option("servers", self.journal.server)
        rows = reader.option("payload", "text").load().orderBy("seq").collect()
        self.assertEqual([row.data for row in rows], [GOOD, BAD, GOOD])

    def test_sql(self) -> None:
        """A view in SQL, of the messages and of typed rows."""
        self.spark.sql(
            f"CREATE TEMPORARY VIEW typed ({WEATHER}, _seq BIGINT) USING rtmb "
            f"OPTIONS (servers '{self.journal.server}', subject 'weather.>', mode 'drop')"
        )
        self.addCleanup(self.spark.sql, "DROP VIEW typed")
        found = self.spark.sql("SELECT max(celsius) AS c, max(_seq) AS s FROM typed").first()
        assert found is not None
        self.assertEqual((found.c, found.s), (21.5, 3))

    def test_the_table_function(self) -> None:
        from rtmb.spark.table_function import register

        register(self.spark)
        found = self.spark.sql(
            "SELECT seq, subject, string(data) AS data, timestamp, door "
            f"FROM rtmb('weather.ber', map('servers', '{self.journal.server}')) ORDER BY seq"
        ).collect()
        self.assertEqual(
            [(row.seq, row.subject, row.data, row.door) for row in found],
            [(1, "weather.ber", GOOD, "nats"), (3, "weather.ber", GOOD, "nats")],
        )
        self.assertLess(abs(found[0].timestamp.timestamp() - time.time()), 600)

    def test_dead_letters(self) -> None:
        """Each once, with the reason, though the batch is done again; and counted."""
        reader = self.spark.readStream.format("rtmb").option("servers", self.journal.server)
        reader = reader.options(subject="weather.>", deadLetter="dead.weather", consumer="typed")
        frame = reader.schema(f"{WEATHER}, _seq bigint").load()
        for _ in range(2):
            query = self.start(frame, availableNow=True)
            self.assertTrue(query.awaitTermination(PATIENCE))
            commits = self.folder / "out-checkpoint" / "commits"
            (commits / "1").unlink()
            (commits / ".1.crc").unlink()
        self.assertEqual(sorted(row._seq for row in self.written().collect()), [1, 3])
        dead = self.batch(self.journal, subject="dead.>").collect()
        self.assertEqual([bytes(row.data).decode() for row in dead], [BAD])
        self.assertRegex(dead[0].headers["Rtmb-Reason"], "celsius")
        self.assertEqual(
            (dead[0].headers["Rtmb-Subject"], dead[0].headers["Rtmb-Seq"]), ("weather.muc", "2")
        )
        (lease,) = self.journal.journalz()["leases"]
        self.assertEqual(lease["dead_letters"], 1)


class ConnectTests(SparkCase):
    """Spark Connect, with the server that it starts."""

    def test_all_of_it(self) -> None:
        broker = self.broker()
        folder = str(self.folder)
        program = [sys.executable, "-m", "rtmb.test.support.spark_connect", broker.server, folder]
        env = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        driver = ServerProcess(program, env=env)
        self.addCleanup(driver.stop)
        said = driver.expect_log(r"found (\{.*\})", timeout=PATIENCE * 4)
        wanted = {"batch": [["ber", 21.5, 1], ["muc", 19.0, 2]], "sql": [[40.5]], "stream": 2}
        self.assertEqual(json.loads(said[1]), wanted)


class TypedSinkTests(SparkCase):
    def write(self, frame: DataFrame, broker: JournalBroker, **given: str) -> None:
        writer = frame.write.format("rtmb").option("servers", broker.server).mode("append")
        writer.options(**given).save()

    def test_any_columns(self) -> None:
        broker = self.broker()
        frame = self.spark.sql("SELECT 'ber' AS station, 21.5D AS celsius, array(1, 2) AS list")
        self.write(frame, broker, payload="json", subject="weather.{station}")
        (row,) = self.batch(broker).collect()
        self.assertEqual(row.subject, "weather.ber")
        self.assertEqual(bytes(row.data), b'{"station":"ber","celsius":21.5,"list":[1,2]}')

    def test_a_row_that_is_too_large(self) -> None:
        """Told in one line, with subject, size and id; or a dead letter."""
        broker = self.broker()
        frame = self.spark.sql(
            "SELECT 'out' AS subject, repeat('x', IF(id = 1, 2097152, 3)) AS data, id AS k "
            "FROM range(0, 3, 1, 1)"
        )
        error = self.refused(lambda: self.write(frame, broker, idColumn="k"))
        self.assertRegex(
            error,
            r"a row cannot be published: subject out, 2097152 bytes, id 1: 2097180 bytes with its "
            r"headers, and the broker takes at most 1048576. The option mode says .*",
        )
        self.write(frame, broker, idColumn="k", deadLetter="dead.out")
        until(lambda: broker.journalz()["next"] >= 4, "all messages")
        rows = {row.subject: row for row in self.batch(broker, subject="dead.>").collect()}
        dead = rows["dead.out"]
        self.assertLess(len(dead.data), 1 << 20)
        self.assertEqual(dead.headers["Rtmb-Size"], "2097152")
        self.assertEqual((dead.headers["Rtmb-Subject"], dead.headers["Rtmb-Id"]), ("out", "1"))
        self.assertEqual(self.batch(broker, subject="out").count(), 2)
