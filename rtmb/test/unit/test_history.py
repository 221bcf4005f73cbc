"""Tests for `rtmb.core.history`."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rtmb.core.history import PAYLOAD_COST, TOPIC_COST, History
from rtmb.core.message import Message
from rtmb.core.subjects import to_raw


def fill(history: History, name: str, size: int = 0) -> None:
    history.remember(Message(name, b"x" * size, time=1.0))


def held(history: History) -> int:
    """What it holds, counted anew."""
    return sum(
        TOPIC_COST + len(to_raw(t.name)) + sum(PAYLOAD_COST + m.size for m in t.newest(1 << 20))
        for t in history
    )


class HistoryTests(SynchronousTestCase):
    def newest(self, history: History, name: str) -> list[int]:
        topic = history.get(name)
        return [m.size for m in topic.newest(1 << 20)] if topic is not None else []

    def test_depth(self) -> None:
        """The newest stay, oldest first; fewer are given when fewer are asked for."""
        history = History(3, 1 << 20)
        for size in range(7):
            fill(history, "a", size)
        self.assertEqual(self.newest(history, "a"), [4, 5, 6])
        topic = history.get("a")
        assert topic is not None
        self.assertEqual([m.size for m in topic.newest(2)], [5, 6])
        self.assertEqual((topic.kept, len(topic.times), topic.messages), (3, 3, 7))

    def test_off(self) -> None:
        history = History(0, 1 << 20)
        fill(history, "a")
        self.assertEqual(self.newest(history, "a"), [])
        self.assertIsNotNone(history.get("a"))

    def test_what_comes_back_is_what_was_kept(self) -> None:
        """Payload, reply and headers, whatever of them there is; a value stays the value it was."""
        history = History(9, 1 << 20)
        block = b"NATS/1.0\r\na: b\r\n\r\n"
        kept = [
            Message("a", b"p", time=1.0),
            Message("a", b"p", reply="r", time=2.0),
            Message("a", b"p", headers=block, time=3.0),
            Message("a", b"", reply="r", headers=block, time=4.0),
            Message("a", value="12", time=5.0),
        ]
        for message in kept:
            history.remember(message)
        topic = history.get("a")
        assert topic is not None
        found = topic.newest(9)

        def facts(m: Message) -> tuple[object, ...]:
            return m.subject, m.payload, m.reply, m.headers, m.time, m.value, m.size

        self.assertEqual(list(map(facts, found)), list(map(facts, kept)))

    def test_longest_unused_goes_first(self) -> None:
        history = History(5, 10 * (TOPIC_COST + PAYLOAD_COST + 1000))
        for i in range(9):
            fill(history, f"t{i}", 1000)
        fill(history, "t0", 1000)
        for i in range(9, 12):
            fill(history, f"t{i}", 1000)
        names = [t.name for t in history]
        self.assertIn("t0", names)
        self.assertNotIn("t1", names)
        self.assertEqual(names[-1], "t11")

    def test_it_forgets_no_more_than_it_must(self) -> None:
        """Many subjects in turn, more than fit: the memory stays in use, and each one that comes
        costs the room of one."""
        budget = 100 * (TOPIC_COST + PAYLOAD_COST + 100)
        history = History(5, budget)
        for i in range(1000):
            fill(history, f"t{i % 300}", 100)
        self.assertGreater(history.held, budget * 0.98)

    def test_one_large_topic_keeps_its_newest(self) -> None:
        history = History(100, 50_000)
        for _ in range(100):
            fill(history, "a", 5_000)
        self.assertGreaterEqual(len(self.newest(history, "a")), 5)
        fill(history, "b", 60_000)
        self.assertEqual(self.newest(history, "b"), [60_000])

    def test_created_topics_stay(self) -> None:
        history = History(5, 20_000)
        fill(history, "made", 10)
        made = history.get("made")
        assert made is not None
        made.created = True
        for i in range(50):
            fill(history, f"t{i}", 1000)
        self.assertIs(history.get("made"), made)
        self.assertEqual(made.kept, 0)

    def test_places_are_used_again(self) -> None:
        history = History(1, 1 << 20)
        for i in range(1000):
            fill(history, f"t{i}")
            topic = history.get(f"t{i}")
            assert topic is not None
            history.remove(topic)
        self.assertEqual((len(history), history.held, list(history)), (0, 0, []))
        fill(history, "again")
        topic = history.get("again")
        assert topic is not None
        self.assertEqual(topic.place, 1)

    @settings(max_examples=100, deadline=None)
    @given(
        st.integers(1, 6),
        st.integers(3_000, 20_000),
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2_000)), max_size=80),
    )
    def test_counts_exactly_and_stays_within_its_budget(
        self, depth: int, budget: int, messages: list[tuple[int, int]]
    ) -> None:
        history = History(depth, budget)
        for name, size in messages:
            fill(history, f"t{name}", size)
            self.assertEqual(history.held, held(history))
            self.assertLessEqual(history.held, budget)
            self.assertEqual([t.name for t in history][-1], f"t{name}")
