"""Tests for how `rtmb.client` stays connected."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from rtmb.client import (
    BufferFull,
    Client,
    ConnectionClosed,
    ConnectionFailed,
    Disconnected,
    Event,
    Timeout,
)
from rtmb.client.connection import Connection
from rtmb.test.support.client import MemoryTests
from rtmb.testing import MemoryBroker


class StayingTests(MemoryTests):
    """Losing the connection and coming back."""

    def test_backoff(self) -> None:
        """Waits double up to a limit; what is left out by chance is half at most."""
        client = self.connect(reconnect_wait=1, reconnect_wait_max=4)
        self.memory.lose_connections(reachable=False)
        self.assertEqual(self.told(), ["connected", "disconnected"])
        for wait in (1, 2, 4, 4):
            before = self.told().count("error")
            self.memory.advance(wait - 0.01)
            self.assertEqual(self.told().count("error"), before)
            self.memory.advance(0.01)
            self.assertEqual(self.told().count("error"), before + 1)
        client._connector.random = lambda: 1.0
        self.memory.advance(4)  # the wait that had begun
        before = self.told().count("error")
        self.memory.advance(2)
        self.assertEqual(self.told().count("error"), before + 1)
        self.memory.reachable = True
        self.memory.advance(2)
        self.assertEqual(self.told()[-1], "reconnected")
        self.assertEqual(client.stats.reconnects, 1)
        self.assertEqual(client.connected_url, "nats://memory:4222")

    def test_giving_up(self) -> None:
        """After so many attempts all who wait are told."""
        client = self.connect(max_reconnects=3)
        subscription = client.subscribe("a")
        reading, flushing = subscription.next(), None
        self.memory.lose_connections(reachable=False)
        flushing, asking = client.flush(timeout=1000), client.request("a", timeout=1000)
        self.memory.advance(100)
        for _ in range(5):
            self.memory.advance(100)
        self.assertEqual(self.told().count("error"), 3)
        self.assertEqual(self.told()[-1], "closed")
        for waiting in (reading, flushing, asking):
            self.failureResultOf(waiting, ConnectionClosed)
        self.assertTrue(client.closed)
        self.assertRaises(ConnectionClosed, client.publish, "a")
        self.assertRaises(ConnectionClosed, client.subscribe, "a")
        for waiting in (client.flush(), client.request("a"), client.ready()):
            self.failureResultOf(waiting, ConnectionClosed)
        self.successResultOf(client.close())

    def test_no_reconnect(self) -> None:
        for options in ({"reconnect": False}, {"max_reconnects": 0}):
            client = self.connect(**options)
            self.memory.lose_connections()
            self.assertTrue(client.closed)
            self.assertEqual(self.told()[-2:], ["disconnected", "closed"])

    def test_several_servers(self) -> None:
        """The next one first; those that a server names count too."""
        tried: list[str] = []
        client = self.memory.client(servers=["two", "three:5"])
        dial = client._connector.dial

        def count(client: Client, address: Any) -> Deferred[Connection]:
            tried.append(f"{address.host}:{address.port}")
            return dial(client, address)

        client._connector.dial = count
        client.start()
        self.memory.advance()
        client._informed({"connect_urls": ["four:6", "two:4222", "no good:x", 7]})
        self.memory.lose_connections(reachable=False)
        for _ in range(3):
            self.memory.advance(1)
        self.assertEqual(tried[0], "memory:4222")
        self.assertEqual(tried[1:6], ["two:4222", "three:5", "four:6", "7:4222", "memory:4222"])
        client.close()

    def test_subscriptions_come_back(self) -> None:
        """With what is left of their maximum."""
        client = self.connect()
        plain, some = client.subscribe("a"), client.subscribe("a")
        some.unsubscribe(max=3)
        client.publish("a", b"0")
        self.memory.advance()
        self.memory.lose_connections()
        made_away = client.subscribe("a")
        gone = client.subscribe("a")
        gone.unsubscribe()
        self.memory.advance(1)
        for i in range(1, 5):
            client.publish("a", b"%d" % i)
        self.assertEqual(self.read(plain), [b"0", b"1", b"2", b"3", b"4"])
        self.assertEqual(self.read(some), [b"0", b"1", b"2"])
        self.assertEqual(self.read(made_away), [b"1", b"2", b"3", b"4"])
        self.assertEqual(len(self.memory.hub.routing), 2)

    def test_publishing_while_away(self) -> None:
        """It waits, in order, within a limit of bytes, and arrives behind the subscriptions."""
        client = self.connect(pending_limit=1000)
        subscription = client.subscribe("a")
        self.memory.advance()
        self.memory.lose_connections(reachable=False)
        for i in range(8):
            client.publish("a", b"%d" % i * 100)
        self.assertRaises(BufferFull, client.publish, "a", b"x" * 100)
        client.publish("a", b"small")
        self.memory.reachable = True
        flushed = client.flush()
        self.assertNoResult(flushed)
        self.memory.advance(1)
        self.successResultOf(flushed)
        got = self.read(subscription)
        self.assertEqual(got, [*(b"%d" % i * 100 for i in range(8)), b"small"])
        self.assertEqual(client.pending, 0)

    def test_ready(self) -> None:
        """A fast publisher can wait until little waits to be sent."""
        client = self.connect()
        self.successResultOf(client.ready())
        self.memory.lose_connections(reachable=False)
        for _ in range(3):
            client.publish("a", b"x" * 500_000)
        waiting = client.ready()
        self.memory.advance(1)
        self.assertNoResult(waiting)
        self.memory.reachable = True
        self.memory.advance(2)
        self.successResultOf(waiting)
        self.assertEqual(client.pending, 0)

    def test_a_server_that_reads_slowly(self) -> None:
        """What it has not taken waits, within the limit, and is kept for the next."""
        client = self.connect(pending_limit=500_000)
        subscription = client.subscribe("a")
        self.memory.advance()
        client._connection.transport.stuck = True  # type: ignore[union-attr]
        for i in range(40):
            client.publish("a", b"%d" % (i % 10) * 10_000)
        self.memory.advance()
        self.assertGreater(client.pending, 200_000)
        self.assertRaises(BufferFull, client.publish, "a", b"x" * 300_000)
        self.memory.lose_connections()
        self.memory.advance(1)
        got = self.read(subscription)
        self.assertEqual(client.pending, 0)
        self.assertEqual(got, [b"%d" % (i % 10) * 10_000 for i in range(40)])

    def test_closing_when_told(self) -> None:
        """A listener may close the client, whatever it was told of."""
        for name in ("connected", "disconnected", "error", "reconnected"):
            self.memory = MemoryBroker()
            closed: list[Deferred[None]] = []
            made: list[Client] = []

            def listen(
                event: Event,
                name: str = name,
                made: list[Client] = made,
                closed: list[Deferred[None]] = closed,
            ) -> None:
                if event.name == name:
                    closed.append(made[0].close())

            client = self.memory.client(on_event=listen)
            made.append(client)
            client.start()
            self.memory.advance()
            self.memory.lose_connections(reachable=False)
            self.memory.advance(1)
            self.memory.reachable = True
            for _ in range(5):
                self.memory.advance(10)
            self.assertEqual(len(closed), 1, name)
            self.successResultOf(closed[0])
            self.assertEqual(self.memory.factory.sessions, {}, name)

    def test_flush_tells_of_loss(self) -> None:
        """It does not say that all has arrived when a connection was lost with something on it."""
        client = self.connect()
        client.publish("a")
        waiting = client.flush()
        self.memory.lose_connections()
        self.failureResultOf(waiting, Disconnected)
        self.memory.advance(1)
        waiting = client.flush()  # told once
        self.memory.advance()
        self.successResultOf(waiting)

        client.publish("a")
        self.memory.clock.advance(0)  # sent, and the PONG of nothing confirms it
        self.memory.lose_connections()
        self.memory.advance(1)
        self.failureResultOf(client.flush(), Disconnected)
        waiting = client.flush()
        self.memory.advance()
        self.successResultOf(waiting)

        client.publish("a")
        waiting = client.flush()
        self.memory.advance()
        self.successResultOf(waiting)
        self.memory.lose_connections()  # all was confirmed
        self.memory.advance(1)
        waiting = client.flush()
        self.memory.advance()
        self.successResultOf(waiting)

    def test_flush_in_time(self) -> None:
        client = self.connect()
        self.memory.lose_connections(reachable=False)
        waiting = client.flush(timeout=3)
        self.memory.advance(2.9)
        self.assertNoResult(waiting)
        self.memory.advance(0.2)
        self.failureResultOf(waiting, Timeout)
        self.memory.reachable = True
        self.memory.advance(20)
        waiting = client.flush()
        self.memory.advance()
        self.successResultOf(waiting)

    def test_stale_server(self) -> None:
        """One that does not answer PINGs is left."""
        client = self.connect(ping_interval=10, max_pings_out=2)
        for _ in range(5):
            self.memory.advance(10)
        self.assertEqual(self.told(), ["connected"])
        # From here on nothing that is written arrives.
        for _ in range(2):
            self.memory.clock.advance(10)
        self.assertEqual(self.told(), ["connected"])
        self.memory.clock.advance(10)
        self.assertEqual(self.told(), ["connected", "disconnected"])
        self.assertIn("PING", str(self.events[-1].error))
        self.memory.advance(1)
        self.assertEqual(self.told()[-1], "reconnected")
        client.close()

    def test_handshake_that_takes_too_long(self) -> None:
        client = self.memory.client(connect_timeout=5)
        connecting = client.connect()  # and nothing is carried
        self.memory.clock.advance(4.9)
        self.assertNoResult(connecting)
        self.memory.clock.advance(0.2)
        error = self.failureResultOf(connecting, ConnectionFailed).value
        self.assertIn("within 5 s", str(error))
        self.memory.advance()
        self.assertEqual(self.memory.factory.sessions, {})

    def test_lame_duck(self) -> None:
        client = self.connect()
        self.memory.broker.enter_lame_duck()
        self.memory.advance()
        self.assertEqual(self.told(), ["connected", "lame_duck"])
        self.memory.advance(31)
        self.assertIn("disconnected", self.told())
        client.close()

    def test_a_listener_that_fails(self) -> None:
        """It harms nobody."""

        def fail(event: Event) -> None:
            raise RuntimeError("on purpose")

        client = self.connect(on_event=fail)
        self.assertEqual(client.connected_url, "nats://memory:4222")
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_unknown_option(self) -> None:
        self.assertRaises(TypeError, Client, "nats://h", reconect=True)
