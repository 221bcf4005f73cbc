"""The msgpack door's clients: lbroker's protocol over TCP, for publishing state.

`MsgpackProtocol` is one client: it obeys the frames that come, and sends what the `Feed` has for it
as fast as it reads. docs/msgpack.md tells the protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHandshakeListener
from twisted.internet.protocol import Protocol
from twisted.internet.task import CooperativeTask
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rtmb.announcements import SHOWN
from rtmb.auth import User
from rtmb.codecs.msgpack import (
    DOOR,
    BadFrameError,
    Frames,
    PackedMessage,
    check_pattern,
    pack,
    topic_end,
)
from rtmb.core.message import Message
from rtmb.core.subscriptions import Subscription
from rtmb.doors.msgpack.feed import Entry, Wanted
from rtmb.doors.msgpack.publisher import Publisher
from rtmb.doors.msgpack.retained import SLICE, Retained
from rtmb.doors.outbox import PIECE, Outbox
from rtmb.doors.session import LINGER, Session
from rtmb.interfaces import ISubscriber

if TYPE_CHECKING:
    from rtmb.doors.msgpack.service import MsgpackFactory

#: Read this much at a time: each read costs a turn of the reactor.
READ_SIZE = 256 * 1024
#: A client with more than this waiting for its socket is behind, and gets no more for now.
ROOM = 256 * 1024


@implementer(ISubscriber, IHandshakeListener)
class MsgpackProtocol(Session, Protocol):
    """One client."""

    log = Logger()
    door = DOOR
    echo = True
    roster: MsgpackFactory
    transport: Any

    def __init__(self, roster: MsgpackFactory) -> None:
        super().__init__(roster, roster.feed.user)
        self.feed = roster.feed
        self._frames = Frames()
        self._publisher = Publisher(self.hub, self.counters, roster.topics.there, roster.learn)
        self._refused = False
        #: Until when this chunk may look for retained values; what is left is for later turns.
        self._at_once_until: float | None = None
        self._wanted: dict[str, Wanted] = {}
        self._asked = 0
        # Writing: retained values that are to be sent, the next message to read from the feed's
        # buffer while this client is behind, and the task that sends both.
        self.retained = Retained(self.feed, self)
        self.cursor = 0
        self._producing: CooperativeTask[Iterator[None]] | None = None
        # What was skipped since this client last kept up: how many messages, and some topics.
        self._missed = 0
        self._missed_topics: set[str] = set()
        #: Stands for all that it wants where the hub counts.
        self._counted = Subscription(self, ">")

    # Coming and going

    def connectionMade(self) -> None:
        transport = self.transport
        # The limit of the outbox is never met: `ROOM` is.
        self.outbox = Outbox(transport, 1 << 62, lambda last: None)
        self.come_from(transport.getPeer())
        if hasattr(transport, "bufferSize"):
            transport.bufferSize = READ_SIZE
        if hasattr(transport, "setTcpNoDelay"):
            transport.setTcpNoDelay(True)
            transport.setTcpKeepAlive(True)  # the protocol has no PING to find dead peers with
        why = "nobody may come in by this door" if self.feed.user is None else self.join()
        if why:
            self.log.warn("refused: {name}: {reason}", name=self.name, reason=why)
            self.abort(why)
            return
        self.outbox.drained = self._go_on
        if self.roster.tls is not None:
            self.later("handshake", self.settings.auth_timeout, self._no_handshake)

    def _no_handshake(self) -> None:
        self.abort("TLS handshake timeout")

    def handshakeCompleted(self) -> None:
        self.cancel("handshake")

    def connectionLost(self, reason: Failure = Failure(ConnectionDone())) -> None:  # noqa: B008
        closed = reason.check(ConnectionDone)
        self.leave("client closed" if closed else reason.getErrorMessage())
        self.outbox.discard()

    def forget(self) -> None:
        self._leave_feed()
        super().forget()

    def _leave_feed(self) -> None:
        for wanted in self._wanted.values():
            self.feed.remove(wanted)
        self._wanted.clear()
        self.retained.clear()
        self._caught_up()

    def close(self, reason: str) -> None:
        """Send what waits for the socket, and close."""
        if not self.done:
            self.done = True
            self.closed_reason = reason
            self._leave_feed()
            self.later("linger", LINGER, self.abort)
            self.outbox.finish()

    def abort(self, reason: str = "") -> None:
        self.done = True
        self.closed_reason = self.closed_reason or reason
        self.forget()
        self.outbox.discard()
        self.transport.abortConnection()

    def reloaded(self, user: User | None) -> None:
        """Who all clients are, and what they may do, is asked once for all: see the roster."""
        self.settings = self.roster.settings

    # IClient

    @property
    def pending(self) -> int:
        return self.outbox.pending

    @property
    def subscriptions(self) -> Collection[Wanted]:
        return self._wanted.values()

    # Reading

    def dataReceived(self, data: bytes) -> None:
        if self.done:
            return
        self.last_input = self.hub.clock()
        self._publisher.begin(self.last_input, self.settings.max_payload)
        publish = self._publisher.publish
        self._at_once_until = None
        try:
            for said in self._frames.read(data, self.roster.most_frame):
                if not isinstance(said, bytes):
                    self._obey(*said)
                elif not publish(said):
                    self._publish_here(said)
                if self.done:
                    break
        except BadFrameError as error:
            self.log.warn("bad frame: {name}: {error}", name=self.name, error=error)
            self.abort(f"bad frame: {error}")
        self.hub.flush()

    def _publish_here(self, packed: bytes) -> None:
        """Publish what is not for the hub."""
        end = topic_end(packed)
        topic, _, allowed = self.roster.topics.there[packed[1:end]]
        if allowed:
            self.feed.publish(PackedMessage(topic, packed, end), self)
        elif not self._refused:
            self._refused = True  # once is enough: there is nobody to tell, and it may go on
            self.log.warn("refused: {name}: may not publish {topic}", name=self.name, topic=topic)

    def _obey(self, command: str, pattern: str) -> None:
        self.counters.changes += 1
        if command == "Unsubscribe":
            self._unsubscribe(pattern)
        else:
            self._subscribe(pattern)

    def _subscribe(self, pattern: str) -> None:
        wanted = self._wanted.get(pattern)
        if wanted is not None:
            wanted.times += 1
            return
        check_pattern(pattern, self.settings.max_control_line)
        if 0 < self.settings.max_subscriptions <= len(self._wanted):
            raise BadFrameError("maximum subscriptions exceeded")
        self.feed.flush()  # what came before this must not come after it
        self._asked += 1
        wanted = self._wanted[pattern] = Wanted(self, pattern, self._asked, self.feed.next)
        self.feed.add(wanted)
        self.retained.ask(wanted)
        if self._at_once_until is None:
            self._at_once_until = perf_counter() + SLICE
        if self._producing is None and perf_counter() < self._at_once_until:
            self._produce_some()
        self._go_on()

    def _unsubscribe(self, pattern: str) -> None:
        wanted = self._wanted.get(pattern)
        if wanted is None:
            return
        wanted.times -= 1
        if not wanted.times:
            del self._wanted[pattern]
            self.retained.forget(wanted)
            self.feed.remove(wanted)

    # Writing

    @property
    def stalled(self) -> bool:
        """Whether it is behind."""
        return self in self.feed.behind

    def send(self, data: bytes, count: int, size: int) -> None:
        """Send messages. What the socket does not take waits; with too much of it, this client
        gets no more until it has read some."""
        self.hub.count_out(self._counted, count, size)
        self.outbox.write(data)
        if self.outbox.pending > ROOM and not self.stalled:
            self.feed.fall_behind(self)

    def _go_on(self) -> None:
        """Send what waits elsewhere than for the socket, in turns with the other clients; not at
        once: the transport asks for more when it is not ready to be given it."""
        if self._producing is None and (self.stalled or self.retained):
            self._producing = self.roster.jobs.cooperate(self._turns())

    def _turns(self) -> Iterator[None]:
        while self._produce_some():
            yield
        self._producing = None

    def _produce_some(self) -> bool:
        """Send about a piece, if there is room; whether there is more to send and room for it."""
        if self.outbox.closed or self.outbox.pending > ROOM:
            return False
        entries = self.retained.take() if self.retained else self._next_entries()
        if entries:
            data = b"".join([entry.packed for entry in entries])
            self.send(data, len(entries), sum([entry.size for entry in entries]))
        elif not self.retained:
            self._caught_up()
        return (self.stalled or bool(self.retained)) and self.outbox.pending <= ROOM

    def _next_entries(self) -> list[Entry]:
        """What comes next in the feed's buffer for this client."""
        entries: list[Entry] = []
        size = 0
        for entry in self.feed.ahead_of(self):
            if size >= PIECE:
                break
            self.cursor = entry.number + 1
            asked = self.feed.audience(entry.topic).clients.get(self)
            if asked:
                for wanted in asked:
                    wanted.delivered += 1
                entries.append(entry)
                size += len(entry.packed)
        if self.retained:
            self.retained.heard({entry.topic: entry.number for entry in entries})
        return entries

    def skipped(self, topics: list[str]) -> None:
        """Messages on these topics were left out. Told once a burst, counted at once."""
        announcements = self.roster.announcements
        if not self._missed:
            announcements.slow(self, "skip", topics[0], self.outbox.pending)
        announcements.count_drops(self, len(topics))
        self._missed += len(topics)
        for topic in islice(topics, SHOWN - len(self._missed_topics)):
            self._missed_topics.add(topic)

    def _caught_up(self) -> None:
        self.feed.caught_up(self)
        if self._missed:
            self.roster.announcements.tell_drops(self, self._missed, self._missed_topics)
            self._missed, self._missed_topics = 0, set()

    # ISubscriber: the feed subscribes for all clients, so the hub calls none of these.

    def deliver(self, subscription: Subscription, message: Message) -> None:
        self.send(pack(message), 1, message.size)

    def flush(self) -> bool:
        return False

    def ended(self, subscription: Subscription, reason: str) -> None:
        pass
