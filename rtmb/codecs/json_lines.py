"""The journal as JSON lines, for people with curl: the columns of `rtmb.codecs.arrow`, a message a
line. A payload that is JSON stands there as it came, text as text, and what is neither as base64,
which `encoding` says then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rtmb.codecs.arrow import header_fields
from rtmb.codecs.json_message import payload_fields, shown, timestamp
from rtmb.core.segments import Excerpt

#: What someone who wants lines may say.
MEDIA_TYPES = ("application/x-ndjson", "application/jsonl", "application/json")
#: Messages made at a time.
_STEP = 256

_encode = msgspec.json.Encoder().encode


class LinesWriter:
    """Writes one answer, a batch at a time."""

    media_type = MEDIA_TYPES[0]

    def __init__(self, headers: bool = True) -> None:
        self._headers = headers

    def start(self) -> bytes:
        return b""

    def batch(self, batch: Excerpt) -> Iterator[bytes]:
        (subjects, which_subject), (doors, which_door) = batch.subjects, batch.doors
        names = [shown(name) for name in subjects]
        starts, whole = batch.payloads.starts, batch.payloads.whole

        def line(row: int) -> bytes:
            found: dict[str, Any] = {
                "seq": batch.seqs[row],
                "timestamp": timestamp(batch.times[row] / 1_000_000),
                "subject": names[which_subject[row]],
                "door": doors[which_door[row]],
                **payload_fields("data", bytes(whole[starts[row] : starts[row + 1]])),
            }
            if row in batch.replies:
                found["reply"] = shown(batch.replies[row])
            if self._headers and row in batch.headers:
                fields = header_fields(batch.headers[row])
                found["headers"] = {n.decode(): v.decode() for n, v in fields}
            return _encode(found) + b"\n"

        for start in range(0, batch.rows, _STEP):
            yield b"".join(map(line, range(start, min(start + _STEP, batch.rows))))

    def end(self) -> bytes:
        return b""
