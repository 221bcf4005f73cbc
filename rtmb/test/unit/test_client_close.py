"""Tests for how `rtmb.client` ends: close and drain."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from rtmb.client import (
    ClientService,
    ConnectionClosed,
    Message,
    SubscriptionEnded,
)
from rtmb.test.support.client import MemoryTests


class ClosingTests(MemoryTests):
    def test_close(self) -> None:
        """What was published is sent; nothing is left behind."""
        client, other = self.connect(), self.connect()
        heard = other.subscribe("a")
        self.memory.advance()
        subscription = client.subscribe("b")
        reading = subscription.next()
        client.publish("a", b"last words")
        closed = client.close()
        self.memory.advance()
        self.successResultOf(closed)
        self.failureResultOf(reading, SubscriptionEnded)
        self.assertEqual(self.read(heard), [b"last words"])
        self.successResultOf(client.close())
        self.assertEqual(self.told().count("closed"), 1)
        self.successResultOf(other.close())
        self.memory.advance(10)
        self.assertEqual(len(self.memory.clock.getDelayedCalls()), 1)  # the broker's own tick

    def test_close_while_away(self) -> None:
        client = self.connect()
        self.memory.lose_connections(reachable=False)
        self.successResultOf(client.close())
        self.memory.advance()
        self.assertEqual(len(self.memory.clock.getDelayedCalls()), 1)  # the broker's own tick
        self.memory.reachable = True
        self.memory.advance(100)
        self.assertEqual(self.memory.factory.sessions, {})

    def test_drain(self) -> None:
        """All that came is read and all that was published arrives, answers included."""
        client, other = self.connect(), self.connect()
        door: Deferred[None] = Deferred()

        async def answer(message: Message) -> None:
            await door
            message.respond(b"answer")

        client.subscribe("ask", callback=answer)
        reader = client.subscribe("a")
        self.memory.advance()
        asked = other.request("ask")
        other.publish("a", b"0")
        self.memory.advance()
        drained = client.drain()
        self.memory.advance()
        self.assertEqual(self.read(reader), [b"0"])
        self.assertNoResult(drained)
        door.callback(None)
        self.memory.advance()
        self.assertEqual(self.successResultOf(asked).payload, b"answer")
        self.successResultOf(drained)
        self.assertTrue(client.closed)

    def test_service(self) -> None:
        """It connects when it can, and drains at the end; it can be used before."""
        self.memory.reachable = False
        service = ClientService("nats://memory:4222", reactor=self.memory.clock)
        service.client = client = self.memory.client()
        subscription = client.subscribe("a")
        client.publish("a", b"early")
        service.startService()
        connected = service.when_connected()
        self.memory.advance(10)
        self.assertNoResult(connected)
        self.memory.reachable = True
        self.memory.advance(20)
        self.assertIs(self.successResultOf(connected), client)
        self.assertIs(self.successResultOf(service.when_connected()), client)
        self.assertEqual(self.read(subscription), [b"early"])
        stopped = service.stopService()
        self.memory.advance()
        self.successResultOf(stopped)
        self.assertTrue(client.closed)
        self.failureResultOf(service.when_connected(), ConnectionClosed)

    def test_service_without_a_server(self) -> None:
        """Stopping takes no longer than it was told, whatever waits."""
        self.memory.reachable = False
        service = ClientService("nats://memory:4222", reactor=self.memory.clock)
        service.client = self.memory.client()
        service.startService()
        service.client.publish("a")
        stopped = service.stopService()
        self.assertNoResult(stopped)
        self.memory.advance(ClientService.drain_timeout + 0.1)
        self.successResultOf(stopped)
