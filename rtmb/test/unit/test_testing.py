"""Tests for `rtmb.testing` without sockets."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rtmb.client import AuthenticationFailed, ConnectionFailed
from rtmb.testing import BrokerProcess, MemoryBroker, start_broker


class MemoryTests(SynchronousTestCase):
    def test_round_trip(self) -> None:
        broker = MemoryBroker()
        one, two = broker.connect(name="one"), broker.connect()
        subscription = one.subscribe("a.*")
        broker.advance()
        two.publish("a.b", "hello")
        broker.advance()
        self.assertEqual(self.successResultOf(subscription.next()).text, "hello")
        self.assertEqual(len(broker.broker.clients), 2)
        one.close()
        broker.advance()
        self.assertEqual(len(broker.broker.clients), 1)

    def test_settings(self) -> None:
        broker = MemoryBroker(token="t")
        self.assertRaises(AuthenticationFailed, broker.connect)
        broker.connect(token="t")

    def test_history(self) -> None:
        broker = MemoryBroker(history=2)
        client = broker.connect()
        for i in range(5):
            client.publish("a", str(i))
        broker.advance()
        subscription = client.subscribe("a", replay=10)
        broker.advance()
        got = [self.successResultOf(subscription.next()).text for _ in range(2)]
        self.assertEqual(got, ["3", "4"])

    def test_network_failure(self) -> None:
        broker = MemoryBroker()
        client = broker.connect()
        broker.lose_connections(reachable=False)
        broker.advance(60)
        self.assertFalse(client.connected)
        self.assertRaises(ConnectionFailed, broker.connect)
        broker.reachable = True
        broker.advance(60)
        self.assertTrue(client.connected)

    def test_the_broker_says_goodbye(self) -> None:
        """A client sees the broker close."""
        broker = MemoryBroker()
        client = broker.connect(reconnect=False)
        broker.factory.close_all(1)
        broker.advance()
        self.assertTrue(client.closed)


class NameTests(SynchronousTestCase):
    def test_names(self) -> None:
        import rtmb.testing

        for name in rtmb.testing.__all__:
            self.assertEqual(getattr(rtmb.testing, name).__name__, name)
        self.assertRaises(AttributeError, lambda: rtmb.testing.nothing)
        self.assertIs(start_broker, rtmb.testing.process.start_broker)
        self.assertTrue(issubclass(BrokerProcess, rtmb.testing.process.ServerProcess))
