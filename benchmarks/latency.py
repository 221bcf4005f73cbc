"""How long a message takes from one connection to another, alone and beside other traffic."""

import select
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from benchmarks.load import (
    ANSWER_SECONDS,
    CHUNK_BYTES,
    PING,
    RECEIVE_BYTES,
    Batch,
    Connection,
    LoadError,
    batch,
)

PROBE = batch([("probe", 16)])
BURST_SECONDS = 0.001
# Out of step with the bursts, so that probes meet them at every phase.
PROBE_SECONDS = 0.00113


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that `share` of them do not exceed."""
    return sorted(samples)[max(0, ceil(len(samples) * share) - 1)]


def round_trips(publisher: Connection, subscriber: Connection, seconds: float) -> list[float]:
    """Seconds from publisher to subscriber of each probe, one in flight at a time."""
    samples = []
    now = time.perf_counter()
    warm, end = now + seconds / 10, now + seconds * 1.1
    while now < end:
        start = time.perf_counter()
        publisher.socket.sendall(PROBE.frames)
        missing = PROBE.delivered
        while missing > 0:
            missing -= _count(subscriber)
        now = time.perf_counter()
        if start >= warm:
            samples.append(now - start)
    return samples


@dataclass
class Background:
    """Steady traffic beside the probes: a burst every millisecond, from one connection."""

    publisher: Connection
    burst: Batch
    # The subscriber, when it is to read; one that never reads is not named here.
    reader: Connection | None = None
    _owed: int = 0
    _offset: int = 0

    def push(self, bursts: int) -> None:
        """Send what is due; what the server does not take now stays owed, up to a chunk."""
        frames = self.burst.frames
        self._owed = min(self._owed + bursts * len(frames), max(CHUNK_BYTES, len(frames)))
        with suppress(BlockingIOError):
            while self._owed:
                view = memoryview(frames)[self._offset : self._offset + self._owed]
                sent = self.publisher.socket.send(view)
                self._owed -= sent
                self._offset = (self._offset + sent) % len(frames)


def scheduled(
    publisher: Connection, subscriber: Connection, background: Background, seconds: float
) -> list[float]:
    """Seconds from when each probe was *due* until it arrived.

    Probes go out by the clock, whatever became of the ones before, so that a broker which
    stalls is charged for every message that had to wait and not only for the one it held.
    """
    _wake_on_time()
    background.publisher.socket.setblocking(False)
    reader = background.reader
    sources = [subscriber, *([reader] if reader else [])]
    samples: list[float] = []
    due: deque[float] = deque()
    unread = 0
    next_burst = next_probe = time.perf_counter()
    end = next_probe + seconds
    while due or next_probe < end:
        now = time.perf_counter()
        if now > end + ANSWER_SECONDS:
            raise LoadError(f"{len(due)} probes never arrived")
        if now >= next_burst:
            bursts = int((now - next_burst) / BURST_SECONDS) + 1
            background.push(bursts)
            next_burst += bursts * BURST_SECONDS
        while next_probe <= min(now, end):
            publisher.socket.sendall(PROBE.frames)
            due.append(next_probe)
            next_probe += PROBE_SECONDS
        pause = min(next_burst, next_probe) - time.perf_counter()
        readable = select.select(sources, (), (), max(0.0, pause))[0]
        if subscriber in readable:
            unread += _count(subscriber)
            now = time.perf_counter()
            while unread >= PROBE.delivered:
                unread -= PROBE.delivered
                samples.append(now - due.popleft())
        if reader in readable and reader:
            _count(reader)
    return samples


def _count(connection: Connection) -> int:
    """Bytes of messages that have arrived, without a PING among them."""
    data = connection.socket.recv(RECEIVE_BYTES)
    if not data:
        raise LoadError("the server closed a connection that was reading")
    return len(data) - len(PING) * data.count(PING)


def _wake_on_time() -> None:
    # By default Linux may wake a process 50 us late, as long as a whole delivery takes.
    with suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1")
