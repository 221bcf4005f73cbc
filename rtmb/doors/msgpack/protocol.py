"""The msgpack door: lbroker's protocol over TCP, for publishing state.

`MsgpackProtocol` is one client: it finds where frames end, obeys them, and sends what the `Feed`
has for it as fast as it reads. `MsgpackFactory` is all of them, `MsgpackDoor` makes a service of
it. docs/msgpack.md tells the protocol.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgpack
from twisted.application.service import IService
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IAddress, IDelayedCall, IHandshakeListener
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rtmb.announcements import SHOWN
from rtmb.auth import ANYONE, Credentials, User
from rtmb.codecs.msgpack import (
    DOOR,
    INNER,
    PUBLISH,
    BadFrameError,
    PackedMessage,
    pack,
    parse,
    text_of,
    topic_end,
)
from rtmb.config import Settings
from rtmb.core.counters import Counters
from rtmb.core.message import Message
from rtmb.core.routing import Subscription
from rtmb.core.subjects import is_subject
from rtmb.doors.listener import Crowd, Listener
from rtmb.doors.msgpack.feed import Entry, Feed, parcel_of
from rtmb.doors.outbox import PIECE, Outbox
from rtmb.interfaces import IAuthenticator, IDoor, ISubscriber

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: Read this much at a time: each read costs a turn of the reactor.
READ_SIZE = 256 * 1024
#: A client with more than this waiting for its socket is behind, and gets no more for now.
ROOM = 256 * 1024
#: Bytes of a frame beyond its topic and its value.
_FRAME_COST = 64
#: Topics of which it is known what they are, as they are written.
_CACHE = 16_384


@implementer(ISubscriber, IHandshakeListener)
class MsgpackProtocol(Protocol):
    """One client."""

    log = Logger()
    door = DOOR
    echo = True
    factory: MsgpackFactory
    transport: Any

    def __init__(self, factory: MsgpackFactory) -> None:
        self.factory = factory
        self.hub, self.feed = factory.hub, factory.feed
        self.counters = Counters()
        self.name = "?"
        self.cid = 0
        self.patterns: Counter[str] = Counter()
        self.done = False
        self.closed_reason = ""
        # Reading: the bytes of a frame that has not ended yet, and where in the stream it began.
        self._unpacker = msgpack.Unpacker(max_buffer_size=0)
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._start = 0
        self._refused = False
        self._handshake: IDelayedCall | None = None
        # Writing: topics whose retained value is to be sent, and the next message to read from the
        # feed's buffer while this client is behind.
        self._backlog: OrderedDict[str, None] = OrderedDict()
        self.cursor = 0
        self._soon = False
        # What was skipped since this client last kept up: how many messages, and some topics.
        self._missed = 0
        self._missed_topics: set[str] = set()
        self._counted = Subscription(self, ">")

    # Coming and going

    def connectionMade(self) -> None:
        transport, settings = self.transport, self.factory.settings
        # The limit of the outbox is never met: `ROOM` is.
        self.outbox = Outbox(transport, 1 << 62, lambda last: None)
        peer = transport.getPeer()
        self.name = f"{getattr(peer, 'host', '')}:{getattr(peer, 'port', 0)}"
        if hasattr(transport, "bufferSize"):
            transport.bufferSize = READ_SIZE
        if hasattr(transport, "setTcpNoDelay"):
            transport.setTcpNoDelay(True)
            transport.setTcpKeepAlive(True)  # the protocol has no PING to find dead peers with
        if self.feed.user is None:
            self._refuse("nobody may come in by this door")
            return
        if len(self.hub.clients) >= settings.max_connections:
            self._refuse("maximum connections exceeded")
            return
        self.cid = self.hub.join(self)
        self.factory.clients[self.cid] = self
        self.name += f" - cid:{self.cid}"
        self.outbox.drained = self._produce_soon
        self.factory.system.connected(self)
        if self.factory.tls is not None:
            self._handshake = self.factory.reactor.callLater(
                settings.auth_timeout, self.abort, "TLS handshake timeout"
            )

    def handshakeCompleted(self) -> None:
        if self._handshake is not None and self._handshake.active():
            self._handshake.cancel()

    def connectionLost(self, reason: Failure = Failure(ConnectionDone())) -> None:  # noqa: B008
        self.done = True
        self.handshakeCompleted()
        self._forget()
        self.outbox.discard()
        if self.factory.clients.pop(self.cid, None) is not None:
            self.hub.leave(self.cid)
            why = self.closed_reason or (
                "client closed" if reason.check(ConnectionDone) else reason.getErrorMessage()
            )
            self.factory.system.disconnected(self, why)
            self.factory.client_gone()

    def _forget(self) -> None:
        """Leave no trace in the feed."""
        for pattern in self.patterns:
            self.feed.remove(pattern, self)
        self.patterns.clear()
        self._backlog.clear()
        self._caught_up()

    def _refuse(self, reason: str) -> None:
        self.log.warn("refused: {name}: {reason}", name=self.name, reason=reason)
        self.abort(reason)

    def close(self, reason: str) -> None:
        """Send what waits for the socket, and close."""
        if not self.done:
            self.done = True
            self.closed_reason = reason
            self._forget()
            self.outbox.finish()

    def abort(self, reason: str = "") -> None:
        self.done = True
        self.closed_reason = self.closed_reason or reason
        self._forget()
        self.outbox.discard()
        self.transport.abortConnection()

    # Reading

    def dataReceived(self, data: bytes) -> None:
        if self.done:
            return
        self._unpacker.feed(data)
        try:
            self._read_frames(data)
        except BadFrameError as error:
            self.log.warn("bad frame: {name}: {error}", name=self.name, error=error)
            self.abort(f"bad frame: {error}")
        self.hub.flush()

    def _read_frames(self, data: bytes) -> None:
        """Do what each whole frame asks for, and keep the beginning of the next."""
        skip, tell, start = self._unpacker.skip, self._unpacker.tell, self._start
        base = start  # where in the stream `data` begins
        most = self.factory.most_frame
        try:
            while not self.done:
                skip()
                if self._pieces:
                    data = b"".join([*self._pieces, data])
                    self._pieces.clear()
                    self._waiting = 0
                end = tell()
                frame = data[start - base : end - base]
                start = self._start = end
                if len(frame) > most:
                    break
                if frame.startswith(PUBLISH):
                    self._publish(frame[INNER:])
                else:
                    self._obey(*parse(frame))
        except msgpack.OutOfData:
            rest = data[start - base :] if not self._pieces else data
            if rest:
                self._pieces.append(rest)
                self._waiting += len(rest)
            if self._waiting <= most:
                return
        except msgpack.StackError:
            raise BadFrameError("nested too deeply") from None
        except msgpack.FormatError:
            raise BadFrameError("not msgpack") from None
        if not self.done:
            raise BadFrameError(f"a frame of more than {most} bytes")

    def _obey(self, command: str, argument: bytes) -> None:
        if command == "Publish":
            self._publish(argument)
            return
        pattern = text_of(argument, "a pattern")
        self.counters.changes += 1
        if command == "Unsubscribe":
            self._unsubscribe(pattern)
        else:
            self._subscribe(pattern)

    def _publish(self, packed: bytes) -> None:
        end = topic_end(packed)
        known = self.factory.topics.get(packed[1:end])
        topic, subject, allowed = known or self.factory.learn(packed[1:end])
        if len(packed) - end > self.factory.settings.max_payload:
            raise BadFrameError(f"a value of {len(packed) - end} bytes, over max_payload")
        message = PackedMessage(topic, packed, end)
        if subject and allowed:
            self.hub.deliver(message, self)
        elif allowed:
            self.feed.publish(message, self)
        elif not self._refused:
            self._refused = True  # once is enough: there is nobody to tell, and it may go on
            self.log.warn("refused: {name}: may not publish {topic}", name=self.name, topic=topic)

    def _subscribe(self, pattern: str) -> None:
        settings = self.factory.settings
        if len(pattern) > settings.max_control_line:
            raise BadFrameError(f"a pattern of {len(pattern)} characters, over max_control_line")
        self.patterns[pattern] += 1
        if self.patterns[pattern] > 1:
            return
        if 0 < settings.max_subscriptions < len(self.patterns):
            raise BadFrameError("maximum subscriptions exceeded")
        topics = self.feed.retained(pattern)
        if len(self.patterns) > 1:
            topics = [t for t in topics if self not in self.feed.audience(t)]
        self.feed.add(pattern, self)
        if topics:
            self.feed.flush()  # what came before this must not come after it
            if not self.stalled:
                self.feed.fall_behind(self)
            there = [t for t in self._backlog if self.feed.newest(t) is not None]
            self._backlog = OrderedDict.fromkeys(there + topics)
            self.produce()

    def _unsubscribe(self, pattern: str) -> None:
        if self.patterns[pattern] > 1:
            self.patterns[pattern] -= 1
        elif self.patterns.pop(pattern, 0):
            self.feed.remove(pattern, self)

    # Writing

    @property
    def stalled(self) -> bool:
        return self in self.feed.behind

    def send(self, data: bytes, count: int, size: int) -> None:
        """Send messages. What the socket does not take waits; with too much of it, this client
        gets no more until it has read some."""
        self.hub.count_out(self._counted, count, size)
        self.outbox.write(data)
        if self.outbox.pending > ROOM and not self.stalled:
            self.feed.fall_behind(self)

    def produce(self) -> None:
        """While this client is behind: send as much as there is room for. After a while of that it
        is others' turn."""
        self._soon = False
        sent = 0
        while self.stalled and not self.outbox.closed and self.outbox.pending <= ROOM:
            if sent >= PIECE:
                self._produce_soon()
                return
            entries = self._next_retained() or self._next_entries()
            if entries:
                data, count, size = parcel_of(entries)
                sent += len(data)
                self.send(data, count, size)
            else:
                self._caught_up()

    def _produce_soon(self) -> None:
        """Not at once: the transport asks for more when it is not ready to be given it."""
        if self.stalled and not self._soon:
            self._soon = True
            self.factory.reactor.callLater(0, self.produce)

    def _next_retained(self) -> list[Entry]:
        """Retained values, but of topics that have newer ones on their way."""
        if not self._backlog:
            return []
        coming = {entry.topic for entry in self.feed.ahead_of(self)}
        entries: list[Entry] = []
        size = 0
        while self._backlog and size < PIECE:
            topic, _ = self._backlog.popitem(last=False)
            message = None if topic in coming else self.feed.newest(topic)
            if message is not None:
                entries.append(Entry(0, topic, pack(message), message.size))
                size += len(entries[-1].packed)
        return entries

    def _next_entries(self) -> list[Entry]:
        """What comes next in the feed's buffer for this client."""
        entries: list[Entry] = []
        size = 0
        for entry in self.feed.ahead_of(self):
            if size >= PIECE:
                break
            self.cursor = entry.number + 1
            if self in self.feed.audience(entry.topic):
                entries.append(entry)
                size += len(entry.packed)
        return entries

    def skipped(self, topics: list[str]) -> None:
        """Messages on these topics were left out. Told once a burst, counted at once."""
        system = self.factory.system
        if not self._missed:
            system.slow(self, "skip", topics[0], self.outbox.pending)
        system.count_drops(self, len(topics))
        self._missed += len(topics)
        for topic in islice(topics, SHOWN - len(self._missed_topics)):
            self._missed_topics.add(topic)

    def _caught_up(self) -> None:
        self.feed.caught_up(self)
        if self._missed:
            self.factory.system.tell_drops(self, self._missed, self._missed_topics)
            self._missed, self._missed_topics = 0, set()

    # ISubscriber: the feed subscribes for all clients, so the hub calls none of these.

    def deliver(self, subscription: Subscription, message: Message) -> None:
        self.send(pack(message), 1, message.size)

    def flush(self) -> bool:
        return False

    def ended(self, subscription: Subscription, reason: str) -> None:
        pass


class MsgpackFactory(Crowd["MsgpackProtocol"]):
    """All clients of the door, and what they share: the feed, and who they are."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        user = None if self.authenticator.required else ANYONE
        self.feed = Feed(self.hub, self.settings, user)
        #: Topics as they are written: the text, whether it is a subject, whether clients may
        #: publish it.
        self.topics: dict[bytes, tuple[str, bool, bool]] = {}
        self._expiry: IDelayedCall | None = None

    @property
    def most_frame(self) -> int:
        """The longest frame: what `max_payload` and `max_control_line` allow."""
        return self.settings.max_payload + 4 * self.settings.max_control_line + _FRAME_COST

    def buildProtocol(self, addr: IAddress | None) -> MsgpackProtocol:  # type: ignore[override]
        return MsgpackProtocol(self)

    def learn(self, written: bytes) -> tuple[str, bool, bool]:
        """What there is to know of a topic that was not seen lately."""
        topic = text_of(written, "a topic")
        if len(topic) > self.settings.max_control_line:
            raise BadFrameError(f"a topic of {len(topic)} characters, over max_control_line")
        if len(self.topics) >= _CACHE:
            self.topics.clear()
        user = self.feed.user
        allowed = user is not None and user.publish.may_publish(topic)
        known = self.topics[written] = topic, is_subject(topic), allowed
        return known

    # Who the clients are

    def ask(self) -> Deferred[None]:
        """Find out who someone is that gives no credentials: so every client is."""

        def failed(failure: Failure) -> None:
            self.log.failure("the authenticator failed", failure)

        asked = self.authenticator.authenticate(Credentials())
        return asked.addErrback(failed).addCallback(self._become)

    def _become(self, user: User | None) -> None:
        if self._expiry is not None and self._expiry.active():
            self._expiry.cancel()
        if user is not None and user.expires is not None:
            left = user.expires.timestamp() - self.hub.clock()
            if left <= 0:
                user = None
            else:
                self._expiry = self.reactor.callLater(left, self._become, None)
        self.feed.user = user
        self.topics.clear()
        self.feed.changed()
        if user is None:
            for client in list(self.clients.values()):
                client.close("nobody may come in by this door any more")

    def reload(self, settings: Settings, authenticator: IAuthenticator) -> None:
        self.settings = self.feed.settings = settings
        self.authenticator = authenticator
        self.ask()

    # Ending

    def close_all(self, timeout: float) -> Deferred[None]:
        if self._expiry is not None and self._expiry.active():
            self._expiry.cancel()
        return super().close_all(timeout)


class MsgpackService(Listener):
    """Listens for the door, where there is someone that its clients can be."""

    greeting = "msgpack door: {host}:{port}"
    option = "--msgpack-port"

    def __init__(self, factory: MsgpackFactory) -> None:
        settings = factory.settings
        super().__init__(
            factory.reactor, factory, settings.interface, settings.msgpack_port, factory.tls
        )
        self.factory = factory
        self._asked = False

    def privilegedStartService(self) -> None:
        if self._asked:
            return
        self._asked = True
        asked = self.factory.ask().addCallback(self._answered)
        failures: list[Failure] = []
        asked.addErrback(failures.append)
        if failures:  # the port is taken; only an authenticator that takes its time gets past this
            failures[0].raiseException()

    def _answered(self, _: None) -> None:
        if self.factory.feed.user is not None:
            super().privilegedStartService()
        else:
            self.log.warn(
                "msgpack door: closed, because users are set and its protocol has no way to say "
                "who one is; auth.no_auth_user names who its clients are, --no-msgpack turns it off"
            )

    def stopService(self) -> Deferred[None]:
        self._asked = False
        return super().stopService()

    def drain(self) -> Deferred[None]:
        return self.factory.close_all(self.factory.settings.drain_timeout)

    def reload(self, settings: Settings, authenticator: IAuthenticator) -> None:
        self.factory.reload(settings, authenticator)


@implementer(IDoor)
class MsgpackDoor:
    """The msgpack door."""

    name = DOOR

    def open(self, broker: Broker, options: dict[str, Any]) -> IService | None:
        if broker.settings.no_msgpack:
            return None
        return MsgpackService(MsgpackFactory(broker))
