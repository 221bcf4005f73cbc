"""Help for tests of the HTTP door: a broker that tests share, and a WebSocket client that can also
do everything wrong, on a plain socket."""

from __future__ import annotations

import atexit
import base64
import json
import os
import socket
import ssl
import unittest
from typing import Any, ClassVar, Self

from rtmb.test.support.processes import PATIENCE, BrokerProcess, RawClient

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def masked(kind: int, payload: bytes, *, fin: bool = True, reserved: int = 0) -> bytes:
    """A frame as a client must send it."""
    size, head = len(payload), bytes([(0x80 if fin else 0) | reserved | kind])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 1 << 16:
        head += bytes([0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([0x80 | 127]) + size.to_bytes(8, "big")
    key = os.urandom(4)
    repeated = (key * (size // 4 + 1))[:size]
    mixed = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return head + key + mixed.to_bytes(size, "big")


class HandshakeError(Exception):
    """The server did not agree; `status` and `body` are its answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body!r}")
        self.status, self.body = status, body


class WebSocket:
    """One connection."""

    def __init__(
        self,
        port: int,
        path: str = "/ws",
        *,
        headers: dict[str, str] | None = None,
        receive_buffer: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(("127.0.0.1", port))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._data = b""
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode())
        while b"\r\n\r\n" not in self._data:
            self._more()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 101:
            body = self._data or self.socket.recv(65536)
            self.close()
            raise HandshakeError(status, body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def _more(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError
        self._data += data

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_frame(self) -> tuple[int, bytes]:
        """The next frame: what it is, and what is in it."""
        while len(self._data) < 2:
            self._more()
        kind, size, at = self._data[0] & 15, self._data[1] & 127, 2
        if size >= 126:
            at = 4 if size == 126 else 10
            while len(self._data) < at:
                self._more()
            size = int.from_bytes(self._data[2:at], "big")
        while len(self._data) < at + size:
            self._more()
        payload, self._data = self._data[at : at + size], self._data[at + size :]
        return kind, payload

    def say(self, **command: Any) -> None:
        self.send(masked(TEXT, json.dumps(command).encode()))

    def hear(self) -> dict[str, Any]:
        """The next message."""
        kind, payload = self.read_frame()
        assert kind == TEXT, (kind, payload)
        found: dict[str, Any] = json.loads(payload)
        return found

    def ask(self, **command: Any) -> dict[str, Any]:
        self.say(**command)
        return self.hear()

    def subscribe(self, topic: str, **more: Any) -> dict[str, Any]:
        return self.ask(type="subscribe", topic=topic, client_id="test", **more)

    def closed_with(self) -> int:
        """Read to the end; the code of the close frame, or 0 if there was none."""
        code = 0
        try:
            while True:
                kind, payload = self.read_frame()
                if kind == CLOSE:
                    code = int.from_bytes(payload[:2], "big")
        except (EOFError, ConnectionResetError):
            return code


class _Shared:
    """The broker of the tests that run just now."""

    key: ClassVar[object] = None
    broker: ClassVar[BrokerProcess | None] = None

    @classmethod
    def with_options(cls, options: tuple[str, ...], config: str | None) -> BrokerProcess:
        if cls.broker is None or cls.key != (options, config):
            cls.stop()
            cls.broker, cls.key = BrokerProcess(*options, config=config), (options, config)
        return cls.broker

    @classmethod
    def stop(cls) -> None:
        if cls.broker is not None:
            cls.broker.stop()
            cls.broker = None


atexit.register(_Shared.stop)


class DoorTests(unittest.TestCase):
    """Tests that share one broker with all others of the same options. (`setUpClass` is unknown to
    trial.)"""

    options: ClassVar[tuple[str, ...]] = ()
    config: ClassVar[str | None] = None

    def setUp(self) -> None:
        self.broker = _Shared.with_options(self.options, self.config)
        self.port = self.broker.http_port

    def nats(self) -> RawClient:
        client = RawClient(self.broker.port)
        self.addCleanup(client.close)
        return client

    def connect(self, path: str = "/ws", **options: Any) -> WebSocket:
        socket = WebSocket(self.port, path, **options)
        self.addCleanup(socket.close)
        return socket
