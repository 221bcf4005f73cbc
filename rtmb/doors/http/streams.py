"""Clients of the HTTP door that stay: WebSockets and event streams, and what they share.

Each is a `Stream`. A batch of messages that finds the socket free is sent however large it is,
piece by piece (`_flying`). What comes while the socket is full waits (`_waiting`), bounded: the
oldest is dropped, counted, and the client told where in the stream that was. One that reads nothing
at all while messages are dropped is closed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall
from twisted.internet.tcp import Connection
from zope.interface import implementer

from rtmb.auth import User
from rtmb.codecs.json_message import Once, event_json, shown
from rtmb.core.counters import Counters
from rtmb.core.message import Message
from rtmb.core.routing import Subscription
from rtmb.doors.outbox import Outbox
from rtmb.interfaces import ISubscriber

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: A socket is full when this much waits for it: what transports themselves hold.
ROOM = 64 * 1024
#: A client that does not read its answers is not read from while this much waits for it.
MOST_ANSWERS = 1 << 20
#: How long a client that is being closed may take to read its last bytes.
LINGER = 5.0
#: Topics that are named when messages were dropped.
_MOST_NAMES = 100
#: How often drops are logged, counted and told on the system's subjects, in seconds.
_REPORT = 1.0


def own_connection(transport: Any, limit: int, overflowed: Callable[[bytes], None]) -> Outbox:
    """Take a connection from the HTTP channel that has it, with what it has yet to send."""
    transport.unregisterProducer()
    outbox = Outbox(transport, limit, overflowed)
    if isinstance(transport, Connection):
        transport.doWrite()  # the head of the answer: the outbox does not wait for the transport
        if len(transport.dataBuffer) > transport.offset:
            outbox.started_tls()  # it must: an answer before this one has not been read
    return outbox


class Streams:
    """All streams of the door."""

    def __init__(self, broker: Broker) -> None:
        self.reactor = broker.reactor
        self.hub = broker.hub
        self.system = broker.system
        self.settings = broker.settings
        self.event = Once(event_json)
        self.clients: dict[int, Stream] = {}
        self._ticking = LoopingCall(self._tick)
        self._ticking.clock = self.reactor

    def add(self, stream: Stream) -> None:
        self.clients[stream.cid] = stream
        if not self._ticking.running:
            self._ticking.start(1.0, now=False)

    def remove(self, stream: Stream) -> None:
        self.clients.pop(stream.cid, None)
        if not self.clients and self._ticking.running:
            self._ticking.stop()

    def _tick(self) -> None:
        now = self.hub.clock()
        for client in list(self.clients.values()):
            client.tick(now)


@implementer(ISubscriber)
class Stream:
    """One client that messages are sent to as they come. Who inherits it says how."""

    door = ""
    echo = True
    outbox: Outbox
    #: The HTTP channel that it came by.
    channel: Any

    def __init__(self, streams: Streams, user: User, peer: Any) -> None:
        self.streams = streams
        self.hub = streams.hub
        self.settings = streams.settings
        self.user = user
        self.host, self.port = getattr(peer, "host", ""), getattr(peer, "port", 0)
        self.name = f"{self.host}:{self.port}"
        self.counters = Counters()
        self.cid = 0
        self.started = self.last_input = self.hub.clock()
        self.subscriptions: dict[str, Subscription] = {}
        #: Set when it is to close: nothing more is sent or read.
        self.done = False
        #: Set while it is being read from: answers are collected until that is over.
        self.busy = False
        self.closed_reason = ""
        self._timers: dict[str, IDelayedCall] = {}
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

    def not_welcome(self, why: str) -> None:
        """Tell the client that it has lost its access, and close it."""
        raise NotImplementedError

    def not_allowed(self, pattern: str) -> None:
        """Tell the client that a subscription has been taken from it."""
        raise NotImplementedError

    def close(self, error: str = "", reason: str = "") -> None:
        """Someone sends it away: say so, and close."""
        raise NotImplementedError

    def shut_down(self) -> None:
        """The broker is stopping: send all that waits, say so, and close."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Called every second."""

    def caught_up(self) -> None:
        """The socket has room again."""

    # Coming and going

    def begin(self, outbox: Outbox) -> None:
        """The connection is ours."""
        self.outbox = outbox
        outbox.drained = self._drained
        self.cid = self.hub.join(self)
        self.name = f"{self.host}:{self.port} - cid:{self.cid}"
        self.streams.add(self)
        self.streams.system.connected(self)
        self._watch_expiry()

    def end(self, reason: str) -> None:
        """The connection is gone."""
        self.done = True
        self._report()
        self._forget()
        self.outbox.discard()
        if self.hub.clients.get(self.cid) is self:
            self.hub.leave(self.cid)
            self.streams.remove(self)
            self.streams.system.disconnected(self, self.closed_reason or reason)

    def _forget(self) -> None:
        """Leave no trace in the hub and no timer."""
        for subscription in self.subscriptions.values():
            self.hub.unsubscribe(subscription)
        self.subscriptions.clear()
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        self._timers.clear()
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
        if flush or not self._full:
            self.outbox.batch.extend(self._flying)
        if flush:
            self.outbox.batch.extend(data for _, data in self._waiting)
        self.outbox.batch.extend(last)
        self._forget()
        self._later("linger", LINGER, self.abort)
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

    def _later(self, name: str, delay: float, call: Callable[[], Any]) -> None:
        self._cancel(name)
        self._timers[name] = self.streams.reactor.callLater(delay, call)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None and timer.active():
            timer.cancel()

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
        self.subscriptions.pop(subscription.pattern, None)

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
        if not self.done and self._full and "go on" not in self._timers:
            self._later("go on", 0, self._go_on)

    def _go_on(self) -> None:
        self._timers.pop("go on", None)
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
            if "report" not in self._timers:
                self._later("report", _REPORT, self._report)
            if "stuck" not in self._timers:
                self._later("stuck", settings.ws_stuck, self._look_if_stuck)

    def _look_if_stuck(self) -> None:
        self._timers.pop("stuck", None)
        if not self._dropped:
            return
        left = self._moved + self.settings.ws_stuck - self.hub.clock()
        if left > 0:
            self._later("stuck", left, self._look_if_stuck)
            return
        subject = self._waiting[-1][0] if self._waiting else ""
        self.streams.system.slow(self, "close", shown(subject), self.pending)
        self.too_slow(*self._told())

    def _told(self) -> tuple[int, list[str]]:
        """How many messages were dropped and on which topics; from now on it is told."""
        count, names = self._dropped.total(), sorted(shown(n) for n in self._dropped if n)
        self._dropped.clear()
        return count, names

    def _report(self) -> None:
        self._cancel("report")
        if self._unreported:
            names = [shown(name) for name in self._unreported if name]
            self.streams.system.dropped(self, self._unreported.total(), names)
            self._unreported.clear()

    # What may change

    def reloaded(self, user: User | None) -> None:
        """The settings have changed, and `user` is who this client is now."""
        self.settings = self.streams.settings
        if user is None or user.expired(self.hub.clock()):
            self.not_welcome("you may no longer be here")
            return
        self.user = user
        self._watch_expiry()
        for pattern, subscription in list(self.subscriptions.items()):
            if user.subscribe.may_subscribe(pattern):
                subscription.deny = user.subscribe.hidden(pattern)
                self.hub.trie.invalidate(pattern)
            else:
                self.hub.unsubscribe(subscription)
                self.subscriptions.pop(pattern, None)
                self.not_allowed(pattern)

    def _watch_expiry(self) -> None:
        self._cancel("expiry")
        if self.user.expires is not None:
            left = self.user.expires.timestamp() - self.hub.clock()
            self._later("expiry", max(0.0, left), self._expired)

    def _expired(self) -> None:
        self.not_welcome("your time here is over")
