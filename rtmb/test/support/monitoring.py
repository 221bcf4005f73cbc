"""Help for tests of what monitoring tools read: a broker in memory, asked over HTTP."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rtmb.broker import Broker
from rtmb.core.message import Message
from rtmb.core.subscriptions import Subscription
from rtmb.doors.http.site import HttpService
from rtmb.doors.session import Roster, Session
from rtmb.interfaces import ISubscriber
from rtmb.test.support.memory import MemoryBroker, Peer


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}

    def json(self) -> Any:
        return json.loads(self.body)


@implementer(ISubscriber)
class Plain(Session):
    """A client of a door that knows next to nothing of its clients."""

    door = "odd"
    echo = True
    stalled = False
    pending = 0

    def __init__(self, broker: Broker) -> None:
        super().__init__(Roster(broker))
        self.held: list[Subscription] = []
        self.closed = ""

    @property
    def subscriptions(self) -> list[Subscription]:
        return self.held

    def describe(self) -> dict[str, str]:
        return {"name": "odd one"}

    def close(self, reason: str) -> None:
        self.closed = reason

    def deliver(self, subscription: Subscription, message: Message) -> None:
        pass

    def flush(self) -> bool:
        return False

    def ended(self, subscription: Subscription, reason: str) -> None:
        pass


class MonitorCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.start()

    def start(self, **settings: Any) -> None:
        quiet: dict[str, Any] = {"no_msgpack": True, "metrics_interval": 1e6, "ping_interval": 1e6}
        self.memory = MemoryBroker(**quiet, **settings)
        self.broker = self.memory.broker
        self.hub, self.clients = self.broker.hub, self.broker.clients
        service = self.memory.broker.getServiceNamed("http")
        assert isinstance(service, HttpService)
        self.site = service.site
        self.memory.broker.startService()
        self.addCleanup(self.memory.broker.stopService)

    def ask(self, path: str, method: str = "GET", headers: str = "") -> Answer:
        channel = self.site.buildProtocol(None)
        transport = StringTransport()
        channel.makeConnection(transport)
        channel.dataReceived(f"{method} {path} HTTP/1.0\r\n{headers}\r\n".encode())
        answer = Answer(transport.value())
        channel.connectionLost(None)
        return answer

    def get(self, path: str) -> Any:
        answer = self.ask(path)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def refused(self, path: str) -> str:
        answer = self.ask(path)
        self.assertEqual(answer.status, 400, path)
        self.assertTrue(answer.body.endswith(b"\n"))
        return answer.body.decode()

    def pub(self, peer: Peer, subject: str, payload: bytes = b"x", times: int = 1) -> None:
        peer.send(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload) * times)
