"""Tests for `rtmb.core.journal`: what is kept, read, lost and deduplicated."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rtmb.core.journal import MOST_LEASES, Journal, Repeats
from rtmb.core.leases import LeaseError
from rtmb.core.message import Message
from rtmb.core.segments import TAIL_COST, Selection
from rtmb.core.subjects import hears
from rtmb.test.support.journal import rows_of

EVERYTHING = Selection()


class JournalTests(SynchronousTestCase):
    """The ring."""

    def setUp(self) -> None:
        self.now = 100.0

    def journal(self, *patterns: str, **limits: int) -> Journal:
        return Journal(patterns or (">",), lambda: self.now, **limits)

    def fill(self, journal: Journal, count: int, subject: str = "a", size: int = 1) -> None:
        for _ in range(count):
            data = str(journal.next).encode().rjust(size)
            journal.append(Message(subject, data, time=self.now, door="nats"))

    def seqs(self, journal: Journal, start: int, end: int, wanted: Selection = EVERYTHING) -> Any:
        return [row["seq"] for row in rows_of(journal.read(start, end, wanted)[1])]

    def test_numbers_begin_with_1(self) -> None:
        journal = self.journal()
        self.assertEqual((journal.first, journal.next, len(journal)), (1, 1, 0))
        self.fill(journal, 3)
        self.assertEqual((journal.first, journal.next, len(journal)), (1, 4, 3))
        self.assertEqual(self.seqs(journal, 1, 4), [1, 2, 3])
        self.assertEqual(self.seqs(journal, 2, 3), [2])
        self.assertEqual(self.seqs(journal, 4, 9), [])

    def test_an_epoch_for_each_life(self) -> None:
        self.assertNotEqual(self.journal().epoch, self.journal().epoch)

    def test_wants(self) -> None:
        """As subscriptions do: the broker's own subjects by name only."""
        journal = self.journal("a.*", "!system/events/drop")
        for subject, wanted in (
            ("a.b", True),
            ("a", False),
            ("a.b.c", False),
            ("!system/events/drop", True),
            ("!system/events/connect", False),
        ):
            self.assertEqual(journal.wants(subject), wanted, subject)
        self.assertFalse(self.journal(">").wants("!system/events/drop"))

    def test_a_message_whole(self) -> None:
        """All that was published comes out, from a `Message` and from the text door's bytes."""
        block = b"NATS/1.0\r\nA: b\r\n\r\n"
        journal = self.journal()
        journal.append(
            Message("a.b", b"\x00\r\n", reply="r.1", headers=block, time=5.25, door="msgpack")
        )
        journal.append(Message("v", value={"x": 1}, time=6.0, door="ws"))
        journal.extend(["t", "u"], 7.5, "nats", [b"2\r\nhi\r\n", b"r.2 5\r\na\r\nb \r\n"])
        first, second, third, fourth = rows_of(journal.read(1, 9, EVERYTHING)[1])
        self.assertEqual(
            first,
            {
                "seq": 1, "time": 5.25, "subject": "a.b", "door": "msgpack",
                "data": b"\x00\r\n", "reply": b"r.1", "headers": block,
            },
        )  # fmt: skip
        self.assertEqual((second["data"], second["reply"], second["door"]), (b'{"x":1}', b"", "ws"))
        self.assertEqual((third["subject"], third["data"], third["reply"]), ("t", b"hi", b""))
        self.assertEqual((fourth["subject"], fourth["data"]), ("u", b"a\r\nb "))
        self.assertEqual((fourth["reply"], fourth["time"]), (b"r.2", 7.5))

    def test_without_headers(self) -> None:
        journal = self.journal()
        journal.append(Message("a", b"x", headers=b"NATS/1.0\r\nA: b\r\n\r\n"))
        (row,) = rows_of(journal.read(1, 2, EVERYTHING, headers=False)[1])
        self.assertEqual(row["headers"], b"")

    def test_subjects_that_are_no_utf8(self) -> None:
        journal = self.journal()
        journal.append(Message(b"a.\xff".decode("utf-8", "surrogateescape"), b"x"))
        (row,) = rows_of(journal.read(1, 2, EVERYTHING)[1])
        self.assertEqual(row["subject"], "a.\ufffd")

    def test_bounded_by_messages(self) -> None:
        journal = self.journal(messages=100)
        for _ in range(40):
            self.fill(journal, 7)
            self.assertLessEqual(len(journal), 100)
        self.assertGreaterEqual(len(journal), 90)
        self.assertEqual(journal.next, 281)
        self.assertEqual(self.seqs(journal, 1, 281), list(range(journal.first, 281)))

    def test_bounded_by_bytes(self) -> None:
        """However messages come: one by one, or many at a time."""
        journal = self.journal(budget=100_000)
        for _ in range(50):
            self.fill(journal, 10, size=200)
            journal.extend(["a"] * 50, 1.0, "nats", [b"200\r\n" + bytes(200) + b"\r\n"] * 50)
            self.assertLessEqual(journal.held, 100_000)
        self.assertGreater(journal.held, 80_000)
        self.assertEqual(self.seqs(journal, 1, journal.next)[0], journal.first)
        journal.read(1, journal.next, EVERYTHING)  # full segments become smaller when read
        self.assertLess(journal.held, 80_000)

    def test_a_chunk_larger_than_all(self) -> None:
        """What fits of it is kept."""
        journal = self.journal(budget=64_000)
        journal.extend(["a"] * 5000, 1.0, "nats", [b"1\r\nx\r\n"] * 5000)
        self.assertEqual(journal.next, 5001)
        self.assertLessEqual(journal.held, 64_000)
        self.assertGreater(len(journal), 64_000 // (TAIL_COST + 6) * 9 // 10)

    def test_a_message_larger_than_all(self) -> None:
        """It is not kept, and neither hidden: its number is missing."""
        journal = self.journal(budget=1000)
        self.fill(journal, 1, size=5000)
        self.assertEqual((journal.first, journal.next, journal.held), (2, 2, 0))

    def test_at_time(self) -> None:
        journal = self.journal(messages=64)
        for self.now in range(100, 200):
            self.fill(journal, 1)
        self.assertEqual(journal.at_time(150), 51)
        self.assertEqual(journal.at_time(149.5), 51)
        self.assertEqual(journal.at_time(0), journal.first)
        self.assertEqual(journal.at_time(1000), journal.next)
        journal.read(1, 101, EVERYTHING)
        self.assertEqual(journal.at_time(150), 51, "after it became columns")

    def test_read_in_parts(self) -> None:
        """`limit` counts what is wanted; where to go on is always told."""
        journal = self.journal(messages=1600)
        for _ in range(300):
            self.fill(journal, 1, "a")
            self.fill(journal, 2, "b")
        wanted, position, found = Selection(["a"]), 1, []
        while position < journal.next:
            then, pieces = journal.read(position, journal.next, wanted, limit=7)
            got = [row["seq"] for row in rows_of(pieces)]
            self.assertLessEqual(len(got), 7)
            self.assertGreater(then, position)
            found += got
            position = then
        self.assertEqual(found, list(range(1, 901, 3)))
        then, pieces = journal.read(1, 901, EVERYTHING, size=100)
        self.assertLess(then, 901, "an answer does not become too large")
        self.assertEqual(len(rows_of(pieces)), then - 1)

    def test_measure(self) -> None:
        journal = self.journal(messages=320)
        for _ in range(100):
            self.fill(journal, 1, "a", size=10)
            self.fill(journal, 2, "b", size=10)
        a = Selection(["a"])
        self.assertEqual(journal.measure(1, EVERYTHING), (301, 300))
        self.assertEqual(journal.measure(1, a), (301, 100))
        self.assertEqual(journal.measure(1, a, 10), (31, 10))
        self.assertEqual(journal.measure(31, a, 10), (61, 10))
        self.assertEqual(journal.measure(1, EVERYTHING, 300), (301, 300))
        self.assertEqual(journal.measure(1, EVERYTHING, None, 100), (11, 10))
        self.assertEqual(journal.measure(1, a, 5, 1000), (16, 5))
        self.assertEqual(journal.measure(1, a, 500, 1), (4, 1), "one at least")
        self.assertEqual(journal.measure(301, a, 10), (301, 0))
        journal.read(1, 301, EVERYTHING)
        self.assertEqual(journal.measure(1, EVERYTHING, None, 100), (11, 10), "as columns too")

    def test_news(self) -> None:
        """Told once for each time that someone asked."""
        journal, told = self.journal(), []
        journal.on_news(lambda: told.append(journal.next))
        self.fill(journal, 3)
        self.assertEqual(told, [2])
        journal.on_news(lambda: told.append(journal.next))
        journal.extend(["a"] * 5, 1.0, "nats", [b"1\r\nx\r\n"] * 5)
        self.assertEqual(told, [2, 9])

    @given(
        st.lists(
            st.tuples(st.sampled_from(["a", "a.b", "a.c", "b"]), st.integers(1, 40)), max_size=40
        ),
        st.sampled_from([">", "a.*", "a", "b", "nothing"]),
        st.integers(1, 400),
        st.integers(1, 400),
        st.booleans(),
    )
    @settings(max_examples=80, deadline=None)
    def test_like_a_list(
        self, steps: list[tuple[str, int]], pattern: str, start: int, end: int, early: bool
    ) -> None:
        """Whatever came how, a range read is what a plain list would give."""
        journal = Journal([">"], lambda: 1.0, messages=200)
        model: list[tuple[int, str, bytes]] = []
        for i, (subject, count) in enumerate(steps):
            payloads = [b"%d" % n for n in range(journal.next, journal.next + count)]
            model += [(int(p), subject, p) for p in payloads]
            if i % 2:
                tails = [b"%d\r\n%b\r\n" % (len(p), p) for p in payloads]
                journal.extend([subject] * count, 1.0, "nats", tails)
            else:
                for payload in payloads:
                    journal.append(Message(subject, payload))
            if early:
                journal.read(1, journal.next, EVERYTHING)
        _, pieces = journal.read(start, end, Selection([pattern]))
        got = [(row["seq"], row["subject"], row["data"]) for row in rows_of(pieces)]
        kept = [m for m in model if m[0] >= journal.first]
        self.assertEqual(got, [m for m in kept if start <= m[0] < end and hears(pattern, m[1])])
        wanted = [m for m in kept if m[0] >= start and hears(pattern, m[1])]
        self.assertEqual(journal.measure(start, Selection([pattern])).messages, len(wanted))

    # Leases

    def test_a_lease_ends_by_itself(self) -> None:
        journal = self.journal()
        journal.lease("q", 1, 10.0)
        self.now += 9
        journal.renew("q")
        self.now += 9
        self.assertIn("q", journal.leases)
        self.now += 1
        self.assertEqual(journal.leases, {})
        journal.renew("q")
        self.assertEqual(journal.leases, {}, "what has ended is not renewed")
        journal.lease("q", 1, 10.0)
        self.assertTrue(journal.release("q"))
        self.assertFalse(journal.release("q"))

    def test_leases_are_bounded(self) -> None:
        journal = self.journal()
        for i in range(MOST_LEASES):
            journal.lease(str(i), 1, 10.0)
        self.assertRaises(LeaseError, journal.lease, "one more", 1, 10.0)
        journal.lease("5", 2, 10.0)
        self.now += 10
        journal.lease("one more", 1, 10.0)

    def test_told_before_it_is_too_late(self) -> None:
        """Once, while the position is still there; again after it had recovered."""
        journal = self.journal(messages=160)
        told: list[tuple[int, int]] = []
        journal.alarm = lambda lease: told.append((lease.position, journal.first))
        journal.lease("q", 1, 1e6)
        self.fill(journal, 120)
        self.assertEqual(told, [])
        self.fill(journal, 39)
        self.assertEqual(told, [(1, 1)], "nothing is lost yet")
        self.fill(journal, 500)
        self.assertEqual(len(told), 1, "once")
        journal.lease("q", journal.next, 1e6)
        self.fill(journal, 150)
        self.assertEqual(len(told), 2)
        self.assertGreaterEqual(told[1][0], told[1][1], "nothing is lost yet")

    def test_lag(self) -> None:
        journal = self.journal(messages=100)
        journal.lease("q", 11, 60.0, ("a.*",))
        self.fill(journal, 50)
        (lease,) = journal.stats()["leases"]
        self.assertEqual((lease["lag"], lease["lost"], lease["subjects"]), (40, 0, ["a.*"]))
        self.fill(journal, 150)
        stats = journal.stats()
        (lease,) = stats["leases"]
        self.assertEqual(lease["lag"], stats["messages"])
        self.assertEqual(lease["lost"], journal.first - 11)
        self.assertEqual((stats["consumers"], stats["largest_lag"]), (1, lease["lag"]))
        self.assertEqual(stats["overwritten"], journal.first - 1)

    def test_lag_in_seconds(self) -> None:
        """The age of the next message to read."""
        journal = self.journal()
        for _ in range(30):
            self.fill(journal, 1)
            self.now += 1.0
        lag = journal.lag(journal.lease("q", 11, 600.0))
        self.assertEqual((lag.lag, lag.lag_seconds), (20, 20.0))
        lag = journal.lag(journal.lease("q", 31, 600.0))
        self.assertEqual((lag.lag, lag.lag_seconds, lag.catches_up), (0, 0.0, 0.0))

    def test_the_time_left_at_these_rates(self) -> None:
        """A consumer that takes 40 a second of 100 loses messages when it was told that it will."""
        journal = self.journal(messages=2000)
        lag = journal.lag(journal.lease("slow", 1, 1e6))
        self.assertEqual((lag.taken, lag.incoming, lag.time_left), (None, None, None))
        for second in range(20):
            self.fill(journal, 100)
            self.now += 1.0
            journal.lease("slow", 1 + 40 * (second + 1), 1e6)
        lag = journal.lag(journal.leases["slow"])
        self.assertApproximates(lag.taken, 40, 1)
        self.assertApproximates(lag.incoming, 100, 1)
        self.assertIsNone(lag.catches_up)
        assert lag.time_left is not None
        due = self.now + lag.time_left
        position = 801
        while journal.first <= position:
            self.fill(journal, 100)
            self.now += 1.0
            position += 40
        self.assertApproximates(self.now, due, 3)  # the ring forgets a sixteenth at a time

    def test_the_time_to_catch_up(self) -> None:
        journal = self.journal()
        self.fill(journal, 5000)
        for second in range(20):
            self.fill(journal, 50)
            self.now += 1.0
            journal.lease("q", 1 + 200 * second, 1e6)
        lag = journal.lag(journal.leases["q"])
        self.assertIsNone(lag.time_left)
        assert lag.catches_up is not None
        self.assertApproximates(lag.catches_up, lag.lag / 150, 2)


class RepeatsTests(SynchronousTestCase):
    """Ids that were seen."""

    def setUp(self) -> None:
        self.now = 0.0

    def repeats(self, most: int = 1000) -> Repeats:
        return Repeats(10.0, lambda: self.now, most)

    def test_rows(self) -> None:
        repeats = self.repeats()
        self.assertEqual([repeats.fresh(b"q", i) for i in (0, 1, 2)], [True] * 3)
        self.assertEqual([repeats.fresh(b"q", i) for i in (0, 2, 3)], [False, False, True])
        self.assertTrue(repeats.fresh(b"other", 0))
        self.assertEqual(len(repeats), 2, "a row is one entry")

    def test_window(self) -> None:
        """Known for the window at least, for twice as long at most."""
        repeats = self.repeats()
        self.now = 9.0
        self.assertTrue(repeats.fresh(b"id"))
        for self.now in (10.0, 15.0, 19.0):
            repeats.tick()
            self.assertFalse(repeats.fresh(b"id"), str(self.now))
        self.now = 29.0
        repeats.tick()
        self.assertTrue(repeats.fresh(b"id"))
        self.now = 100.0
        repeats.tick()
        self.assertEqual(len(repeats), 0, "after a long silence nothing is left")

    def test_bounded(self) -> None:
        repeats = self.repeats(most=100)
        for i in range(1000):
            repeats.fresh(b"%d" % i)
            self.assertLessEqual(len(repeats), 100)
        self.assertFalse(repeats.fresh(b"999"))
        self.assertGreater(repeats.forgotten, 0)
