"""Tests for `rtmb.core.hub`."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from rtmb.core.counters import Counters
from rtmb.core.hub import Hub
from rtmb.core.message import Message
from rtmb.core.subjects import split_past
from rtmb.core.subscriptions import Subscription
from rtmb.interfaces import ISubscriber


@implementer(ISubscriber)
class Listener:
    """A subscriber that keeps what it gets."""

    door = "test"

    def __init__(self, name: str = "listener", *, echo: bool = True) -> None:
        self.name = name
        self.counters = Counters()
        self.echo = echo
        self.stalled = False
        self.got: list[tuple[str, bytes]] = []
        self.endings: list[str] = []

    def deliver(self, subscription: Subscription, message: Message) -> None:
        self.got.append((message.subject, message.payload))

    def flush(self) -> bool:
        return False

    def ended(self, subscription: Subscription, reason: str) -> None:
        self.endings.append(reason)


class HubTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.now = 0.0
        self.hub = Hub(self.clock, history=3)
        self.listener = Listener()

    def clock(self) -> float:
        self.now += 1
        return self.now

    def subscribe(self, pattern: str, queue: str | None = None, past: int = 0) -> Subscription:
        subscription = Subscription(self.listener, pattern, queue)
        self.hub.subscribe(subscription, past)
        return subscription

    def publish(self, subject: str, payload: bytes = b"x", source: Listener | None = None) -> int:
        return self.hub.publish(Message(subject, payload), source)

    def test_interface(self) -> None:
        verifyObject(ISubscriber, self.listener)

    def test_everyone_who_matches(self) -> None:
        """A message goes once to each subscription that matches, and the number is told."""
        self.subscribe("a.*")
        self.subscribe("a.b")
        self.subscribe("c")
        self.assertEqual(self.publish("a.b"), 2)
        self.assertEqual(self.publish("none"), 0)

    def test_echo(self) -> None:
        """Who wants no echo gets none, in a queue group neither."""
        self.listener.echo = False
        self.subscribe("a")
        self.subscribe("a", "q")
        self.assertEqual(self.publish("a", source=self.listener), 0)
        self.assertEqual(self.publish("a"), 2)

    def test_past(self) -> None:
        """The past comes first, oldest first and by time across subjects, then what is new."""
        for subject, payload in (("w.a", b"1"), ("w.b", b"2"), ("w.a", b"3"), ("v", b"4")):
            self.publish(subject, payload)
        self.subscribe("w.*", past=2)
        self.publish("w.b", b"5")
        self.assertEqual([p for _, p in self.listener.got], [b"1", b"2", b"3", b"5"])

    def test_split_past(self) -> None:
        self.assertEqual(split_past("$REPLAY.20.orders.*"), ("orders.*", 20))
        self.assertEqual(split_past("$LAST.>"), (">", 1))
        for ordinary in ("$LAST", "$REPLAY.x.a", "$REPLAY.5", "x.$LAST.a"):
            self.assertEqual(split_past(ordinary), (ordinary, 0))

    def test_inboxes_are_not_remembered(self) -> None:
        self.publish("_INBOX.a.b")
        self.assertEqual(len(self.hub.history), 0)

    def test_maximum(self) -> None:
        """A subscription ends by itself at its maximum, and at once if it is past it."""
        subscription = self.subscribe("a")
        self.publish("a")
        self.assertFalse(self.hub.limit(subscription, 2))
        self.publish("a")
        self.publish("a")
        self.assertEqual(len(self.listener.got), 2)
        self.assertEqual(self.listener.endings, ["maximum"])
        other = self.subscribe("b")
        self.publish("b")
        self.assertTrue(self.hub.limit(other, 1))

    def test_counters(self) -> None:
        self.subscribe(">")
        source = Listener()
        self.publish("a", b"12345", source)
        totals = self.hub.totals
        self.assertEqual((totals.in_msgs, totals.in_bytes), (1, 5))
        self.assertEqual((totals.out_msgs, totals.out_bytes), (1, 5))
        self.assertEqual((source.counters.in_msgs, source.counters.out_msgs), (1, 0))
        self.assertEqual(self.listener.counters.out_bytes, 5)
        topic = self.hub.topics()["a"]
        self.assertEqual((topic.messages, topic.bytes), (1, 5))

    def test_topics(self) -> None:
        """A topic is there when it was created, published on or subscribed to by name."""
        self.assertTrue(self.hub.create_topic("made"))
        self.assertFalse(self.hub.create_topic("made"))
        self.publish("used")
        self.subscribe("heard")
        self.subscribe("wild.*")
        self.assertEqual(set(self.hub.topics()), {"made", "used", "heard"})
        self.assertTrue(self.hub.delete_topic("heard"))
        self.assertEqual(self.listener.endings, ["deleted"])
        self.assertTrue(self.hub.delete_topic("used") and self.hub.delete_topic("made"))
        self.assertFalse(self.hub.delete_topic("never"))
        self.assertEqual(self.hub.topics(), {})

    def test_deleted_topic_starts_anew(self) -> None:
        self.publish("a", b"old")
        self.hub.delete_topic("a")
        self.publish("a", b"new")
        self.assertEqual([m.payload for m in self.hub.newest("a", 9)], [b"new"])
