"""Payloads as columns: what a message must be to become a row, and what becomes of those that are
not. Decoding is msgspec's, with a type made from the columns that someone asked for."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from rtmb.spark.options import OptionError, SparkOptions, nearest

#: What a row can have of its message beside the payload: the journal's columns, `_data` as it came,
#: and `_error`: why the payload is none of what was expected.
FACTS = {
    "_subject": "string",
    "_timestamp": "timestamp",
    "_seq": "bigint",
    "_reply": "string",
    "_headers": "map<string,string>",
    "_door": "string",
    "_data": "binary",
    "_error": "string",
}
_DEFAULT_FACTS = ("_subject", "_timestamp", "_seq")

_INTEGERS: dict[type[spark.DataType], int] = {
    spark.ByteType: 8,
    spark.ShortType: 16,
    spark.IntegerType: 32,
    spark.LongType: 64,
}
_PLAIN: dict[type[spark.DataType], type] = {
    spark.StringType: str,
    spark.DoubleType: float,
    spark.FloatType: float,
    spark.BooleanType: bool,
    spark.TimestampType: datetime.datetime,
    spark.TimestampNTZType: datetime.datetime,
    spark.DateType: datetime.date,
    spark.BinaryType: bytes,
    spark.DecimalType: decimal.Decimal,
}


#: What a payload that does not fit raises.
_UNFIT = (msgspec.DecodeError, ValueError, RecursionError)


class PayloadError(Exception):
    """A message is not what was expected, and the mode is to fail."""


@dataclass
class BadMessage:
    """A message whose payload does not fit."""

    row: int
    reason: str


# The columns


def columns_of(given: SparkOptions) -> str:
    """The columns of a source with the option `schema`, as DDL, facts included."""
    columns = given["schema"]
    facts = given["metadata"]
    if facts is None:
        facts = _DEFAULT_FACTS + (("_error",) if given["mode"] == "permissive" else ())
    for name in facts:
        if name not in FACTS:
            raise OptionError(f"option metadata: {_no_fact(name)}")
    return ", ".join([columns, *(f"{name} {FACTS[name]}" for name in facts)])


def _no_fact(name: str) -> str:
    return f"there is no {name}{nearest(name, FACTS)}; there are {', '.join(FACTS)}"


def _python_type(kind: spark.DataType, where: str) -> Any:
    """The type that msgspec is to decode."""
    bits = _INTEGERS.get(type(kind))
    if bits is not None:
        return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]
    plain = _PLAIN.get(type(kind))
    if plain is not None:
        return plain
    if isinstance(kind, spark.ArrayType):
        return list[_python_type(kind.elementType, where) | None]  # type: ignore[misc]
    if isinstance(kind, spark.MapType) and isinstance(kind.keyType, spark.StringType):
        return dict[str, _python_type(kind.valueType, where) | None]  # type: ignore[misc]
    if isinstance(kind, spark.StructType):
        return _struct_type(kind.fields)
    raise OptionError(f"column {where}: no payload becomes {kind.simpleString()}")


def _struct_type(fields: Sequence[spark.StructField]) -> type:
    """A type with a field for each column; one that may be null may be missing."""
    made: list[Any] = []
    for i, column in enumerate(fields):
        kind = _python_type(column.dataType, column.name)
        made.append((f"f{i}", kind | None, None) if column.nullable else (f"f{i}", kind))
    names = {f"f{i}": column.name for i, column in enumerate(fields)}
    return msgspec.defstruct("Payload", made, rename=names, kw_only=True, gc=False)


def decoder(payload: str, fields: Sequence[spark.StructField]) -> Callable[[bytes], Any]:
    """What makes an object of a payload; it raises one of `_UNFIT`."""
    kind = _struct_type(fields)
    if payload == "msgpack":
        return msgspec.msgpack.Decoder(kind).decode
    return msgspec.json.Decoder(kind).decode


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Decoded values as Arrow has them; `pa.array` knows all but our own structs."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        children = [
            _array([None if v is None else getattr(v, f"f{i}") for v in values], field.type)
            for i, field in enumerate(fields)
        ]
        missing = pa.array([v is None for v in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=fields, mask=missing)
    if pa.types.is_list(kind) and pa.types.is_nested(kind.value_type):
        inner = _array([x for v in values if v for x in v], kind.value_type)
        return pa.ListArray.from_arrays(_offsets(values), inner, type=kind)
    if pa.types.is_map(kind):
        keys = pa.array([key for v in values if v for key in v], kind.key_type)
        items = _array([x for v in values if v for x in v.values()], kind.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=kind)
    return pa.array(values, kind)


def _offsets(values: list[Any]) -> pa.Array:
    """Where each list begins; null where there is none."""
    found: list[int | None] = []
    end = 0
    for value in values:
        found.append(None if value is None else end)
        end += len(value or ())
    return pa.array([*found, end], pa.int32())


class Shape:
    """What rows look like, and how messages become rows."""

    def __init__(self, schema: spark.StructType, given: SparkOptions) -> None:
        self.mode: str = given["mode"]
        self._facts = [f for f in schema.fields if f.name.startswith("_")]
        self._fields = [f for f in schema.fields if not f.name.startswith("_")]
        for fact in self._facts:
            if fact.name not in FACTS:
                raise OptionError(_no_fact(fact.name))
            if fact.dataType.simpleString() != FACTS[fact.name]:
                raise OptionError(f"column {fact.name} is {FACTS[fact.name]}")
        if not self._fields:
            raise OptionError("the schema has no column for the payload")
        strict = [column.name for column in self._fields if not column.nullable]
        if strict and (self.mode == "permissive" or given["onDataLoss"] == "record"):
            raise OptionError(
                f"column {strict[0]} may not be null, which it is in rows without a payload: set "
                "mode to drop, fail or deadLetter, and onDataLoss to fail or skip"
            )
        self._payload = given["payload"] or "json"
        decoder(self._payload, self._fields)  # raises where it cannot be done
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._decode: Callable[[bytes], Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_decode": None}  # made types cannot be sent to other processes

    def rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[BadMessage]]:
        """A row for each message, and those that do not fit: their columns are null."""
        if self._decode is None:
            self._decode = decoder(self._payload, self._fields)
        payloads = batch.column("data").to_pylist()
        bad: list[BadMessage] = []
        try:
            objects = list(map(self._decode, payloads))
        except _UNFIT:
            objects = [self._decoded(i, payload, bad) for i, payload in enumerate(payloads)]
        try:
            columns = self._columns(objects)
        except (pa.ArrowInvalid, OverflowError):  # such as a decimal with too many digits
            objects = [self._fitting(i, found, bad) for i, found in enumerate(objects)]
            columns = self._columns(objects)
        return self._joined(batch, columns, bad), bad

    def empty(self, batch: pa.RecordBatch, reason: str) -> pa.RecordBatch:
        """Rows without a payload."""
        bad = [BadMessage(i, reason) for i in range(batch.num_rows)]
        return self._joined(batch, self._columns([None] * batch.num_rows), bad)

    def _decoded(self, row: int, payload: bytes, bad: list[BadMessage]) -> Any:
        assert self._decode is not None
        try:
            return self._decode(payload)
        except _UNFIT as error:
            bad.append(BadMessage(row, f"not what was expected: {error}"))
            return None

    def _fitting(self, row: int, found: Any, bad: list[BadMessage]) -> Any:
        try:
            self._columns([found])
            return found
        except (pa.ArrowInvalid, OverflowError) as error:
            bad.append(BadMessage(row, f"does not fit: {error}"))
            return None

    def _columns(self, objects: list[Any]) -> dict[str, pa.Array]:
        return {
            field.name: _array(
                [None if v is None else getattr(v, f"f{i}") for v in objects],
                self.schema.field(field.name).type,
            )
            for i, field in enumerate(self._fields)
        }

    def _joined(
        self, batch: pa.RecordBatch, columns: Mapping[str, pa.Array], bad: Iterable[BadMessage]
    ) -> pa.RecordBatch:
        arrays = []
        for name in self.schema.names:
            if name == "_error":
                reasons: list[str | None] = [None] * batch.num_rows
                for message in bad:
                    reasons[message.row] = message.reason
                arrays.append(pa.array(reasons, pa.string()))
            elif name in columns:
                arrays.append(columns[name])
            else:
                arrays.append(batch.column(name[1:]))
        # A column that may not be null is null in rows that are left out a moment later.
        loose = pa.schema([field.with_nullable(True) for field in self.schema])
        return pa.RecordBatch.from_arrays(arrays, schema=loose)


# Columns from what there is


def infer(payload: str, payloads: Iterable[bytes]) -> str:
    """The columns of payloads that are objects, as DDL; those that are none are passed over."""
    decode = msgspec.msgpack.decode if payload == "msgpack" else msgspec.json.decode
    merged: Any = None
    for data in payloads:
        try:
            found = decode(data)
        except _UNFIT:
            continue
        if isinstance(found, dict):
            merged = _merged(merged, _kind(found))
    if not merged:
        raise OptionError("option schema: no message in the journal that columns can be told from")
    named = {name: kind for name, kind in merged.items() if not name.startswith("_")}
    return ", ".join(f"{_quoted(name)} {_ddl(kind)}" for name, kind in named.items())


def _kind(value: Any) -> Any:
    """A word for a plain value, None for null, a dictionary for an object, a list of one kind."""
    if isinstance(value, dict):
        return {str(name): _kind(part) for name, part in value.items()}
    if isinstance(value, list):
        merged = None
        for part in value:
            merged = _merged(merged, _kind(part))
        return [merged]
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -(2**63) <= value < 2**63 else "double"
    words = {float: "double", bytes: "binary", datetime.datetime: "timestamp"}
    return None if value is None else words.get(type(value), "string")


def _merged(one: Any, other: Any) -> Any:
    """What holds both."""
    if one is None or one == other:
        return other
    if other is None:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    numbers = one in ("bigint", "double") and other in ("bigint", "double")
    return "double" if numbers else "string"


def _ddl(kind: Any) -> str:
    if isinstance(kind, dict):
        if not kind:
            return "map<string, string>"
        inner = ", ".join(f"{_quoted(name)}: {_ddl(part)}" for name, part in kind.items())
        return f"struct<{inner}>"
    if isinstance(kind, list):
        return f"array<{_ddl(kind[0])}>"
    return kind or "string"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
