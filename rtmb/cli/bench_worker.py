"""The process that `rtmb bench` measures with: it makes the load and nothing else.

It reads a `BenchPlan` from its standard input and writes what happens to its standard output, a
JSON object a line. Drawing the progress is left to the process that started it, so that it costs
the measurement nothing.
"""

from __future__ import annotations

import gc
import select
import signal
import sys
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any

import msgspec

from rtmb.cli.bench_load import (
    PATIENCE,
    PING,
    PONG,
    REPORT,
    SPIN,
    BenchmarkError,
    LoadConnection,
    NoConnectionError,
    Sender,
    TlsWantedError,
    delivered_bytes,
    publish_frame,
    pump,
    sample_payloads,
)
from rtmb.cli.bench_tls import TlsLoadConnection, client_context
from rtmb.client.address import Login, Nkey, parse_url

CHUNK = 256 * 1024  # bytes of frames prepared for a publisher; more no longer makes it cheaper
SAMPLES = 1000  # different payloads, where none are given
#: In constant-rate mode each payload begins with its message's number, in hexadecimal.
NUMBER = 8
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


class BenchServer(msgspec.Struct, kw_only=True):
    """Where to connect, who we are there, and whom we trust."""

    url: str
    user: str | None = None
    password: str | None = None
    token: str | None = None
    nkey_seed: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


class BenchPlan(msgspec.Struct, kw_only=True):
    servers: list[BenchServer]
    publishers: int
    subscribers: int
    size: int
    subjects: int
    queue: str
    rounds: int
    #: How long a round takes, unless `messages` says how much is sent in it.
    seconds: float
    messages: int | None
    #: Messages a second; None: as fast as it goes.
    rate: float | None
    #: Used in turn; none: made up, of `size`.
    payloads: list[bytes]


class RoundProgress(msgspec.Struct, tag=True):
    server: int
    turn: int
    part: float


class RoundResult(msgspec.Struct, tag=True):
    """One round against one server."""

    server: int
    turn: int
    version: str
    seconds: float
    published: int
    delivered: int
    payload_bytes: int  # of all that was delivered, or published where nobody subscribes
    #: Microseconds from a message's intended time to its arrival.
    latency: dict[str, float] | None = None
    #: Microseconds that the load itself was late at most.
    late: float | None = None


class BenchProblem(msgspec.Struct, tag=True):
    server: int
    text: str
    #: Whether the server is not there, does not let us in, or went away.
    no_connection: bool


Event = RoundProgress | RoundResult | BenchProblem


class ServerBench:
    """The connections to one server, and rounds of the plan on them."""

    def __init__(self, plan: BenchPlan, index: int, report: Callable[[Event], None]) -> None:
        self.plan = plan
        self.index = index
        self._report = report
        server = plan.servers[index]
        connections = list(_connections(server, plan.publishers + plan.subscribers))
        self.publishers = connections[: plan.publishers]
        self.subscribers = connections[plan.publishers :]
        self.version = str(connections[0].info.get("version", ""))
        largest = int(connections[0].info.get("max_payload", 1 << 20))
        # Its own subjects, so that two runs at once do not meet.
        prefix = f"bench.{uuid.uuid4().hex[:8]}"
        self._subjects = [f"{prefix}.{n}" for n in range(plan.subjects)]
        self._payloads = plan.payloads or list(sample_payloads([plan.size] * SAMPLES))
        if max(map(len, self._payloads)) > largest:
            raise BenchmarkError(f"the server takes payloads of at most {largest:,} bytes")
        for subscriber in self.subscribers:
            subscriber.subscribe(f"{prefix}.*" if plan.subjects > 1 else f"{prefix}.0", plan.queue)
        #: How many subscribers get a message.
        self._copies = min(1, plan.subscribers) if plan.queue else plan.subscribers
        self._chunks: int | None = None

    def close(self) -> None:
        for connection in (*self.publishers, *self.subscribers):
            connection.close()

    def round(self, turn: int) -> RoundResult:
        def progress(part: float) -> None:
            self._report(RoundProgress(self.index, turn, part))

        if self.plan.rate is not None:
            return self._paced(turn, self.plan.rate, progress)
        return self._flat_out(turn, progress)

    def _messages(self) -> Iterator[tuple[str, bytes]]:
        return zip(cycle(self._subjects), cycle(self._payloads), strict=True)

    def _result(
        self, turn: int, seconds: float, shares: list[int], sizes: list[int]
    ) -> RoundResult:
        """Of a round in which each publisher sent its share of messages, of these sizes in turn."""
        published, copies = sum(shares), self._copies
        payloads = sum(
            share // len(sizes) * sum(sizes) + sum(sizes[: share % len(sizes)]) for share in shares
        )
        return RoundResult(
            server=self.index,
            turn=turn,
            version=self.version,
            seconds=seconds,
            published=published,
            delivered=published * copies,
            payload_bytes=payloads * max(1, copies),
        )

    # As fast as it goes

    def _flat_out(self, turn: int, progress: Callable[[float], None]) -> RoundResult:
        """Prepared chunks out, counted bytes in."""
        plan = self.plan
        average = sum(map(len, self._payloads)) / len(self._payloads) + 40
        count = max(int(CHUNK / average), len(self._subjects), len(plan.payloads), 1)
        chunk = list(islice(self._messages(), count))
        if plan.messages is None:
            if self._chunks is None:
                self._chunks = self._calibrate(chunk)
            shares = [self._chunks * count] * plan.publishers
        else:
            each, more = divmod(plan.messages, plan.publishers)
            shares = [each + (n < more) for n in range(plan.publishers)]
        seconds = self._send(chunk, shares, progress)
        return self._result(turn, seconds, shares, [len(payload) for _, payload in chunk])

    def _calibrate(self, chunk: list[tuple[str, bytes]]) -> int:
        """How many chunks of each publisher fill the time; also warms the server up."""
        chunks, wanted = 1, self.plan.seconds
        while True:
            elapsed = self._send(chunk, [chunks * len(chunk)] * self.plan.publishers)
            if elapsed >= min(0.2, wanted / 2):
                return max(1, round(chunks * wanted / elapsed))
            chunks *= 4

    def _send(
        self,
        chunk: list[tuple[str, bytes]],
        shares: list[int],
        progress: Callable[[float], None] | None = None,
    ) -> float:
        """Send so many messages from each publisher; seconds until all have arrived."""
        frames = b"".join(publish_frame(*message) for message in chunk)
        sizes = [(subject, len(payload)) for subject, payload in chunk]
        whole = delivered_bytes(sizes)
        end = b"" if self.subscribers else PING
        expected, senders = 0, []
        for publisher, share in zip(self.publishers, shares, strict=True):
            repeats, rest = divmod(share, len(chunk))
            tail = b"".join(publish_frame(*message) for message in chunk[:rest]) + end
            expected += repeats * whole + delivered_bytes(sizes[:rest])
            if repeats:
                senders.append(Sender(publisher, frames, repeats, tail))
            elif tail:
                senders.append(Sender(publisher, tail, 1))
        expected = expected * self._copies if self.subscribers else len(PONG) * len(senders)
        return pump(senders, self.subscribers, expected, progress=progress)

    # At a constant rate

    def _paced(self, turn: int, rate: float, progress: Callable[[float], None]) -> RoundResult:
        """Each message at its time, and its latency from that time on.

        Counting from the intended time charges a stall to every message it held up, not to one.
        """
        total = self.plan.messages or max(1, round(rate * self.plan.seconds))
        cut = 0 if self.plan.payloads else NUMBER  # the number is part of --size
        heads = [
            (b"PUB %b %d\r\n" % (subject.encode(), NUMBER + len(payload[cut:])), payload[cut:])
            for subject, payload in islice(
                self._messages(), max(len(self._subjects), len(self._payloads))
            )
        ]
        run = _PacedRun(self.publishers, self.subscribers, heads, rate, total, self._copies)
        seconds = run.run(progress)
        result = self._result(turn, seconds, [total], [NUMBER + len(body) for _, body in heads])
        if run.latencies:
            latencies = sorted(run.latencies)
            result.latency = {
                name: latencies[min(len(latencies) - 1, int(len(latencies) * part))] * 1e6
                for name, part in PERCENTILES.items()
            }
        result.late = run.late * 1e6
        return result


class _PacedRun:
    """One round at a constant rate, all publishers on one schedule, in turn."""

    def __init__(
        self,
        publishers: Sequence[LoadConnection],
        subscribers: Sequence[LoadConnection],
        heads: Sequence[tuple[bytes, bytes]],
        rate: float,
        total: int,
        copies: int,
    ) -> None:
        self._heads, self._rate, self._total = heads, rate, total
        self._expected = total * copies
        self.latencies = array("d")
        self.late = 0.0
        self._started = 0.0
        self._sent = 0
        self._publishers = list(publishers)
        self._unsent = [bytearray() for _ in publishers]
        self._rest = {connection.socket.fileno(): b"" for connection in subscribers}
        self._by_fd = {c.socket.fileno(): c for c in (*publishers, *subscribers)}

    def run(self, progress: Callable[[float], None]) -> float:
        with select.epoll() as epoll:
            for fd in self._by_fd:
                epoll.register(fd, select.EPOLLIN)
            self._started = time.perf_counter() + 0.01
            last_arrival = next_report = self._started
            while not self._done():
                now = time.perf_counter()
                self._send_due(now)
                if now > next_report:
                    progress(self._sent / self._total)
                    next_report = now + REPORT
                # Not epoll's own timeout, which counts in whole milliseconds.
                if not select.select([epoll.fileno()], (), (), self._pause())[0]:
                    if now - max(last_arrival, self._due(self._sent)) > PATIENCE:
                        missing = self._expected - len(self.latencies)
                        raise BenchmarkError(f"{missing:,} of {self._expected:,} did not arrive")
                    continue
                for fd, _ in epoll.poll(0):
                    data = self._by_fd[fd].read()
                    self._take(fd, data)
                last_arrival = time.perf_counter()
        ended = time.perf_counter()
        for connection in self._publishers if not self._rest else ():
            connection.flush()
        return ended - self._started

    def _done(self) -> bool:
        sent = self._sent == self._total and not any(self._unsent)
        return sent and len(self.latencies) >= self._expected

    def _due(self, index: int) -> float:
        return self._started + index / self._rate

    def _send_due(self, now: float) -> None:
        due = min(self._total, int((now - self._started) * self._rate) + 1)
        if now >= self._started and due > self._sent:
            self.late = max(self.late, now - self._due(self._sent))
            for index in range(self._sent, due):
                head, body = self._heads[index % len(self._heads)]
                self._unsent[index % len(self._unsent)] += b"%b%08x%b\r\n" % (head, index, body)
            self._sent = due
        for publisher, unsent in zip(self._publishers, self._unsent, strict=True):
            if unsent:
                with memoryview(unsent) as view:
                    count = publisher.send_some(view)
                del unsent[:count]

    def _pause(self) -> float:
        if any(self._unsent):
            return SPIN  # a publisher is held back
        if self._sent == self._total:
            return REPORT
        # Timers wake late, so the last stretch to a send is polled.
        wait = self._due(self._sent) - time.perf_counter() - SPIN
        return min(REPORT, max(0.0, wait))

    def _take(self, fd: int, data: bytes) -> None:
        """Find the messages in what came, and note when."""
        now = time.perf_counter()
        data = self._rest.get(fd, b"") + data
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            if data.startswith(b"MSG ", at):
                size = int(data[data.rindex(b" ", at, end) + 1 : end])
                if len(data) < end + 4 + size:
                    break
                index = int(data[end + 2 : end + 2 + NUMBER], 16)
                self.latencies.append(now - self._due(index))
                at = end + 4 + size
                continue
            if data.startswith(b"-ERR", at):
                raise BenchmarkError(f"the server said {data[at:end].decode(errors='replace')}")
            if data.startswith(b"PING", at):
                self._pong(fd)
            at = end + 2
        if fd in self._rest:
            self._rest[fd] = data[at:]

    def _pong(self, fd: int) -> None:
        connection = self._by_fd[fd]
        if fd in self._rest:
            connection.send(PONG)
        else:  # after what it has begun to send
            self._unsent[self._publishers.index(connection)] += PONG


def _connections(server: BenchServer, count: int) -> Iterator[LoadConnection]:
    address = parse_url(server.url)
    nkey = Nkey(server.nkey_seed) if server.nkey_seed else None
    login = Login(server.user, server.password, server.token, nkey)
    where = address.host, address.port

    def fields(info: Mapping[str, Any]) -> Mapping[str, str]:
        return login.fields(address, info)

    tls = address.secure or server.tls_ca is not None or server.tls_cert is not None
    for _ in range(count):
        if not tls:
            try:
                yield LoadConnection(where, fields)
                continue
            except TlsWantedError:
                tls = True
        context = client_context(server.tls_ca, server.tls_cert, server.tls_key)
        yield TlsLoadConnection(where, fields, context)


@contextmanager
def _benches(plan: BenchPlan, report: Callable[[Event], None]) -> Iterator[list[ServerBench]]:
    benches: list[ServerBench] = []
    try:
        for index in range(len(plan.servers)):
            try:
                benches.append(ServerBench(plan, index, report))
            except (BenchmarkError, OSError) as error:
                raise _BenchError(index, error) from None
        yield benches
    finally:
        for bench in benches:
            bench.close()


class _BenchError(Exception):
    def __init__(self, server: int, cause: Exception) -> None:
        super().__init__(server, cause)
        self.server = server
        self.cause = cause


def work(plan: BenchPlan, report: Callable[[Event], None]) -> None:
    """All rounds, the servers in turn: what else the machine does then hits them alike."""
    try:
        with _benches(plan, report) as benches:
            gc.disable()  # nothing here is in cycles, and a pause would count as the server's
            for turn in range(plan.rounds):
                for bench in benches:
                    try:
                        report(bench.round(turn))
                    except (BenchmarkError, OSError) as error:
                        raise _BenchError(bench.index, error) from None
    except _BenchError as trouble:
        lost = isinstance(trouble.cause, NoConnectionError)
        report(BenchProblem(trouble.server, str(trouble.cause), lost))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the one who started us
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=BenchPlan)
    encoder = msgspec.json.Encoder()

    def report(event: Event) -> None:
        sys.stdout.buffer.write(encoder.encode(event) + b"\n")
        sys.stdout.buffer.flush()

    try:
        work(plan, report)
    except BrokenPipeError:  # the one who started us is gone
        sys.stdout = None


if __name__ == "__main__":
    main()
