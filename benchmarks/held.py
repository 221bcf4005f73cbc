"""What a server holds, what that takes of its memory, and what it does to the traffic beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache

from benchmarks.measure import Client, Reading
from benchmarks.throughput import ONE_TO_ONE, throughput
from rtmb.cli.bench_load import (
    LoadConnection,
    Sender,
    SubjectAndSize,
    delivered_bytes,
    publish_frames,
    pump,
)

FIRST_PING = 2.5  # seconds after which a server has sent its first PING to a library client
SETTLE = 0.5  # seconds from the first connection accepted to the last of the start
SUBJECTS = 100_000
HOLDERS = 4  # connections that hold the other subscriptions


#: Nine in ten literal, the others with one or the other wildcard.
MOSTLY_LITERAL = ("{h}.{n}.*", *["{h}.{n}.value"] * 9, "{h}.{n}.>", *["{h}.{n}.value"] * 9)
#: Half of them with a wildcard: at the end, or in the middle.
HALF_WILD = ("{h}.{n}.value", "{h}.{n}.*", "{h}.{n}.value", "*.{n}.value{h}")
BATCH = 25_000  # lines a holder sends before the others have their turn
MATCHED = 20_000  # messages, each on another subject that one of those held matches


def pattern(kind: Sequence[str], holder: int, number: int) -> str:
    return "held." + kind[number % len(kind)].format(h=holder, n=number)


@cache
def matched_messages(kind: Sequence[str], shares: tuple[int, ...]) -> tuple[bytes, int, int]:
    """A chunk of messages that each one of the subscriptions matches, evenly taken from all; how
    many they are, and how many bytes the holders receive for them.
    """
    total = sum(shares)
    messages: list[SubjectAndSize] = []
    sids = 0
    for i in range(min(MATCHED, total)):
        number, holder = divmod(i * total // min(MATCHED, total), len(shares))
        name = pattern(kind, holder, number)
        subject = name.replace(".*.", f".{holder}.").replace("*", "value").replace(">", "value")
        messages.append((subject, 128))
        sids += len(str(number))
    received = delivered_bytes(messages) + sids - len(messages)  # it takes each sid for one digit
    repeats = max(1, MATCHED // len(messages))
    return publish_frames(messages) * repeats, len(messages) * repeats, received * repeats


def memory_each(client: Client, before: int | None, count: int, what: str) -> Iterator[Reading]:
    after = client.server.memory()
    # The memory of ten of anything is lost among the pages that come and go by themselves.
    if before is not None and after is not None and count >= 1000:
        yield Reading(what, "B", (after - before) / count, lower_is_better=True)


class Holders:
    """A few connections that hold many subscriptions, each on a subject of its own."""

    def __init__(self, client: Client, count: int, kind: Sequence[str]) -> None:
        self._client = client
        self._kind = kind
        self._shares = tuple(len(range(index, count, HOLDERS)) for index in range(HOLDERS))
        self._connections = [LoadConnection(client.server.address) for _ in range(HOLDERS)]

    def subscribe(self) -> float:
        """Seconds that it took."""
        elapsed = 0.0
        for start in range(0, max(self._shares), BATCH):
            lines = [
                b"".join(
                    b"SUB %b %d\r\n" % (pattern(self._kind, holder, n).encode(), n)
                    for n in range(start, min(start + BATCH, share))
                )
                for holder, share in enumerate(self._shares)
            ]
            started = time.perf_counter()
            for connection, chunk in zip(self._connections, lines, strict=True):
                connection.send(chunk)
            for connection in self._connections:
                connection.flush()
            elapsed += time.perf_counter() - started
        return elapsed

    def matched(self) -> float:
        """Messages a second, to them, on as many subjects as there may be."""
        chunk, count, each = matched_messages(self._kind, self._shares)
        (publisher,) = self._client.connections(1)

        def run(repeats: int) -> float:
            timeout = 20 + 10 * self._client.seconds
            sender = Sender(publisher, chunk, repeats)
            return pump([sender], self._connections, repeats * each, timeout)

        return count / self._client.seconds_each(f"{count} matched", run)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def subscriptions(
    client: Client, count: int, kind: Sequence[str] = MOSTLY_LITERAL
) -> Iterator[Reading]:
    throughput(client, ONE_TO_ONE)  # so that what traffic needs is not counted below
    with closing(Holders(client, count, kind)) as holders:
        before = client.server.memory()
        elapsed = holders.subscribe()
        held = f"{count:,} subscriptions"
        if count >= 1000:  # fewer time the round trip, not the subscriptions
            yield Reading(f"{held}: made", "SUB/s", count / elapsed)
        yield from memory_each(client, before, count, f"{held}: memory for each")
        rate = throughput(client, ONE_TO_ONE).per_second
        yield Reading(f"{held} held: 1→1, 128 B", "msg/s", rate)
        if kind is HALF_WILD:
            label = f"{held} held: {MATCHED:,} subjects that match one each, 128 B"
            yield Reading(label, "msg/s", holders.matched())


@contextmanager
def idle_connections(client: Client, count: int) -> Iterator[float]:
    """So many that do nothing; gives the seconds that it took to open them."""
    idle: list[LoadConnection] = []
    try:
        started = time.perf_counter()
        for _ in range(count):
            idle.append(LoadConnection(client.server.address))
        elapsed = time.perf_counter() - started
        time.sleep(FIRST_PING)  # thousands of first PINGs would disturb the throughput
        yield elapsed
    finally:
        for connection in idle:
            connection.close()


def connections(client: Client, count: int) -> Iterator[Reading]:
    throughput(client, ONE_TO_ONE)
    before = client.server.memory()
    with idle_connections(client, count) as elapsed:
        held = f"{count:,} connections"
        if count >= 1000:
            yield Reading(f"{held}: opened", "conn/s", count / elapsed)
        yield from memory_each(client, before, count, f"{held}: memory for each")
        rate = throughput(client, ONE_TO_ONE).per_second
        yield Reading(f"{held} held: 1→1, 128 B", "msg/s", rate)


def memory(client: Client) -> Iterator[Reading]:
    """What a server takes before anyone comes, and for each subject that it has heard of."""
    time.sleep(SETTLE)
    if (start := client.server.memory()) is not None:
        yield Reading("memory at start", "MiB", start / 2**20, lower_is_better=True)
    throughput(client, ONE_TO_ONE)
    before = client.server.memory()
    (publisher,) = client.connections(1)
    publisher.send(publish_frames([(f"held.{n}.value", 128) for n in range(SUBJECTS)]))
    publisher.flush()
    label = f"memory for each of {SUBJECTS:,} subjects, published once, 128 B"
    yield from memory_each(client, before, SUBJECTS, label)
