"""What only the broker's own benchmarks measure with, besides the load client of `rtmb bench`: one
publisher and one subscriber, and latencies between them."""

from __future__ import annotations

import select
import time
from dataclasses import dataclass

from rtmb.cli.bench_load import (
    PATIENCE,
    SPIN,
    BenchmarkError,
    LoadConnection,
    delivered_bytes,
    publish_frames,
)

TICK = 0.001  # seconds between two paced sends


@dataclass(frozen=True)
class SubjectRoute:
    """A publisher and a subscriber of one subject, each on its own connection."""

    publisher: LoadConnection
    subscriber: LoadConnection
    subject: str
    size: int

    def open(self) -> SubjectRoute:
        self.subscriber.subscribe(self.subject)
        return self

    def close(self) -> None:
        self.publisher.flush()
        self.subscriber.unsubscribe()

    def frames(self, count: int = 1) -> bytes:
        return publish_frames([(self.subject, self.size)] * count)

    @property
    def delivered(self) -> int:
        return delivered_bytes([(self.subject, self.size)])


def ping_pong_latencies(route: SubjectRoute, seconds: float) -> list[float]:
    """Seconds from publisher to subscriber, one message in flight at a time."""
    frame, delivered = route.frames(), route.delivered
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    sent = 0.0
    while sent < end:
        sent = time.perf_counter()
        route.publisher.send(frame)
        missing = delivered
        while missing > 0:
            missing -= route.subscriber.receive()
        latencies.append(time.perf_counter() - sent)
    return latencies


def paced_latencies(
    probe: SubjectRoute,
    background: SubjectRoute,
    rate: int,
    seconds: float,
    background_reads: bool = True,
) -> list[float]:
    """Seconds from each probe's intended time to its arrival, with `rate` other messages a second.

    Counting from the intended time charges a stall to every probe it held up, not to one only.
    """
    frame, delivered = probe.frames(), probe.delivered
    burst = memoryview(background.frames(round(rate * TICK)))
    rest = burst[:0]
    watched = [probe.subscriber] + ([background.subscriber] if background_reads else [])
    sockets = {connection.socket: connection for connection in watched}
    total = round(seconds / TICK)
    latencies: list[float] = []
    sent = bursts = received = 0
    started = time.perf_counter() + TICK
    while len(latencies) < total:
        now = time.perf_counter()
        if now > started + seconds + PATIENCE:
            raise BenchmarkError(f"{total - len(latencies):,} of {total:,} probes did not arrive")
        if sent < total and now >= started + sent * TICK:
            probe.publisher.send(frame)
            sent += 1
        # Half a tick off, so that a probe meets a broker at work and not always a fresh burst.
        if sent < total and now >= started + (bursts + 0.5) * TICK:
            rest = rest or burst  # a publisher that is held back skips bursts, as a real one would
            bursts += 1
        if rest:
            rest = rest[background.publisher.send_some(rest) :]
        due = started + min(sent, bursts + 0.5) * TICK - SPIN
        wait = max(0.0, due - time.perf_counter()) if sent < total else TICK
        for ready in select.select(sockets, (), (), wait)[0]:
            if ready is not probe.subscriber.socket:
                sockets[ready].discard()
                continue
            received += probe.subscriber.receive()
            now = time.perf_counter()
            for index in range(len(latencies), received // delivered):
                latencies.append(now - started - index * TICK)
    if background_reads:
        background.publisher.send(rest)  # the connection is used again: end on a whole frame
    return latencies
