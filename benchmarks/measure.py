"""What a measurement is made of: a client of one server, a scenario, and the readings it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import nan

from benchmarks.servers import LOGIN, Server
from rtmb.cli.bench_load import LoadConnection


@dataclass(frozen=True)
class Reading:
    """One number of one round."""

    label: str
    unit: str
    value: float
    lower_is_better: bool = False


@dataclass
class Client:
    """The connections to one server, and how much load has turned out to fill the time."""

    server: Server
    seconds: float
    #: Half of the messages a second that the slowest server of the run can deliver.
    half_load: int = 0
    #: CPU seconds that the server took for one repeat of what was measured last.
    cpu_each: float = nan
    _pool: list[LoadConnection] = field(default_factory=list)
    _users: list[LoadConnection] = field(default_factory=list)
    _repeats: dict[str, int] = field(default_factory=dict)

    def connections(self, count: int, user: bool = False) -> list[LoadConnection]:
        """The first `count` connections of a pool: opened once, used by every scenario.

        There are two pools: of those who give no credentials, and of the user with permissions.
        """
        pool, login = (self._users, LOGIN) if user else (self._pool, {})
        while len(pool) < count:
            pool.append(LoadConnection(self.server.address, lambda info: login))
        return pool[:count]

    def close(self) -> None:
        for pool in (self._pool, self._users):
            while pool:
                pool.pop().close()

    def seconds_each(self, key: str, run: Callable[[int], float]) -> float:
        """Seconds for one repeat, over as many as take about `self.seconds` in all."""
        if key not in self._repeats:
            repeats = 1
            while (elapsed := run(repeats)) < min(0.2, self.seconds / 2):
                repeats *= 4
            self._repeats[key] = max(1, round(repeats * self.seconds / elapsed))
        repeats = self._repeats[key]
        before = self.server.cpu_seconds()
        elapsed = run(repeats)
        self.cpu_each = (self.server.cpu_seconds() - before) / repeats
        return elapsed / repeats


Run = Callable[[Client], Iterator[Reading]]


@dataclass(frozen=True)
class Scenario:
    """A name to select it by, and what to run; `fresh` asks for a server without a past."""

    name: str
    run: Run
    fresh: bool = False
    slow: bool = False  # left out of --quick
    #: What has to be known of all servers first; called once, before the first round.
    prepare: Callable[[Sequence[Client]], None] = lambda clients: None
