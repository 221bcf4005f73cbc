"""Help for tests of the HTTP door: plain requests, event streams, and a case that has both."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rtmb.test.support.processes import PATIENCE
from rtmb.test.support.sockets import DoorTests


class Answer:
    """What came back."""

    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json["error"]["code"]
        return code


def ask(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=tls)
    )
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class Events:
    """A stream of Server-Sent Events."""

    def __init__(self, port: int, path: str, headers: dict[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._connection.request("GET", path, headers=headers or {})
        self.answer = self._connection.getresponse()
        assert self.answer.status == 200, self.answer.read()

    def close(self) -> None:
        self.answer.close()
        self._connection.close()

    def block(self) -> dict[str, str]:
        """The fields of the next event or comment; empty at the end."""
        found: dict[str, str] = {}
        while line := self.answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            found[name] = value
        return found

    def next(self) -> tuple[str, str, Any]:
        """The kind, the id and the data of the next event."""
        block = self.block()
        while "data" not in block:
            assert block, "the stream ended"
            block = self.block()
        return block.get("event", "message"), block.get("id", ""), json.loads(block["data"])

    def payloads(self, count: int) -> list[Any]:
        return [self.next()[2]["message"]["payload"] for _ in range(count)]


class HttpTests(DoorTests):
    """Tests that share one broker, with what they ask of it."""

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(self.port, method, path, body, named)

    def events(self, path: str, **headers: str) -> Events:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        found = Events(self.port, path, named)
        self.addCleanup(found.close)
        return found

    @contextmanager
    def responder(self, subject: str, reply: bytes) -> Iterator[None]:
        """Someone who answers one request; `reply` has `INBOX` where the subject goes."""
        client = self.nats()
        client.connect(headers=True)
        client.subscribe(subject, "1")

        def work() -> None:
            found = client.read_until(b"\r\n", PATIENCE)
            while not found.startswith((b"MSG", b"HMSG")):
                found = client.read_until(b"\r\n", PATIENCE)
            client.send(reply.replace(b"INBOX", found.split()[3]))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            thread.join(PATIENCE)
