"""Help for tests of the journal: its resources on a broker in memory, and its batches."""

from __future__ import annotations

import json
from typing import Any, cast

from twisted.internet.defer import Deferred, succeed
from twisted.internet.testing import StringTransport
from twisted.web.server import Request

from rtmb.auth import ANYONE, User
from rtmb.codecs import columns as frames
from rtmb.core.message import Message
from rtmb.doors.http.site import HttpService
from rtmb.test.support.memory import MemoryBroker


def rows_of(body: bytes | list[frames.Buffer]) -> list[dict[str, Any]]:
    """The messages of frames, one by one."""
    whole = body if isinstance(body, bytes) else b"".join(body)
    found = []
    for described, columns in frames.decode(whole):
        n = described.get("rows")
        if n is None:
            continue
        texts = columns[4:]
        data, replies, headers = (
            frames.spans(texts[i], texts[i + 1], n) if len(texts[i]) else [b""] * n
            for i in (0, 2, 4)
        )
        numbers = [frames.from_numbers(c, v) for c, v in zip("qqii", columns[:4], strict=True)]
        for i in range(n):
            found.append(
                {
                    "seq": numbers[0][i],
                    "time": numbers[1][i] / 1e6,
                    "subject": described["subjects"][numbers[2][i]],
                    "door": described["doors"][numbers[3][i]],
                    "data": data[i],
                    "reply": replies[i],
                    "headers": headers[i],
                }
            )
    return found


class Http:
    """The journal's resources on a broker without sockets; calls come by one connection."""

    def __init__(self, **settings: Any) -> None:
        self.memory = MemoryBroker(no_msgpack=True, **settings)
        self.hub, self.clock = self.memory.hub, self.memory.clock
        self.user = ANYONE
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

    def send(self, method: str, target: str, body: bytes = b"") -> None:
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.channel.dataReceived(head.encode() + body)

    def answer(self) -> tuple[int, bytes] | None:
        """The status and body of the next answer, if it is there."""
        said = self.transport.value()
        head, found, rest = said.partition(b"\r\n\r\n")
        if not found:
            return None
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if b"content-length" in fields:
            length = int(fields[b"content-length"])
            body, rest = rest[:length], rest[length:]
        else:
            body = b""
            while (size := int(rest.split(b"\r\n", 1)[0], 16)) > 0:
                start = rest.index(b"\r\n") + 2
                body, rest = body + rest[start : start + size], rest[start + size + 2 :]
            rest = rest[5:]
        self.transport.clear()
        self.transport.write(rest)
        return int(head.split()[1]), body

    def call(self, method: str, target: str, body: bytes = b"") -> tuple[int, Any]:
        self.send(method, target, body)
        found = self.answer()
        assert found is not None, "no answer"
        status, said = found
        return status, json.loads(said) if said[:1] == b"{" else said

    def get(self, target: str) -> Any:
        status, said = self.call("GET", target)
        assert status == 200, said
        return said

    def publish(self, subject: str, *payloads: bytes) -> None:
        for payload in payloads:
            self.hub.publish(Message(subject, payload, door="test"))


def batch(
    on: list[str], payloads: list[bytes], *, source: str = "q/0/0", first: float = 0,
    ids: list[bytes] | None = None, headers: list[bytes] | None = None, **more: Any,
) -> bytes:  # fmt: skip
    """A body for ``/journal/publish``."""

    def texts(values: list[bytes] | None) -> list[frames.Buffer]:
        if values is None:
            return [b"", b""]
        ends = [sum(map(len, values[:i])) for i in range(len(values) + 1)]
        return [frames.numbers("i", ends), b"".join(values)]

    names = list(dict.fromkeys(on))
    described = {
        "rows": len(on), "subjects": names, "source": source, "first": first, **more,
    }  # fmt: skip
    which = frames.numbers("i", [names.index(s) for s in on])
    columns = [which, *texts(payloads), *texts(headers), *texts(ids)]
    return b"".join(frames.encode(described, columns))
