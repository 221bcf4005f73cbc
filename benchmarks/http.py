"""`python -m benchmarks.http`: the HTTP door beside a small aiohttp server that does the same work
(`benchmarks.peers.fanout`).

Events a second over `/ws` and as Server-Sent Events, to 1 and to 100 clients, and publications a
second by `POST /publish`. Both servers speak the same wire, so one load client serves both. It
sends a burst, smaller than rtmb would ever drop of, and sends the next when everyone has read it:
every message is counted. All ratios are of one round: neighbours in time.
"""

from __future__ import annotations

import argparse
import base64
import gc
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import Reading
from benchmarks.report import Report
from benchmarks.servers import SCRIPTS, Broker
from rtmb import __version__
from rtmb.cli.bench_load import BenchmarkError, HostAndPort

TOPIC = "bench"
#: Fewer than `ws_queue`, so that nothing is ever dropped.
BURST = 50
CLIENTS = (1, 100)
#: Connections that publish by POST at the same time.
POSTERS = 8
BODY = {"n": 12345, "text": "x" * 64}
#: What is counted: it stands once in each event, once in each ack, once in each answer.
EVENT, ACK, ANSWER = b'"payload"', b'"ack"', b'"published"'
PATIENCE = 20.0


def masked(text: bytes) -> bytes:
    """A text frame as a client sends it; with a mask of zeros, which is as good as any."""
    size = len(text)
    head = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return b"\x81" + head + b"\0\0\0\0" + text


class Peer:
    """One connection to a server, and how often a word has come."""

    def __init__(self, address: HostAndPort, word: bytes) -> None:
        self.socket = socket.create_connection(address, PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._word = word
        self._tail = b""
        self.count = 0

    def expect(self, end: bytes) -> None:
        data = b""
        while end not in data:
            more = self.socket.recv(65536)
            if not more:
                raise BenchmarkError(f"closed before {end!r}: {data!r}")
            data += more

    def read(self) -> None:
        data = self._tail + self.socket.recv(1 << 20)
        if len(data) == len(self._tail):
            raise BenchmarkError("the server closed a connection")
        self.count += data.count(self._word)
        self._tail = data[-(len(self._word) - 1) :]
        if self._word in self._tail:
            raise AssertionError("a word is longer than what is kept of it")

    def upgrade(self, path: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.expect(b"\r\n\r\n")


def subscriber(address: HostAndPort) -> Peer:
    peer = Peer(address, EVENT)
    peer.upgrade("/ws")
    command = {"type": "subscribe", "topic": TOPIC, "client_id": "bench"}
    peer.socket.sendall(masked(json.dumps(command).encode()))
    peer.expect(b'"ack"')
    return peer


def stream(address: HostAndPort) -> Peer:
    peer = Peer(address, EVENT)
    peer.socket.sendall(f"GET /events/{TOPIC} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
    peer.expect(b"retry: 1000\n\n")
    return peer


def wait_for(peers: Sequence[Peer], count: int) -> None:
    """Read until each has `count`."""
    end = time.monotonic() + PATIENCE
    with selectors.DefaultSelector() as selector:
        missing = 0
        for peer in peers:
            if peer.count < count:
                selector.register(peer.socket, selectors.EVENT_READ, peer)
                missing += 1
        while missing:
            for key, _ in selector.select(1.0):
                peer = key.data
                peer.read()
                if peer.count >= count:
                    selector.unregister(peer.socket)
                    missing -= 1
            if time.monotonic() > end:
                raise BenchmarkError(f"{missing} of {len(peers)} clients miss messages")


def fan_out(
    address: HostAndPort, make: Callable[[HostAndPort], Peer], n: int, seconds: float
) -> float:
    """Events delivered a second."""
    with ExitStack() as stack:
        peers = [make(address) for _ in range(n)]
        publisher = Peer(address, ACK)
        publisher.upgrade("/ws")
        for peer in (*peers, publisher):
            stack.callback(peer.socket.close)
        command = {"type": "publish", "topic": TOPIC, "message": {"payload": BODY}}
        burst = masked(json.dumps(command).encode()) * BURST
        sent = 0
        start = now = time.perf_counter()
        while now - start < seconds:
            publisher.socket.sendall(burst)
            sent += BURST
            wait_for([*peers, publisher], sent)
            now = time.perf_counter()
        return sent * n / (now - start)


def posts(address: HostAndPort, seconds: float) -> float:
    """Publications a second."""
    body = json.dumps(BODY).encode()
    head = f"POST /publish/{TOPIC} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        peers = [Peer(address, ANSWER) for _ in range(POSTERS)]
        for peer in peers:
            stack.callback(peer.socket.close)
            selector.register(peer.socket, selectors.EVENT_READ, peer)
            peer.socket.sendall(request)
        start = now = time.perf_counter()
        while now - start < seconds:
            for key, _ in selector.select(PATIENCE):
                peer, before = key.data, key.data.count
                peer.read()
                if peer.count > before:
                    peer.socket.sendall(request)
            now = time.perf_counter()
        return sum(peer.count for peer in peers) / (now - start)


def readings(address: HostAndPort, seconds: float) -> Iterator[Reading]:
    for n in CLIENTS:
        yield Reading(f"/ws, {n} clients", "events/s", fan_out(address, subscriber, n, seconds))
    for n in CLIENTS:
        yield Reading(f"SSE, {n} clients", "events/s", fan_out(address, stream, n, seconds))
    yield Reading("POST /publish", "messages/s", posts(address, seconds))


def rtmb_command(port: int, scratch: Path) -> list[str]:
    twistd = [str(SCRIPTS / "twistd"), "-n", "--pidfile=", "rtmb", "--no-msgpack"]
    return [*twistd, "--port", "0", "--http-port", str(port)]


def peer_command(port: int, scratch: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.peers.fanout", str(port)]


SERVERS = (Broker("rtmb", rtmb_command), Broker("aiohttp", peer_command))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="for each reading")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every reading there too")
    options = parser.parse_args(arguments)
    import aiohttp

    gc.disable()
    report = Report([server.name for server in SERVERS])
    report.versions.update(rtmb=__version__, aiohttp=aiohttp.__version__)
    with ExitStack() as stack:
        running = [stack.enter_context(server.running()) for server in SERVERS]
        for turn in range(options.rounds):
            for server in running:
                print(f"round {turn + 1}, {server.name}", file=sys.stderr)
                try:
                    report.add(server.name, turn, readings(server.address, options.seconds))
                except (BenchmarkError, OSError) as error:
                    report.failures.append(f"round {turn + 1}, {server.name}: {error}")
    print(report.markdown())
    if options.json:
        options.json.write_text(report.json())
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
