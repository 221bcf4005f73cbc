"""A broker in the hands of a test: it can be made new, and tells what was published."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone
from twisted.internet.task import deferLater
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from rtmb.broker import Broker
from rtmb.codecs import nats as wire
from rtmb.core.segments import Excerpt, Selection
from rtmb.core.subjects import is_pattern
from rtmb.doors.listener import Listener
from rtmb.testing.inside import broker_settings

#: So that all that is published can be asked for, within a bound. What a test says goes before.
_RECORD = {"journal": [">"], "journal_bytes": "64MiB"}
#: Seconds between two looks for a message that is waited for.
_LOOK = 0.002
#: The most messages of one answer: who wants to see more of them wants no test.
_MOST = 10_000


class ControlledBroker:
    """A broker that can be replaced by a new one on the same ports."""

    def __init__(self, table: Mapping[str, Any], reactor: Any) -> None:
        self._table = {**({} if "journal" in table else _RECORD), **table}
        self._reactor = reactor
        self._broker: Broker | None = None
        self.ports: dict[str, int] = {}
        self.host = ""

    def start(self) -> None:
        """Listen: on free ports the first time, and then on those."""
        settings = broker_settings({**self._table, **self._port_settings()})
        broker = Broker(settings, self._reactor)
        broker.privilegedStartService()
        broker.startService()
        self._broker = broker
        self.host = settings.interface
        self.ports = {str(door.name): door.port for door in broker if isinstance(door, Listener)}

    def _port_settings(self) -> dict[str, int]:
        names = {"nats": "port", "http": "http_port", "msgpack": "msgpack_port"}
        return {names[door]: port for door, port in self.ports.items() if door in names}

    async def stop(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.stopService()

    async def reset(self) -> None:
        """Close all clients, and forget all that ever was."""
        await self.stop()
        self.start()

    async def wait_for(self, pattern: str, start: int, within: float) -> list[dict[str, Any]]:
        """The first message that matches, from number `start` on; none when it does not come."""
        end = self._reactor.seconds() + within
        while not (messages := self.published(pattern, start, 1)):
            if self._reactor.seconds() >= end:
                break
            await deferLater(self._reactor, _LOOK)
        return messages

    def published(self, pattern: str, start: int = 0, limit: int = _MOST) -> list[dict[str, Any]]:
        """Messages that match, from number `start` on, the oldest first."""
        if not is_pattern(pattern):
            raise ValueError(f"not a pattern: {pattern!r}")
        journal = self._broker.journal if self._broker is not None else None
        if journal is None:
            return []
        return [
            message
            for batch in journal.read(start, journal.next, Selection([pattern]), limit=limit)
            if batch is not None
            for message in _messages(batch)
        ]


def _messages(batch: Excerpt) -> list[dict[str, Any]]:
    names, indexes = batch.subjects
    doors, door_indexes = batch.doors
    starts, whole = batch.payloads.starts, batch.payloads.whole
    return [
        {
            "number": batch.seqs[row],
            "time": batch.times[row] / 1_000_000,
            "subject": names[indexes[row]],
            "door": doors[door_indexes[row]],
            "payload": base64.b64encode(whole[starts[row] : starts[row + 1]]).decode(),
            "reply": batch.replies.get(row),
            "headers": wire.decode_headers(batch.headers[row]) if row in batch.headers else [],
        }
        for row in range(batch.rows)
    ]


class Control(LineOnlyReceiver):
    """Answers the process that started this one."""

    delimiter = b"\n"
    MAX_LENGTH = 1 << 20

    def __init__(
        self,
        controlled: ControlledBroker,
        first: Mapping[str, Any],
        on_end: Callable[[], None],
    ) -> None:
        self._controlled = controlled
        self._first = first
        self._on_end = on_end

    def connectionMade(self) -> None:
        self._say(self._first)

    def _say(self, answer: Mapping[str, Any]) -> None:
        self.sendLine(json.dumps(answer).encode())

    def lineReceived(self, line: bytes) -> None:
        answering = Deferred.fromCoroutine(self._answer(json.loads(line)))
        answering.addErrback(lambda failure: {"error": failure.getErrorMessage()})
        answering.addCallback(self._say)

    async def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        controlled = self._controlled
        match request:
            case {"do": "reset"}:
                await controlled.reset()
                return {"ports": controlled.ports}
            case {"do": "published", "pattern": pattern}:
                return {"messages": controlled.published(pattern)}
            case {"do": "wait_for", "pattern": pattern, "start": start, "within": within}:
                return {"messages": await controlled.wait_for(pattern, start, within)}
        return {"error": f"cannot {request}"}

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._on_end()
