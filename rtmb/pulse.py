"""What has to be measured while the broker runs, as nobody counts it: how late the event loop is,
how long a message waits for its turn, the share of a processor that is used, and the totals of the
last minutes. It is done a few times a second: no message costs anything more for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from prometheus_client import Histogram
from twisted.application.service import Service
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from rtmb.announcements import EVENTS
from rtmb.core.counters import Counters
from rtmb.core.hub import Hub
from rtmb.core.subjects import to_raw

#: Seconds between two measurements.
BEAT = 0.5
#: Totals of so many seconds are kept: what the page's charts show when it is opened.
PAST = 180
#: From what an idle event loop takes to what people call broken.
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
#: What a probe asks the hub to match. Nobody can have subscribed to it: it has a wildcard.
_PROBE = to_raw(EVENTS + "probe.*")


class Pulse(Service):
    """Measures the event loop while the broker runs."""

    def __init__(self, reactor: IReactorTime, hub: Hub, totals: Callable[[], Counters]) -> None:
        self._reactor = reactor
        self._hub = hub
        self._totals = totals
        #: When the broker started.
        self.started = self._hub.clock()
        #: Percent of one processor, of late.
        self.cpu = 0.0
        self._busy = (self.started, time.process_time())
        #: When, and messages in, messages out, bytes in, bytes out, about once a second.
        self.past: deque[tuple[float, int, int, int, int]] = deque(maxlen=PAST + 1)
        self.lag = Histogram(
            "rtmb_event_loop_lag_seconds",
            "How much later than asked for the event loop ran a timer",
            registry=None,
            buckets=BUCKETS,
        )
        self.latency = Histogram(
            "rtmb_delivery_latency_seconds",
            "From a probe being ready to be read to its being matched and the output flushed",
            registry=None,
            buckets=BUCKETS,
        )
        self._due = 0.0
        self._calls: list[IDelayedCall] = []

    def startService(self) -> None:
        super().startService()
        self.started = self._hub.clock()
        self._wait()

    def stopService(self) -> None:
        super().stopService()
        for call in self._calls:
            if call.active():
                call.cancel()
        self._calls = []

    def _wait(self) -> None:
        self._due = self._hub.clock() + BEAT
        self._calls = [self._reactor.callLater(BEAT, self._beat)]

    def _beat(self) -> None:
        now = self._hub.clock()
        self.lag.observe(max(0.0, now - self._due))
        self._measure(now)
        self._wait()
        self._calls.append(self._reactor.callLater(0, self._probe, now))

    def _measure(self, now: float) -> None:
        (then, before), busy = self._busy, time.process_time()
        if now - then < 1.0:
            return
        self.cpu = round(100 * (busy - before) / (now - then), 1)
        self._busy = (now, busy)
        total = self._totals()
        self.past.append((now, total.in_msgs, total.out_msgs, total.in_bytes, total.out_bytes))

    def _probe(self, ready: float) -> None:
        """Do what is done for a message: it waited one turn of the loop, as bytes on a socket
        do, it is matched, and whatever is collected is sent. It is not counted nor kept."""
        self._hub.routing.search(_PROBE)
        self._hub.flush()
        self.latency.observe(max(0.0, self._hub.clock() - ready))
