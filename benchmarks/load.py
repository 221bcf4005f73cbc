"""What only the broker's own benchmarks measure with, besides the load client of `rtmb bench`: one
publisher and one subscriber, and latencies between them."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rtmb.cli.bench_load import (
    PATIENCE,
    SID,
    SPIN,
    BenchmarkError,
    LoadConnection,
    SubjectAndSize,
    delivered_bytes,
    publish_frames,
    sample_payloads,
)

TICK = 0.001  # seconds between two paced sends


HEADERS = b"NATS/1.0\r\ntrace: 4f1c2a90\r\ncontent-type: application/json\r\n\r\n"


@dataclass(frozen=True)
class Form:
    """What the messages of a chunk have besides subject and payload."""

    headers: bytes = b""
    #: Each has a reply subject of its own.
    reply: bool = False

    def frames(self, messages: Sequence[SubjectAndSize]) -> bytes:
        """Their PUB or HPUB frames, as one chunk."""
        payloads = sample_payloads(size for _, size in messages)
        verb = self._verb("PUB")
        return b"".join(
            b"%b %b%b %b\r\n%b%b\r\n"
            % (verb, subject.encode(), self._reply(i), self._sizes(size), self.headers, payload)
            for i, ((subject, size), payload) in enumerate(zip(messages, payloads, strict=True))
        )

    def delivered(self, messages: Sequence[SubjectAndSize]) -> int:
        """How many bytes one subscriber receives for them."""
        around = len(self._verb("MSG") + self._reply(0) + self.headers) + len(f"  {SID} \r\n\r\n")
        return sum(len(subject) + around + len(self._sizes(n)) + n for subject, n in messages)

    def _verb(self, verb: str) -> bytes:
        return ("H" + verb if self.headers else verb).encode()

    def _reply(self, index: int) -> bytes:
        return b" _INBOX.bench.%08d" % index if self.reply else b""

    def _sizes(self, payload: int) -> bytes:
        size = len(self.headers) + payload
        return b"%d %d" % (len(self.headers), size) if self.headers else b"%d" % size


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
