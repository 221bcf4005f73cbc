"""A subscription as a client holds it: what was received and not read yet, and who reads it.

With a callback, messages are given to it as they come. A callback that returns a coroutine or a
Deferred gets the next message when that is done, so a subscription's messages are handled one by
one, in order. Without a callback they wait to be read with `next` or ``async for``.

What waits is bounded, by messages and by bytes. When a reader is too slow the oldest are dropped:
what is new is worth more. They are counted in `dropped`, and the event `slow_reader` tells once,
until the reader has caught up and falls behind again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from rtmb.client.errors import SubscriptionEnded, Timeout
from rtmb.client.events import Event
from rtmb.client.message import Message
from rtmb.codecs import nats as wire
from rtmb.core.subjects import to_raw

if TYPE_CHECKING:
    from rtmb.client.client import Client

Callback: TypeAlias = Callable[[Message], object]

#: What may wait for a slow reader unless `subscribe` says otherwise: a second of heavy traffic.
PENDING_MESSAGES = 65_536
PENDING_BYTES = 64 << 20
#: What one waiting message costs beyond its payload.
_MESSAGE_COST = 200


class Subscription:
    """Made by `Client.subscribe`."""

    log = Logger()

    def __init__(
        self,
        client: Client,
        subject: str,
        queue: str | None,
        callback: Callback | None,
        *,
        last: bool = False,
        replay: int = 0,
        pending_messages: int = PENDING_MESSAGES,
        pending_bytes: int = PENDING_BYTES,
    ) -> None:
        if last and replay:
            raise ValueError("last and replay do not go together: a replay holds the last")
        if replay < 0 or pending_messages < 1 or pending_bytes < 1:
            raise ValueError("replay may not be below 0, nor the pending limits below 1")
        self.client = client
        self.subject = subject
        self.queue = queue
        #: Its number on the wire.
        self.sid = b""
        #: Messages received, dropped ones included.
        self.received = 0
        #: Messages that the reader was too slow for.
        self.dropped = 0
        #: Whether there will be no more messages from the server.
        self.ended = False
        self.maximum: int | None = None
        self._last, self._replay = last, replay
        #: Whether a server has been told.
        self._announced = False
        self._callback = callback
        self._limit, self._limit_bytes = pending_messages, pending_bytes
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._slow = False
        #: Whether the callback is at work on a message.
        self._busy = False
        self._readers: deque[Deferred[Message]] = deque()
        self._error: Exception | None = None
        self._idle: list[Deferred[None]] = []

    def __repr__(self) -> str:
        queue = f" queue {self.queue}" if self.queue else ""
        return f"<Subscription {self.subject}{queue}>"

    # On the wire

    @property
    def asked(self) -> str:
        """The subject as the server is asked for it."""
        if self._last:
            return f"$LAST.{self.subject}"
        if self._replay:
            return f"$REPLAY.{self._replay}.{self.subject}"
        return self.subject

    def announce(self) -> bytes:
        """SUB, and UNSUB if there is an end to it. After a reconnect the last value is asked for
        again, it may be a new one; a replay is not, it would repeat what was seen."""
        again, self._announced = self._announced, True
        subject = self.subject if again and self._replay else self.asked
        queue = to_raw(self.queue) if self.queue is not None else None
        said = wire.sub(to_raw(subject), queue, self.sid)
        if self.maximum is not None:
            said += wire.unsub(self.sid, self.maximum - self.received)
        return said

    # Receiving: called by the connection.

    def receive(self, message: Message) -> None:
        self.received += 1
        if self._callback is None or self._busy:
            self._keep(message)
        else:
            self._call(message)
        if self.maximum is not None and self.received >= self.maximum:
            self.client._forget(self)
            self.end()

    def _keep(self, message: Message) -> None:
        waiting = self._waiting
        if not waiting and self._readers:
            self.client._subscriptions.wake(self)
        waiting.append(message)
        self._bytes += len(message.payload) + _MESSAGE_COST
        if len(waiting) > self._limit or self._bytes > self._limit_bytes:
            self._drop()

    def _drop(self) -> None:
        waiting = self._waiting
        while len(waiting) > self._limit or (self._bytes > self._limit_bytes and len(waiting) > 1):
            self._bytes -= len(waiting.popleft().payload) + _MESSAGE_COST
            self.dropped += 1
            self.client.stats.dropped += 1
        if not self._slow and self.dropped:
            self._slow = True
            self.client._tell(Event("slow_reader", subject=self.subject, dropped=self.dropped))

    def _take(self) -> Message:
        message = self._waiting.popleft()
        self._bytes -= len(message.payload) + _MESSAGE_COST
        if not self._waiting:
            self._slow = False
        return message

    def _call(self, message: Message) -> None:
        assert self._callback is not None
        try:
            result = self._callback(message)
        except Exception:
            self._failed(Failure())
            return
        if result is None:  # the usual case, quickly (benchmarks/client.py, callback)
            return
        if isinstance(result, Coroutine):
            result = Deferred.fromCoroutine(result)
        if isinstance(result, Deferred):
            self._busy = True
            result.addErrback(self._failed)
            result.addCallback(self._done)

    def _failed(self, failure: Failure) -> None:
        self.log.failure("the callback of {sub} failed", failure, sub=self)

    def _done(self, result: object) -> None:
        """The callback is done with a message: on with those that came meanwhile."""
        self._busy = False
        while self._waiting and not self._busy:
            self._call(self._take())
        self._check_idle()

    # Reading

    def wake(self) -> None:
        """Give what has come to those who wait for it."""
        while self._readers and self._waiting:
            self._readers.popleft().callback(self._take())
        self._check_idle()

    def next(self, timeout: float | None = None) -> Deferred[Message]:
        """The next message. Fails with `Timeout`, or `SubscriptionEnded` when none can come."""
        if self._callback is not None:
            raise TypeError("this subscription's messages go to its callback")
        if self._waiting and not self._readers:
            message = self._take()
            self._check_idle()
            return succeed(message)
        if self.ended:
            return fail(self._error or SubscriptionEnded(f"no more messages on {self.subject}"))
        reader: Deferred[Message] = Deferred(self._cancel)
        self._readers.append(reader)
        if timeout is not None:
            late = Timeout(f"no message on {self.subject} within {timeout:g} s")
            return with_timeout(reader, timeout, self.client.reactor, late)
        return reader

    def _cancel(self, reader: Deferred[Message]) -> None:
        self._readers.remove(reader)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Message:
        # No Deferred for a message that is here already: benchmarks/client.py, async for.
        if self._waiting and not self._readers:
            message = self._take()
            if self._idle:
                self._check_idle()
            return message
        try:
            return await self.next()
        except SubscriptionEnded:
            raise StopAsyncIteration from None

    # Ending

    def unsubscribe(self, max: int | None = None) -> None:
        """No more messages; those that wait are dropped. With `max`, end by itself once so many
        have been received since it was made."""
        if self.ended:
            return
        if max is not None and max > self.received:
            self.maximum = max
            self.client._say(wire.unsub(self.sid, max))
            return
        self.client._say(wire.unsub(self.sid))
        self.client._forget(self)
        if max is None:
            self._waiting.clear()
            self._bytes = 0
        self.end()

    def drain(self, timeout: float = 30.0) -> Deferred[None]:
        """No more messages, but those on their way are still received and read; fires when the
        last has been. After `timeout` seconds those that nobody has read are dropped."""

        def gone(result: object) -> Deferred[None]:
            self.client._forget(self)
            self.end()
            return self._when_idle(timeout)

        if self.ended or self.client.connected_url is None:
            return gone(None)  # nothing can come
        self.client._say(wire.unsub(self.sid))
        return self.client._confirm(timeout).addBoth(gone)

    def end(self, error: Exception | None = None) -> None:
        """There is no more to come."""
        if self.ended:
            return
        self.ended = True
        self._error = error
        self.wake()
        readers, self._readers = self._readers, deque()
        for reader in readers:
            reader.errback(error or SubscriptionEnded(f"no more messages on {self.subject}"))
        self._check_idle()

    def _when_idle(self, timeout: float) -> Deferred[None]:
        def late() -> None:
            self._waiting.clear()
            self._bytes = 0
            self._busy = False
            self._check_idle()

        idle: Deferred[None] = Deferred()
        self._idle.append(idle)
        timer = self.client.reactor.callLater(timeout, late)

        def done(result: None) -> None:
            if timer.active():
                timer.cancel()

        idle.addCallback(done)
        self._check_idle()
        return idle

    def _check_idle(self) -> None:
        if self.ended and self._idle and not self._waiting and not self._busy:
            idle, self._idle = self._idle, []
            for one in idle:
                one.callback(None)


def with_timeout(work: Deferred[Any], timeout: float, clock: Any, late: Exception) -> Deferred[Any]:
    """`work`, cancelled and failed with `late` when it takes too long."""

    def too_late(result: object, seconds: float) -> object:
        raise late

    return work.addTimeout(timeout, clock, onTimeoutCancel=too_late)
