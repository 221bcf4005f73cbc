"""Tests for `rtmb.core.journal`: what is kept, read and lost, and how far readers are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rtmb.core.journal import Journal, Measure, OverwrittenError
from rtmb.core.journal_writer import MESSAGE_COST
from rtmb.core.leases import MOST_LEASES, LeaseError
from rtmb.core.segments import Selection
from rtmb.core.subjects import hears
from rtmb.test.support.journal import rows_of, written

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
            journal.append(subject, self.now, "nats", data)

    def rows(self, journal: Journal, start: int, end: int, wanted: Selection = EVERYTHING) -> Any:
        return rows_of(written(journal.read(start, end, wanted)))

    def seqs(self, journal: Journal, start: int, end: int, wanted: Selection = EVERYTHING) -> Any:
        return [row["seq"] for row in self.rows(journal, start, end, wanted)]

    def measured(self, *given: Any) -> tuple[int, int]:
        measure = Measure(*given)
        while measure.step():
            pass
        return measure.end, measure.messages

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
        block = b"NATS/1.0\r\nA: b\r\nC:d \r\nA: e\r\n\r\n"
        journal = self.journal()
        journal.append("a.b", 5.25, "msgpack", b"\x00\r\n", "r.1", block)
        journal.append("v", 6.0, "ws", b"", None, b"NATS/1.0\r\n\r\n")
        for packed in (False, True):
            if packed:
                self.fill(journal, 5000)
            first, second = self.rows(journal, 1, 3)
            self.assertEqual(
                first,
                {
                    "seq": 1, "timestamp": datetime.fromtimestamp(5.25, UTC), "subject": "a.b",
                    "door": "msgpack", "data": b"\x00\r\n", "reply": "r.1",
                    "headers": {"A": "b, e", "C": "d"},
                },
            )  # fmt: skip
            self.assertEqual((second["data"], second["reply"], second["door"]), (b"", None, "ws"))
            self.assertEqual(second["headers"], {})
        self.assertIsNone(self.rows(journal, 3, 4)[0]["headers"])

    def test_without_headers(self) -> None:
        journal = self.journal()
        journal.append("a", 1.0, "nats", b"x", None, b"NATS/1.0\r\nA: b\r\n\r\n")
        (row,) = rows_of(written(journal.read(1, 2, EVERYTHING), headers=False))
        self.assertIsNone(row["headers"])

    def test_what_is_no_utf8(self) -> None:
        journal = self.journal()
        odd = b"a.\xff".decode("utf-8", "surrogateescape")
        journal.append(odd, 1.0, "nats", b"\xff", odd, b"NATS/1.0\r\nA: \xff\r\n\r\n")
        (row,) = self.rows(journal, 1, 2)
        self.assertEqual((row["subject"], row["reply"]), ("a.\ufffd", "a.\ufffd"))
        self.assertEqual((row["data"], row["headers"]), (b"\xff", {"A": "\ufffd"}))

    def test_times_never_go_back(self) -> None:
        """The wall clock may; whoever begins at a time finds all that came after it."""
        journal = self.journal()
        for time in (10.0, 20.0, 5.0, 15.0, 30.0):
            journal.append("a", time, "nats", b"x")
        times = [row["timestamp"].timestamp() for row in self.rows(journal, 1, 6)]
        self.assertEqual(times, [10, 20, 20, 20, 30])
        self.assertEqual([journal.at_time(t) for t in (9, 20, 20.5, 31)], [1, 2, 5, 6])

    def test_bounded_by_messages(self) -> None:
        journal = self.journal(messages=100)
        for _ in range(40):
            self.fill(journal, 7)
            self.assertLessEqual(len(journal), 100)
        self.assertGreaterEqual(len(journal), 90)
        self.assertEqual(journal.next, 281)
        self.assertEqual(self.seqs(journal, 1, 281), list(range(journal.first, 281)))

    def test_bounded_by_bytes(self) -> None:
        journal = self.journal(budget=100_000)
        for _ in range(50):
            self.fill(journal, 10, size=200)
            journal.append("a", 1.0, "nats", bytes(200), "reply", bytes(100))
            for _ in range(50):
                journal.append("a", 1.0, "nats", bytes(200))
            self.assertLessEqual(journal.held, 100_000)
        self.assertGreater(journal.held, 80_000)
        self.assertEqual(self.seqs(journal, 1, journal.next)[0], journal.first)
        self.rows(journal, 1, journal.next)  # full segments become smaller when read
        self.assertLess(journal.held, 80_000)

    def test_names_are_counted(self) -> None:
        """Long subjects and replies are memory too."""
        journal = self.journal(budget=100_000)
        for i in range(1000):
            journal.append(f"{i:01000}", 1.0, "nats", b"", "r" * 1000)
        self.assertLessEqual(len(journal), 100_000 // (MESSAGE_COST + 2000))
        self.assertGreater(len(journal), 30)

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
        """`limit` counts what is wanted, and the last number tells where to go on."""
        journal = self.journal(messages=1600)
        for _ in range(300):
            self.fill(journal, 1, "a")
            self.fill(journal, 2, "b")
        wanted, position, found = Selection(["a"]), 1, []
        while rows := rows_of(written(journal.read(position, 901, wanted, limit=7))):
            self.assertLessEqual(len(rows), 7)
            found += [row["seq"] for row in rows]
            position = found[-1] + 1
        self.assertEqual(found, list(range(1, 901, 3)))

    def test_a_reader_that_is_overtaken(self) -> None:
        """What was gone before it began is not there; what goes while it reads is an error."""
        journal = self.journal(messages=1600)
        self.fill(journal, 2000)
        self.assertEqual(self.seqs(journal, 1, 2001)[0], journal.first)
        steps = journal.read(1, 2001, EVERYTHING)
        batch = next(steps)
        assert batch is not None
        self.fill(journal, 2000)
        error = self.assertRaises(OverwrittenError, next, steps)
        self.assertEqual((error.position, error.first), (batch.seqs[-1] + 1, journal.first))

    def test_steps_are_small(self) -> None:
        """Where nothing is wanted a step is one too, so that others have their turn."""
        journal = self.journal()
        self.fill(journal, 20_000)
        found = list(journal.read(1, 20_001, Selection(["b"])))
        self.assertEqual(set(found), {None})
        self.assertGreaterEqual(len(found), 4)

    def test_measure(self) -> None:
        journal = self.journal(messages=320)
        for _ in range(100):
            self.fill(journal, 1, "a", size=10)
            self.fill(journal, 2, "b", size=10)
        a = Selection(["a"])
        for _ in range(2):
            for asked, wanted in (
                ((1, EVERYTHING), (301, 300)),
                ((1, a), (301, 100)),
                ((1, a, 10), (31, 10)),
                ((31, a, 10), (61, 10)),
                ((1, EVERYTHING, 300), (301, 300)),
                ((1, EVERYTHING, None, 100), (11, 10)),
                ((1, a, 5, 1000), (16, 5)),
                ((1, a, 500, 1), (4, 1)),  # one at least
                ((301, a, 10), (301, 0)),
            ):
                self.assertEqual(self.measured(journal, *asked), wanted, asked)
            self.rows(journal, 1, 301)  # and once more when they are columns

    def test_measure_goes_on(self) -> None:
        """With what is new only."""
        journal = self.journal()
        self.fill(journal, 10)
        measure = Measure(journal, 1, Selection(["a"]), 25)
        while measure.step():
            pass
        self.assertEqual((measure.end, measure.messages, measure.full), (11, 10, False))
        self.fill(journal, 5, "b")
        self.fill(journal, 20)
        while measure.step():
            pass
        self.assertEqual((measure.end, measure.messages, measure.full), (31, 25, True))

    def test_news(self) -> None:
        """Told once for each time that someone asked."""
        journal, told = self.journal(), []
        for _ in range(2):
            journal.on_news(lambda: told.append(journal.next))
            self.fill(journal, 3)
        self.assertEqual(told, [2, 5])

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
        for subject, count in steps:
            payloads = [b"%d" % n for n in range(journal.next, journal.next + count)]
            model += [(int(p), subject, p) for p in payloads]
            for payload in payloads:
                journal.append(subject, 1.0, "nats", payload)
            if early:
                self.rows(journal, 1, journal.next)
        rows = self.rows(journal, start, end, Selection([pattern]))
        got = [(row["seq"], row["subject"], row["data"]) for row in rows]
        kept = [m for m in model if m[0] >= journal.first]
        self.assertEqual(got, [m for m in kept if start <= m[0] < end and hears(pattern, m[1])])
        wanted = [m for m in kept if m[0] >= start and hears(pattern, m[1])]
        measured = self.measured(journal, start, Selection([pattern]))
        self.assertEqual(measured[1], len(wanted))

    # Leases

    def test_a_lease_ends_by_itself(self) -> None:
        journal = self.journal()
        journal.lease("q", 1, 10.0)
        self.now += 9
        journal.leases.renew("q")
        self.now += 9
        self.assertEqual([lease.consumer for lease in journal.leases], ["q"])
        self.now += 1
        self.assertEqual(list(journal.leases), [])
        journal.leases.renew("q")
        self.assertEqual(list(journal.leases), [], "what has ended is not renewed")
        journal.lease("q", 1, 10.0)
        self.assertTrue(journal.leases.release("q"))
        self.assertFalse(journal.leases.release("q"))

    def test_each_user_has_leases(self) -> None:
        """Of the same name too: nobody renews or releases another's."""
        journal = self.journal()
        journal.lease("q", 1, 10.0, user="ann")
        journal.lease("q", 5, 20.0, user="bob")
        self.assertEqual(
            [(one.user, one.position) for one in journal.leases], [("ann", 1), ("bob", 5)]
        )
        self.assertFalse(journal.leases.release("q"))
        self.assertFalse(journal.leases.release("q", "eve"))
        journal.leases.renew("q", "bob")
        self.now += 15
        self.assertEqual([lease.user for lease in journal.leases], ["bob"])
        self.assertTrue(journal.leases.release("q", "bob"))

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
        lag = journal.lag(next(iter(journal.leases)))
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
        lag = journal.lag(next(iter(journal.leases)))
        self.assertIsNone(lag.time_left)
        assert lag.catches_up is not None
        self.assertApproximates(lag.catches_up, lag.lag / 150, 2)
