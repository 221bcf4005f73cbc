"""Help for tests of the journal: its resources on a broker in memory, and its batches."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

import pyarrow as pa
from twisted.internet.defer import Deferred, succeed
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.server import Request

from rtmb.auth import ANYONE, User
from rtmb.codecs import arrow
from rtmb.core.message import Message
from rtmb.core.segments import Excerpt
from rtmb.doors.http.site import HttpService
from rtmb.test.support.memory import MemoryBroker

HEADERS = pa.map_(pa.string(), pa.string())


def rows_of(body: bytes) -> list[dict[str, Any]]:
    """The messages of an Arrow stream, one by one."""
    found: list[dict[str, Any]] = pa.ipc.open_stream(body).read_all().to_pylist()
    for row in found:
        row["headers"] = dict(row["headers"]) if row["headers"] is not None else None
    return found


def written(batches: Iterable[Excerpt | None], headers: bool = True) -> bytes:
    """Batches as an Arrow stream."""
    writer = arrow.StreamWriter(headers)
    pieces = [writer.start()]
    for batch in batches:
        if batch is not None:
            pieces += writer.batch(batch)
    return b"".join([*pieces, writer.end()])


class Http:
    """The journal's resources on a broker without sockets; calls come by one connection."""

    def __init__(self, **settings: Any) -> None:
        self.memory = MemoryBroker(no_msgpack=True, **settings)
        self.hub, self.clock = self.memory.hub, self.memory.clock
        self.user = ANYONE
        #: The headers of the last answer, in lower case.
        self.told: dict[str, str] = {}
        service = self.memory.broker.doors["http"]
        assert isinstance(service, HttpService)
        self._site = service.site
        self._site.access = cast(Any, self)
        self._site.timeOut = None
        self.connect()

    def connect(self) -> None:
        self.transport = StringTransport()
        self.channel: Any = self._site.buildProtocol(None)
        self.channel.makeConnection(self.transport)

    # What `Access` does: who it is, is decided by the test.

    def admit(self, request: Request) -> Deferred[User | None]:
        return succeed(self.user)

    def is_foreign(self, request: Request) -> bool:
        return False

    def send(self, method: str, target: str, body: bytes = b"", more: str = "") -> None:
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        self.channel.dataReceived(head.encode() + body)

    def answer(self) -> tuple[int, bytes] | None:
        """The status and body of the next answer, if it is there."""
        said = self.transport.value()
        head, found, rest = said.partition(b"\r\n\r\n")
        if not found:
            return None
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        self.told = {name.decode(): value.decode() for name, value in fields.items()}
        if b"content-length" in fields:
            length = int(fields[b"content-length"])
            body, rest = rest[:length], rest[length:]
        else:
            if not rest.endswith(b"0\r\n\r\n"):
                return None  # there is more to come
            body = b""
            while (size := int(rest.split(b"\r\n", 1)[0], 16)) > 0:
                start = rest.index(b"\r\n") + 2
                body, rest = body + rest[start : start + size], rest[start + size + 2 :]
            rest = rest[5:]
        self.transport.clear()
        self.transport.write(rest)
        return int(head.split()[1]), body

    def _goes_on(self) -> bool:
        """Whether there is work for right now: on a slow machine an answer takes several turns."""
        return any(c.getTime() <= self.clock.seconds() for c in self.clock.getDelayedCalls())

    def call(self, method: str, target: str, body: bytes = b"", more: str = "") -> tuple[int, Any]:
        self.send(method, target, body, more)
        while (found := self.answer()) is None and self._goes_on():
            self.clock.advance(0)
        assert found is not None, "no answer"
        status, said = found
        if self.told["content-type"] == "application/json":
            return status, json.loads(said)
        return status, said

    def get(self, target: str) -> Any:
        status, said = self.call("GET", target)
        assert status == 200, said
        return said

    def publish(self, subject: str, *payloads: bytes) -> None:
        for payload in payloads:
            self.hub.publish(Message(subject, payload, door="test"))


class JournalCase(SynchronousTestCase):
    """Tests with a journal of everything, small enough to be overrun."""

    def setUp(self) -> None:
        self.http = Http(journal=(">",), journal_messages=160, dedup_window=10.0)
        journal = self.http.memory.broker.journal
        assert journal is not None
        self.journal = journal

    def refused(
        self, status: int, pattern: str, method: str, target: str, body: bytes = b""
    ) -> Any:
        found, said = self.http.call(method, target, body)
        self.assertEqual(found, status, said)
        self.assertRegex(said["error"]["message"], pattern)
        return said


def batch(on: list[Any], payloads: list[Any], **more: list[Any]) -> bytes:
    """A body for ``/journal/publish``."""
    columns = {"subject": on, "data": payloads, **more}
    kinds = {"headers": HEADERS}
    return arrow_stream({k: pa.array(v, kinds.get(k)) for k, v in columns.items()})


def arrow_stream(columns: dict[str, Any], **options: Any) -> bytes:
    found = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_batch(found)
    body: bytes = sink.getvalue().to_pybytes()
    return body
