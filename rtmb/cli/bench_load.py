"""The load client: raw sockets, prepared chunks out, counted bytes in.

Client and broker share the machine, so whatever the client spends is taken from what it measures.
It is one thread: frames are built before the clock starts, one `send` hands the kernel hundreds of
them, and incoming bytes are counted without being parsed, or even copied (`MSG_TRUNC`).
"""

from __future__ import annotations

import json
import random
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

HostAndPort = tuple[str, int]
SubjectAndSize = tuple[str, int]  # a message, as far as the load looks at it

PING = b"PING\r\n"
PONG = b"PONG\r\n"
# `lang` is what tells a library from a person at a terminal.
CONNECT: dict[str, Any] = {
    "verbose": False,
    "pedantic": False,
    "lang": "bench",
    "version": "1",
    "protocol": 1,
    "headers": True,
    "echo": True,
}
PATIENCE = 20  # seconds without an answer, after which a server counts as stuck
SID = "1"
REPORT = 0.1  # seconds between two reports of progress
SPIN = 0.0001  # timers wake late by about this much, so the last stretch to a send is polled

# One for all connections: nobody looks at the bytes after they are counted.
read_buffer = bytearray(1 << 20)


class BenchmarkError(Exception):
    """A measurement that could not be made: a closed connection, a timeout, a wrong count."""


class NoConnectionError(BenchmarkError):
    """The server is not there, does not let us in, or went away."""


class TlsWantedError(NoConnectionError):
    """The server wants TLS, and was not asked for it."""


#: What CONNECT says of who we are, made from the server's INFO.
LoginFields = Callable[[Mapping[str, Any]], Mapping[str, str]]


class LoadConnection:
    """One client connection, its handshake done."""

    #: Whether it asks for TLS.
    tls = False

    def __init__(self, address: HostAndPort, login: LoginFields = lambda info: {}) -> None:
        try:
            self.socket = socket.create_connection(address, timeout=PATIENCE)
        except OSError as error:
            raise NoConnectionError(error.strerror or str(error)) from None
        # The kernel's own timeouts spare the poll() that Python's would add to every call.
        self.socket.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", PATIENCE, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pongs_owed = 0
        try:
            self._shake_hands(login)
        except BenchmarkError:
            self.close()
            raise

    def _shake_hands(self, login: LoginFields) -> None:
        greeting = bytearray()
        while not greeting.endswith(b"\r\n"):
            greeting += self.read()
        try:
            self.info: dict[str, Any] = json.loads(greeting.removeprefix(b"INFO "))
        except ValueError:
            raise NoConnectionError("the server does not speak NATS") from None
        if self.info.get("tls_required") and not self.tls:
            raise TlsWantedError("the server wants TLS")
        self._secure()
        self.send(b"CONNECT %b\r\n" % json.dumps({**CONNECT, **login(self.info)}).encode())
        try:
            self.flush()
            self.flush()  # nats-server may send another INFO behind the first PONG
        except BenchmarkError as error:
            raise NoConnectionError(str(error)) from None

    def _secure(self) -> None:
        """Begin with TLS, where that is wanted."""

    def close(self) -> None:
        self.socket.close()

    def subscribe(self, pattern: str, queue: str = "") -> None:
        self.send(f"SUB {pattern} {queue} {SID}\r\n".encode())
        self.flush()

    def unsubscribe(self) -> None:
        self.send(f"UNSUB {SID}\r\n".encode())
        self.flush()

    def send(self, data: bytes | memoryview) -> None:
        """Send all of `data`, waiting as long as it takes (within PATIENCE)."""
        try:
            self.socket.sendall(data)
        except BlockingIOError:
            raise BenchmarkError(f"the server took nothing for {PATIENCE} s") from None
        except ConnectionError as error:
            raise NoConnectionError(f"the server closed the connection: {error}") from None

    def send_some(self, data: memoryview) -> int:
        """Send what fits now and return how many bytes that was."""
        try:
            return self.socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except ConnectionError as error:
            raise NoConnectionError(f"the server closed the connection: {error}") from None

    def receive(self) -> int:
        """Wait for bytes and return how many came, without PINGs: `flush` answers those.

        Not at once, because a publisher may be in the middle of a frame.
        """
        count = self._receive_into_buffer(0)
        if read_buffer.startswith(b"-ERR", 0, count):
            raise BenchmarkError(f"the server said {bytes(read_buffer[:count])!r}")
        pings = read_buffer.count(PING, 0, count)
        self._pongs_owed += pings
        return count - len(PING) * pings

    def discard(self) -> int:
        """Throw away what has arrived and return how many bytes that was, PINGs included."""
        return self._receive_into_buffer(socket.MSG_DONTWAIT | socket.MSG_TRUNC)

    def flush(self) -> int:
        """Send PING, read up to its PONG, and return how many other bytes came before it."""
        self.send(PONG * self._pongs_owed + PING)
        data = bytearray()
        while PONG not in data:
            data += self.read()
            if b"-ERR" in data:
                raise BenchmarkError(f"the server said {data.decode(errors='replace').strip()}")
        self._pongs_owed = data.count(PING)
        return len(data) - len(PONG) - len(PING) * self._pongs_owed

    def read(self) -> bytes:
        """Wait for bytes and return them, for those who look at what is in them."""
        count = self._receive_into_buffer(0)
        return bytes(read_buffer[:count])

    def _receive_into_buffer(self, flags: int) -> int:
        try:
            count = self.socket.recv_into(read_buffer, 0, flags)
        except BlockingIOError:
            if flags & socket.MSG_DONTWAIT:
                return 0
            raise BenchmarkError(f"the server sent nothing for {PATIENCE} s") from None
        except ConnectionError as error:
            raise NoConnectionError(f"the server closed the connection: {error}") from None
        if not count:
            raise NoConnectionError("the server closed the connection")
        return count


def sample_payloads(sizes: Iterable[int]) -> Iterator[bytes]:
    """Payloads of these sizes, every one another.

    What is in a payload can decide how fast a broker finds its end, so they are what people send:
    JSON, cut to size. It holds no line end and no capitals, so that PING and -ERR stand out.
    """
    chance = random.Random(1)
    # A cut out of a long text, at random, costs less to make than a text for each payload.
    text = "".join(
        json.dumps({"id": index, "sensor": f"room-{index % 40}", "value": chance.random() * 50})
        for index in range(1000)
    ).encode()
    for size in sizes:
        if size >= len(text):
            text *= size // len(text) + 1
        start = chance.randrange(len(text) - size)
        yield text[start : start + size]


def publish_frame(subject: str, payload: bytes) -> bytes:
    return b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload)


def publish_frames(messages: Iterable[SubjectAndSize]) -> bytes:
    """The PUB frames of `messages`, as one chunk."""
    messages = list(messages)
    payloads = sample_payloads(size for _, size in messages)
    return b"".join(
        publish_frame(subject, payload)
        for (subject, _), payload in zip(messages, payloads, strict=True)
    )


def delivered_bytes(messages: Iterable[SubjectAndSize]) -> int:
    """How many bytes one subscriber receives for `messages`."""
    return sum(len(f"MSG {subject} {SID} {size}\r\n") + size + 2 for subject, size in messages)


class Sender:
    """A publisher with its whole send ahead of it: a chunk, `repeats` times, then a tail."""

    def __init__(
        self, connection: LoadConnection, chunk: bytes, repeats: int, tail: bytes = b""
    ) -> None:
        self.connection = connection
        self._chunk = self._rest = memoryview(chunk)
        self._repeats = repeats
        self._tail = memoryview(tail)

    def step(self) -> bool:
        """Send what fits now and return whether anything is left to send."""
        self._rest = self._rest[self.connection.send_some(self._rest) :]
        if not self._rest:
            self._repeats -= 1
            if self._repeats > 0:
                self._rest = self._chunk
            elif self._tail:
                self._rest, self._tail = self._tail, self._tail[:0]
        return bool(self._rest)


def pump(
    senders: Sequence[Sender],
    subscribers: Sequence[LoadConnection],
    expected: int,
    timeout: float = inf,
    progress: Callable[[float], None] | None = None,
) -> float:
    """Send everything and return the seconds until `expected` bytes arrived at the subscribers.

    Without subscribers the bytes are those that come back to the senders: the PONGs. `progress`
    hears now and then which part of them has come.
    """
    sending = {sender.connection.socket.fileno(): sender for sender in senders}
    receiving = {connection.socket.fileno(): connection for connection in subscribers}
    received = 0
    with select.epoll() as epoll:
        for fd in receiving:
            epoll.register(fd, select.EPOLLIN)
        for fd in sending:
            epoll.register(fd, select.EPOLLIN | select.EPOLLOUT)
        started = time.perf_counter()
        next_report = started if progress else inf
        while received < expected:
            events = epoll.poll(min(timeout, PATIENCE))
            now = time.perf_counter()
            if not events or now - started > timeout:
                raise BenchmarkError(f"{received:,} of {expected:,} bytes in {now - started:.0f} s")
            if now > next_report and progress:
                progress(received / expected)
                next_report = now + REPORT
            for fd, event in events:
                if event & ~select.EPOLLOUT:
                    if fd in receiving:
                        received += receiving[fd].discard()
                    else:
                        answered = sending[fd].connection.receive()
                        received += 0 if subscribers else answered
                if event & select.EPOLLOUT and not sending[fd].step():
                    epoll.modify(fd, select.EPOLLIN)
        elapsed = time.perf_counter() - started
    # A PING among the messages ended the count up to 6 bytes early; anything else is a fault.
    surplus = received - expected + sum(connection.flush() for connection in subscribers)
    if surplus % len(PING) or surplus > len(PING) * len(subscribers):
        raise BenchmarkError(f"{surplus:,} bytes more than the {expected:,} expected")
    return elapsed
