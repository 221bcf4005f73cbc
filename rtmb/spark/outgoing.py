"""Rows on their way to the broker: what subject and payload each has, and which cannot be sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from rtmb.core.subjects import is_subject
from rtmb.spark.deadletters import DeadLetter
from rtmb.spark.options import OptionError, SparkOptions
from rtmb.spark.transport import path

#: A body has at most so many messages and, unless it is one large message, bytes.
_BODY_MESSAGES = 4096
_BODY_BYTES = 1 << 20
#: What is sent with a payload beside its headers and its id.
_OVERHEAD = len(b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")
_LONGEST_ID = 1024

_PLACE = re.compile(r"\{([^{}]*)\}")
#: What may stand in a subject.
_WORDS = (spark.StringType, spark.IntegralType, spark.BooleanType, spark.DateType)


class RowError(Exception):
    """A row cannot be sent; the text says which, why, and what to do."""


@dataclass
class BadRow:
    """A row that cannot be sent."""

    row: int
    subject: str
    id: str
    data: bytes
    reason: str

    def __str__(self) -> str:
        return (
            f"a row cannot be published: subject {self.subject or 'none'}, {len(self.data)} bytes, "
            f"id {self.id}: {self.reason}. The option mode says what becomes of such rows: fail, "
            "drop, deadLetter."
        )

    def letter(self) -> DeadLetter:
        facts = {"Rtmb-Subject": self.subject, "Rtmb-Id": self.id}
        return DeadLetter(f"dead/{self.id}"[:_LONGEST_ID], self.data, self.reason, facts)


class Outgoing:
    """Makes messages of rows."""

    def __init__(self, given: SparkOptions, schema: spark.StructType) -> None:
        self.options = given
        types = {f.name: f.dataType for f in schema.fields}
        self._check_subject(types)
        self._check_payload(types)
        column = given["idColumn"]
        if column and column not in types:
            raise OptionError(f"option idColumn: there is no column {column}")
        self._has_headers = _is_header_map(types.get("headers"))
        if "headers" in types and not self._has_headers and given["payload"] in _CODED:
            return  # a column as any other
        if "headers" in types and not self._has_headers:
            raise OptionError("column headers must be map<string, string>")

    def _check_subject(self, types: dict[str, spark.DataType]) -> None:
        subject = self.options["subject"]
        if not subject:
            if "subject" not in types:
                raise OptionError("the sink needs a column subject, or the option subject")
            _expect(types, "subject", "string", spark.StringType)
            return
        for name in _PLACE.findall(subject):
            if name not in types:
                raise OptionError(
                    f"option subject: there is no column {name}; there are {', '.join(types)}"
                )
            if not isinstance(types[name], _WORDS):
                raise OptionError(
                    f"option subject: column {name} is {types[name].simpleString()}, which makes "
                    "no part of a subject"
                )
        if not is_subject(_PLACE.sub("x", subject)):
            raise OptionError(f"option subject: not a subject to publish on: {subject!r}")

    def _check_payload(self, types: dict[str, spark.DataType]) -> None:
        payload = self.options["payload"]
        if payload in _CODED:
            if not [name for name in types if not self._apart(name)]:
                raise OptionError("there is no column to make a payload of")
            return
        if "data" not in types:
            raise OptionError(
                "the sink needs a column data, or the option payload, such as json, which makes "
                "the message of all columns"
            )
        kinds = {"": "binary or string", "binary": "binary", "text": "string"}[payload]
        found = {"binary": (spark.BinaryType,), "string": (spark.StringType,)}
        _expect(types, "data", kinds, *found.get(kinds, (spark.BinaryType, spark.StringType)))

    def _apart(self, name: str) -> bool:
        """Whether a column is no part of a payload made of all columns."""
        return name == "headers" or (name == "subject" and not self.options["subject"])

    # Messages

    def messages(
        self, batch: pa.RecordBatch, source: str, first: int, most: int
    ) -> tuple[pa.RecordBatch, list[BadRow]]:
        """The columns that the broker takes, of the rows that it will take; and the others. Its
        limit for a message is `most` bytes."""
        columns = {"subject": self._subjects(batch), "data": self._payloads(batch)}
        if self._has_headers:
            columns["headers"] = batch.column("headers")
        if self.options["idColumn"]:
            columns["id"] = batch.column(self.options["idColumn"]).cast(pa.string())
        found = pa.RecordBatch.from_pydict(columns)
        reasons = self._reasons(found, most, f"{source}/{first + batch.num_rows}")
        if not reasons:
            return found, []
        bad = []
        for row, reason in sorted(reasons.items()):
            subject, data, name = (
                found.column(k)[row].as_py() if k in found.schema.names else None
                for k in ("subject", "data", "id")
            )
            data = data.encode() if isinstance(data, str) else data or b""
            bad.append(BadRow(row, subject or "", name or f"{source}/{first + row}", data, reason))
        return found.filter(pa.array([i not in reasons for i in range(batch.num_rows)])), bad

    def _subjects(self, batch: pa.RecordBatch) -> pa.Array:
        template = self.options["subject"]
        if not template:
            return batch.column("subject").cast(pa.string()).dictionary_encode()
        names = _PLACE.findall(template)
        if not names:
            which = pa.array(bytes(batch.num_rows), pa.uint8())
            return pa.DictionaryArray.from_arrays(which, [template])
        parts = _PLACE.split(template)  # text, name, text, name, …, text
        pieces = [
            batch.column(part).cast(pa.string()) if i % 2 else pa.scalar(part)
            for i, part in enumerate(parts)
        ]
        return pc.binary_join_element_wise(*pieces, "").dictionary_encode()

    def _payloads(self, batch: pa.RecordBatch) -> pa.Array:
        encode = _CODED.get(self.options["payload"])
        if encode is None:
            return batch.column("data")
        names = [name for name in batch.schema.names if not self._apart(name)]
        columns = [_values(batch.column(name)) for name in names]
        made = [encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
        return pa.array(made, pa.binary())

    def _reasons(self, found: pa.RecordBatch, most: int, last_id: str) -> dict[int, str]:
        """Which rows the broker would refuse, and why."""
        reasons: dict[int, str] = {}
        subjects = found.column("subject")
        wrong = {
            i: f"not a subject: {name!r}"
            for i, name in enumerate(subjects.dictionary.to_pylist())
            if not is_subject(name)
        }
        if wrong or subjects.null_count:
            for row, i in enumerate(subjects.indices.to_pylist()):
                if i is None:
                    reasons[row] = "it has no subject"
                elif i in wrong:
                    reasons[row] = wrong[i]
        if "id" in found.schema.names:
            ids = found.column("id")
            long = pc.fill_null(pc.greater(pc.binary_length(ids), _LONGEST_ID), True)
            for row in pc.indices_nonzero(long).to_pylist():
                missing = not ids[row].is_valid
                reasons[row] = "it has no id" if missing else f"its id is over {_LONGEST_ID} bytes"
        for row, size in self._large(found, most, len(last_id)):
            reasons[row] = f"{size} bytes with its headers, and the broker takes at most {most}"
        return reasons

    def _large(self, found: pa.RecordBatch, most: int, id_size: int) -> Iterator[tuple[int, int]]:
        """Rows that are too large, and how large."""
        sizes = pc.fill_null(pc.cast(pc.binary_length(found.column("data")), pa.int64()), 0)
        headers = found.column("headers") if self._has_headers else None
        with_headers = _LONGEST_ID + _OVERHEAD + (0 if headers is None else 5 * headers.nbytes)
        for row in pc.indices_nonzero(pc.greater(sizes, most - with_headers)).to_pylist():
            size = sizes[row].as_py() + _OVERHEAD
            if "id" in found.schema.names:
                size += len((found.column("id")[row].as_py() or "").encode())
            else:
                size += id_size
            if headers is not None:
                fields = headers[row].as_py() or ()
                size += sum(len(k.encode()) + len((v or "").encode()) + 4 for k, v in fields)
            if size > most:
                yield row, size


def bodies(messages: pa.RecordBatch, source: str, first: int) -> Iterator[tuple[str, bytes, int]]:
    """Messages as bodies for the broker: where to post each, what, and how many rows it has."""
    rows = messages.num_rows
    if rows > _BODY_MESSAGES or (rows > 1 and messages.nbytes > _BODY_BYTES):
        half = rows // 2
        yield from bodies(messages.slice(0, half), source, first)
        yield from bodies(messages.slice(half), source, first + half)
    elif rows:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, messages.schema) as stream:
            stream.write_batch(messages)
        target = path("journal", "publish", source=source, first=first)
        yield target, sink.getvalue().to_pybytes(), rows


_encode_json = msgspec.json.Encoder(decimal_format="number").encode
_encode_msgpack = msgspec.msgpack.Encoder().encode
#: How a message is made of all columns.
_CODED: dict[str, Callable[[Any], bytes]] = {"json": _encode_json, "msgpack": _encode_msgpack}


def _values(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return found


def _is_header_map(kind: spark.DataType | None) -> bool:
    return isinstance(kind, spark.MapType) and all(
        isinstance(t, spark.StringType) for t in (kind.keyType, kind.valueType)
    )


def _expect(
    types: dict[str, spark.DataType], name: str, words: str, *kinds: type[spark.DataType]
) -> None:
    if name in types and not isinstance(types[name], kinds):
        raise OptionError(f"column {name} must be {words}, not {types[name].simpleString()}")
