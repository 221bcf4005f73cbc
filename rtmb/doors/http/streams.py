"""Clients of the HTTP door that stay: WebSockets and event streams, and what they share.

Each is a `Stream`. A batch of messages that finds the socket free is sent however large it is,
piece by piece (`_flying`). What comes while the socket is full waits (`_waiting`), bounded: the
oldest is dropped, counted, and the client told where in the stream that was. One that reads nothing
at all while messages are dropped is closed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet.tcp import Connection
from zope.interface import implementer

from rtmb.auth import User
from rtmb.codecs.json_message import OncePerMessage, event_json, shown
from rtmb.core.message import Message
from rtmb.core.subscriptions import Subscription
from rtmb.doors.http.access import DoorRoster, Gate
from rtmb.doors.outbox import Outbox
from rtmb.doors.session import LINGER, Session
from rtmb.interfaces import ISubscriber

if TYPE_CHECKING:
    from rtmb.broker import Broker
    from rtmb.doors.http.connection import HttpChannel

#: A socket is full when this much waits for it: what transports themselves hold.
ROOM = 64 * 1024
#: A client that does not read its answers is not read from while this much waits for it.
MOST_ANSWERS = 1 << 20
#: Topics that are named when messages were dropped.
_MOST_NAMES = 100
#: How often drops are logged, counted and told on the system's subjects, in seconds.
_REPORT = 1.0
#: What clients are told before lame duck mode closes them one by one.
GO_ELSEWHERE = "the broker is about to stop: go to another"


def own_connection(channel: HttpChannel, limit: int, overflowed: Callable[[bytes], None]) -> Outbox:
    """Take a connection from the HTTP channel that has it, with what it has yet to send."""
    channel.taken = True
    transport = channel.transport
    transport.unregisterProducer()
    outbox = Outbox(transport, limit, overflowed)
    if isinstance(transport, Connection):
        transport.doWrite()  # the head of the answer: the outbox does not wait for the transport
        if len(transport.dataBuffer) > transport.offset:
            outbox.started_tls()  # it must: an answer before this one has not been read
    return outbox


class Streams(DoorRoster["Stream"]):
    """All streams of the door."""

    def __init__(self, broker: Broker, gate: Gate) -> None:
        super().__init__(broker, gate)
        self.event = OncePerMessage(event_json)


@implementer(ISubscriber)
class Stream(Session):
    """One client that messages are sent to as they come. Who inherits it says how."""

    echo = True
    #: The connection that it came on has one.
    takes_place = False
    user: User
    outbox: Outbox
    #: The HTTP channel that it came by.
    channel: HttpChannel

    def __init__(self, streams: Streams, user: User, peer: Any) -> None:
        super().__init__(streams, user)
        self.come_from(peer)
        self.by_pattern: dict[str, Subscription] = {}
        #: Set while it is being read from: answers are collected until that is over.
        self.busy = False
        self._awake = False
        self._flying: deque[bytes] = deque()
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._waiting_bytes = 0
        self._full = False
        #: What was dropped and not told to the client, and not to the system, by subject.
        self._dropped: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()
        #: When the client last took something, and whether that was since publishers last paused.
        self._moved = self.started
        self._earned = True

    # What differs

    def encode(self, message: Message) -> bytes:
        """The message as it stands on the wire."""
        raise NotImplementedError

    def tell_dropped(self, count: int, topics: list[str]) -> None:
        """Tell the client what it did not get."""
        raise NotImplementedError

    def too_slow(self, count: int, topics: list[str]) -> None:
        """Tell the client why it is closed, and close it."""
        raise NotImplementedError

    def caught_up(self) -> None:
        """The socket has room again."""

    # Coming and going

    def begin(self, outbox: Outbox) -> None:
        """The connection is ours."""
        self.outbox = outbox
        outbox.drained = self._drained
        self.join()
        self.let_in(self.user)

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        self._report()
        self.outbox.discard()
        self.leave(reason)

    def forget(self) -> None:
        super().forget()
        self.by_pattern.clear()
        self._flying.clear()
        self._waiting.clear()
        self._waiting_bytes = 0

    def finish(self, last: Iterable[bytes], reason: str, *, flush: bool = False) -> None:
        """Send some last bytes and close; what waits is left out, unless it is to be flushed."""
        if self.done:
            return
        self.done = True
        self.closed_reason = self.closed_reason or reason
        self._report()
        said = [*self._flying] if flush or not self._full else []
        if flush:
            said += (data for _, data in self._waiting)
        for data in (*said, *last):
            self.outbox.batch.append(data)
        self.forget()
        self.later("linger", LINGER, self.abort)
        self.outbox.finish()

    def abort(self) -> None:
        """Close at once."""
        self.done = True
        self.outbox.discard()
        self.channel.transport.abortConnection()

    def overflowed(self, last: bytes) -> None:
        """More waits than any client may have."""
        self.closed_reason = "slow consumer"
        self.abort()

    @property
    def subscriptions(self) -> Collection[Subscription]:
        return self.by_pattern.values()

    def not_allowed(self, subscription: Subscription) -> None:
        self.by_pattern.pop(subscription.pattern, None)

    # ISubscriber

    @property
    def stalled(self) -> bool:
        return self._full

    def deliver(self, subscription: Subscription, message: Message) -> None:
        self.push(message.subject, self.encode(message))

    def push(self, subject: str, data: bytes) -> None:
        """Send one message when this batch is flushed, or let it wait for the socket."""
        if self.done:
            return
        if self._full:
            self._wait(subject, data)
            return
        if not self._awake:
            self._awake = True
            self.hub.wake(self)
        self._flying.append(data)

    def flush(self) -> bool:
        self._awake = False
        if self.done:
            return False
        self._send()
        if self._full and self._earned:
            self._earned = False
            return True
        return False

    def ended(self, subscription: Subscription, reason: str) -> None:
        self.by_pattern.pop(subscription.pattern, None)

    # Sending

    @property
    def pending(self) -> int:
        """Bytes that wait for this client to read."""
        return self.outbox.pending + self._waiting_bytes + sum(map(len, self._flying))

    @property
    def _has_room(self) -> bool:
        return not self._flying and self.outbox.pending < ROOM

    def say(self, data: bytes) -> None:
        """Send something that is not to be dropped: with this batch if there is one, or now."""
        if self.done:
            return
        self._flying.append(data)
        if not self.busy:
            self._send()
        elif not self._awake:
            self._awake = True
            self.hub.wake(self)

    def _send(self) -> None:
        """Hand over as much as the socket has room for."""
        outbox, flying = self.outbox, self._flying
        while flying and outbox.pending < ROOM:
            piece = [flying.popleft()]
            size = len(piece[0])
            while flying and size + len(flying[0]) <= ROOM:
                size += len(flying[0])
                piece.append(flying.popleft())
            outbox.write(b"".join(piece))
        # What waits is not to be overtaken: until it is gone, all else waits behind it.
        was_full, self._full = self._full, bool(self._waiting) or not self._has_room
        if self._full and not was_full:
            self._moved = self.hub.clock()

    def _drained(self) -> None:
        """The socket has taken what it was given. Not from in here, but soon: go on."""
        self._earned = True
        self._moved = self.hub.clock()
        if not self.done and self._full and not self.has_timer("go on"):
            self.later("go on", 0, self._go_on)

    def _go_on(self) -> None:
        self._send()
        if self._dropped and self._has_room:
            self.tell_dropped(*self._told())
        while self._waiting and self._has_room:
            _, data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            self._flying.append(data)
            self._send()
        if not self._full:
            self.caught_up()

    # Falling behind

    def _wait(self, subject: str, data: bytes) -> None:
        waiting, settings = self._waiting, self.settings
        waiting.append((subject, data))
        self._waiting_bytes += len(data)
        while len(waiting) > settings.ws_queue or self._waiting_bytes > settings.max_pending:
            oldest, dropped = waiting.popleft()
            self._waiting_bytes -= len(dropped)
            for counts in (self._dropped, self._unreported):
                counts[oldest if oldest in counts or len(counts) < _MOST_NAMES else ""] += 1
            if not self.has_timer("report"):
                self.later("report", _REPORT, self._report)
            if not self.has_timer("stuck"):
                self.later("stuck", settings.ws_stuck, self._look_if_stuck)

    def _look_if_stuck(self) -> None:
        if not self._dropped:
            return
        left = self._moved + self.settings.ws_stuck - self.hub.clock()
        if left > 0:
            self.later("stuck", left, self._look_if_stuck)
            return
        subject = self._waiting[-1][0] if self._waiting else ""
        self.roster.announcements.slow(self, "close", shown(subject), self.pending)
        self.too_slow(*self._told())

    def _told(self) -> tuple[int, list[str]]:
        """How many messages were dropped and on which topics; from now on it is told."""
        count, names = self._dropped.total(), sorted(shown(n) for n in self._dropped if n)
        self._dropped.clear()
        return count, names

    def _report(self) -> None:
        self.cancel("report")
        if self._unreported:
            names = [shown(name) for name in self._unreported if name]
            self.roster.announcements.dropped(self, self._unreported.total(), names)
            self._unreported.clear()
