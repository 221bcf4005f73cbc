"""Requests a second: one asks, one answers, and each request has a reply subject of its own.

All frames are of the same size, so that what comes need only be counted: so many bytes are so many
requests, and their answers are a piece of what was prepared.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from functools import cache

from benchmarks.measure import Client, Reading
from rtmb.cli.bench_load import PATIENCE, SID, BenchmarkError, LoadConnection

SERVICE = "bench.service"
INBOX = "_INBOX.2hCHw4e0bXkvrKBnrI2Kyz"  # as long as those of client libraries
PAYLOAD = b"0123456789abcdef"
#: So many before a reply subject comes again: more than are remembered.
DISTINCT = 200_000
WARM_UP = 0.1  # seconds


@cache
def prepared(start: str) -> tuple[bytes, ...]:
    """PUB frames that begin so, each with a reply subject of its own."""
    line = f"{start}{INBOX}.%08d {len(PAYLOAD)}\r\n".encode()
    return tuple(line % i + PAYLOAD + b"\r\n" for i in range(DISTINCT))


class Side:
    """One connection: counts what it receives in whole frames, and sends as many of its own."""

    def __init__(self, connection: LoadConnection, hears: str, size: int, sends: str) -> None:
        self.connection = connection
        self._size = size
        self._frames = prepared(sends)
        self._at = 0
        self._received = 0
        connection.subscribe(hears)

    def send(self, count: int) -> None:
        frames = self._frames[self._at : self._at + count]
        if len(frames) < count:
            frames += self._frames[: count - len(frames)]
        self._at = (self._at + count) % DISTINCT
        self.connection.send(b"".join(frames))

    def receive(self) -> int:
        """How many frames are complete."""
        self._received += self.connection.receive()
        count, self._received = divmod(self._received, self._size)
        return count

    def close(self) -> None:
        self.connection.unsubscribe()


def exchange(requester: Side, responder: Side, in_flight: int, seconds: float) -> float:
    """Requests a second."""
    done, sent = 0, in_flight
    sockets = {side.connection.socket: side for side in (requester, responder)}
    started = time.perf_counter()
    end = started + seconds
    requester.send(in_flight)
    while done < sent:
        ready = select.select(sockets, (), (), PATIENCE)[0]
        if not ready:
            raise BenchmarkError(f"{sent - done} requests were not answered in {PATIENCE} s")
        for link in ready:
            side = sockets[link]
            count = side.receive()
            if side is requester:
                done += count
                if time.perf_counter() >= end:
                    continue  # those on their way are waited for
                sent += count
            if count:
                side.send(count)
    return done / (time.perf_counter() - started)


def requests(client: Client, in_flight: int) -> Iterator[Reading]:
    inbox = f"{INBOX}.{0:08}"
    asked = len(f"MSG {SERVICE} {SID} {inbox} {len(PAYLOAD)}\r\n\r\n") + len(PAYLOAD)
    answered = len(f"MSG {inbox} {SID} {len(PAYLOAD)}\r\n\r\n") + len(PAYLOAD)
    one, other = client.connections(2)
    requester = Side(one, f"{INBOX}.*", answered, f"PUB {SERVICE} ")
    responder = Side(other, SERVICE, asked, "PUB ")
    exchange(requester, responder, in_flight, WARM_UP)
    rate = exchange(requester, responder, in_flight, client.seconds)
    requester.close()
    responder.close()
    yield Reading(f"request and reply, 16 B, {in_flight} in flight", "requests/s", rate)
