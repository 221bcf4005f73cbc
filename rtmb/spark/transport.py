"""The HTTP client in Spark's processes: keep-alive, no Nagle, several calls under way, retries.

Every call to the journal may be repeated without harm, so whatever fails on the way is sent again.
Readers and writers are pickled, so they hold a `BrokerLogin`; `client` gives the connection of
this process and thread, which lives on from batch to batch in a worker that Spark uses again.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlencode, urlsplit

#: The first and the longest pause before another try; each is twice the one before.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
#: Answers that may be different a moment later.
_PASSING = (429, 502, 503, 504)


class BrokerError(Exception):
    """The broker said no. `facts` is its answer."""

    def __init__(self, status: int, text: str, facts: dict[str, Any]) -> None:
        super().__init__(f"the broker refused: {text} (HTTP {status})")
        self.status = status
        self.facts = facts


class UnreachableError(Exception):
    """No broker answered, for as often as was tried."""


@dataclass(frozen=True)
class BrokerLogin:
    """Where the broker is and how to get in."""

    servers: tuple[str, ...] = ("http://127.0.0.1:8080",)
    api_key: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    retries: int = 10
    timeout: float = 30.0

    def headers(self) -> dict[str, str]:
        found = {}
        if self.api_key:
            found["X-API-Key"] = self.api_key
        if self.token:
            found["Authorization"] = f"Bearer {self.token}"
        elif self.user:
            pair = f"{self.user}:{self.password}".encode()
            found["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        return found

    def connect(self, server: str) -> http.client.HTTPConnection:
        parts = urlsplit(server)
        assert parts.hostname is not None
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=self.timeout)
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        return http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=self.timeout, context=context
        )


def path(*parts: str, **query: Any) -> str:
    """A path and its query; what is None is left out, a tuple is repeated."""
    given = {name.rstrip("_"): value for name, value in query.items() if value is not None}
    text = "/" + "/".join(quote(part, safe="") for part in parts)
    return f"{text}?{urlencode(given, doseq=True)}" if given else text


def pause(tries: int) -> None:
    """Wait before the next try, longer each time."""
    time.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**tries))


class Call(NamedTuple):
    """A request."""

    method: str
    target: str
    body: bytes
    #: How long the broker may take to answer, beyond the usual.
    patience: float


class _Reader:
    """The receiving side of a socket, in the clothes that `HTTPResponse` wants. It outlives the
    answer: the next one may be in its buffer already."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        assert connection.sock is not None
        self._file = connection.sock.makefile("rb", 1 << 18)

    def makefile(self, mode: str) -> _Reader:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        """The answer is done; the socket is not."""

    def flush(self) -> None:
        pass


class JournalClient:
    """Calls to one broker. They are answered in the order in which they were sent."""

    def __init__(self, access: BrokerLogin) -> None:
        self.access = access
        self._turn = 0
        self._connection: http.client.HTTPConnection | None = None
        self._reader: _Reader | None = None
        self._used = False
        self._waiting: deque[Call] = deque()

    def __len__(self) -> int:
        """How many calls are not answered yet."""
        return len(self._waiting)

    def close(self) -> None:
        """Forget what is under way."""
        self._waiting.clear()
        self._disconnect()

    def call(self, method: str, target: str, body: bytes = b"", patience: float = 0.0) -> bytes:
        """Send one request and wait for its answer."""
        self.send(method, target, body, patience)
        return self.receive()

    def json(self, method: str, target: str, body: Any = None, patience: float = 0.0) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        return json.loads(self.call(method, target, data, patience))

    def send(self, method: str, target: str, body: bytes = b"", patience: float = 0.0) -> None:
        """Send a request; `receive` gets its answer."""
        call = Call(method, target, body, patience)
        self._waiting.append(call)
        try:
            if self._connection is not None:
                self._write(call)
            else:
                self._connect()
        except OSError:
            self._disconnect()  # `receive` tries again, and knows when to give up

    def receive(self) -> bytes:
        """The answer to the oldest request that has none."""
        return self._receive()[1]

    @contextmanager
    def stream(self, target: str) -> Iterator[http.client.HTTPResponse]:
        """The answer to a GET, to be read as it comes. Whoever reads it tries again if that
        fails; only to begin it is tried again here."""
        self.send("GET", target)
        response, _ = self._receive(whole=False)
        try:
            yield response
            response.read()  # what ends it
        except BaseException:
            self._disconnect()
            raise
        if response.will_close:
            self._disconnect()

    def _receive(self, whole: bool = True) -> tuple[http.client.HTTPResponse, bytes]:
        call = self._waiting[0]
        tries = 0
        while True:
            kept = self._used and self._connection is not None
            try:
                response, body = self._try(call, whole)
                if response.status not in _PASSING:
                    break
                problem: object = f"HTTP {response.status}"
            except (OSError, http.client.HTTPException) as error:
                problem = error
            self._disconnect()
            if isinstance(problem, ssl.SSLCertVerificationError) or tries >= self.access.retries:
                where = ", ".join(self.access.servers)
                raise UnreachableError(
                    f"no broker at {where}: {problem or type(problem).__name__} "
                    f"({tries + 1} tries; see the options servers and retries)"
                ) from None
            if not kept:  # one that was kept may just have been idle for too long
                self._turn += 1
                pause(tries)
                tries += 1
        self._waiting.popleft()
        if response.status >= 400:
            raise _refused(response.status, body)
        return response, body

    def _try(self, call: Call, whole: bool) -> tuple[http.client.HTTPResponse, bytes]:
        if self._connection is None:
            self._connect()
        assert self._connection is not None
        self._connection.sock.settimeout(self.access.timeout + call.patience)
        response = http.client.HTTPResponse(cast(Any, self._reader), method=call.method)
        response.begin()
        self._used = True
        if not whole and response.status < 400:
            return response, b""
        body = response.read()
        if response.will_close:
            self._disconnect()
        return response, body

    def _connect(self) -> None:
        """Connect, and send all that has no answer yet."""
        servers = self.access.servers
        connection = self.access.connect(servers[self._turn % len(servers)])
        connection.connect()  # turns Nagle off
        self._connection, self._reader, self._used = connection, _Reader(connection), False
        for call in self._waiting:
            self._write(call)

    def _write(self, call: Call) -> None:
        assert self._connection is not None
        lines = [f"{call.method} {call.target} HTTP/1.1", f"Host: {self._connection.host}"]
        lines += [f"{name}: {value}" for name, value in self.access.headers().items()]
        lines.append(f"Content-Length: {len(call.body)}")
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        self._connection.sock.sendall(head + call.body)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _refused(status: int, body: bytes) -> BrokerError:
    try:
        facts = json.loads(body)
        text = facts["error"]["message"]
    except (ValueError, KeyError, TypeError):
        facts, text = {}, body[:200].decode("utf-8", "replace") or "without a word"
    return BrokerError(status, text, facts)


_here = threading.local()


def client(access: BrokerLogin) -> JournalClient:
    """The client of this process and thread."""
    if getattr(_here, "process", None) != os.getpid():  # a fork must not share its parent's sockets
        _here.process, _here.clients = os.getpid(), {}
    clients: dict[BrokerLogin, JournalClient] = _here.clients
    if access not in clients:
        clients[access] = JournalClient(access)
    return clients[access]
