"""Dead letters: what cannot be a row, or a message, goes to a subject of the broker with the
reason, instead of stopping a query. Each once, however often a batch is done again."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from rtmb.spark.transport import JournalClient, path

#: Room for the headers beside a payload that is as large as the broker takes.
_ROOM = 8192
_LONGEST = 1000
_HEADERS = pa.map_(pa.string(), pa.string())

_log = logging.getLogger("rtmb.spark")


@dataclass
class DeadLetter:
    """One of them."""

    #: The same each time that this happens again.
    id: str
    data: bytes
    reason: str
    #: More to say: headers by name.
    facts: dict[str, str] = field(default_factory=dict)


def bury(
    client: JournalClient,
    subject: str,
    letters: Sequence[DeadLetter],
    most: int,
    consumer: str = "",
) -> None:
    """Publish dead letters; `most` is the broker's limit for a message. They are counted for a
    consumer that holds a lease."""
    batch = pa.RecordBatch.from_pydict(
        {
            "subject": pa.array([subject] * len(letters), pa.string()),
            "data": pa.array([letter.data[: most - _ROOM] for letter in letters], pa.binary()),
            "id": pa.array([letter.id for letter in letters], pa.string()),
            "headers": pa.array([list(_headers(letter).items()) for letter in letters], _HEADERS),
        }
    )
    for part in _parts(batch):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as stream:
            stream.write_batch(part)
        target = path("journal", "publish", dead_letters_of=consumer or None)
        told = json.loads(client.call("POST", target, sink.getvalue().to_pybytes()))
        _log.warning("%d dead letters to %s: %s", told["published"], subject, letters[0].reason)


def _headers(letter: DeadLetter) -> dict[str, str]:
    found = {"Rtmb-Reason": letter.reason, **letter.facts, "Rtmb-Size": str(len(letter.data))}
    return {name: value[:_LONGEST] for name, value in found.items()}


def _parts(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """In bodies that the broker takes."""
    if batch.num_rows > 1 and (batch.num_rows > 4096 or batch.nbytes > 8 << 20):
        half = batch.num_rows // 2
        return _parts(batch.slice(0, half)) + _parts(batch.slice(half))
    return [batch]
