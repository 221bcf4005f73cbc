"""Tests for `rtmb.core.dedup`: ids that were seen."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rtmb.core.dedup import Dedup


class DedupTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.now = 0.0

    def dedup(self, most: int = 1000) -> Dedup:
        return Dedup(10.0, lambda: self.now, most)

    def test_rows(self) -> None:
        dedup = self.dedup()
        ids = dedup.of("", 5)
        self.assertEqual([ids.fresh(b"q", i) for i in (0, 1, 2)], [True] * 3)
        self.assertEqual([ids.fresh(b"q", i) for i in (0, 2, 3)], [False, False, True])
        self.assertTrue(ids.fresh(b"other", 0))
        self.assertEqual(len(dedup), 2, "a row is one entry")

    def test_users(self) -> None:
        """Another's ids make nothing of yours a duplicate."""
        dedup = self.dedup()
        self.assertTrue(dedup.of("ann", 1).fresh(b"id"))
        self.assertTrue(dedup.of("bob", 1).fresh(b"id"))
        self.assertFalse(dedup.of("ann", 1).fresh(b"id"))

    def test_window(self) -> None:
        """Known for the window at least, for twice as long at most."""
        dedup = self.dedup()
        self.now = 9.0
        self.assertTrue(dedup.of("", 1).fresh(b"id"))
        for self.now in (10.0, 15.0, 18.0):
            self.assertFalse(dedup.of("", 1).fresh(b"id"), str(self.now))
        self.now = 39.0
        self.assertTrue(dedup.of("", 1).fresh(b"id"))
        self.now = 100.0
        dedup.of("other", 1)
        self.assertEqual(len(dedup), 0, "after a long silence nothing is left")

    def test_bounded(self) -> None:
        """Whoever has most forgets first."""
        dedup = self.dedup(most=100)
        self.assertTrue(dedup.of("modest", 1).fresh(b"mine"))
        for i in range(1000):
            self.assertTrue(dedup.of("greedy", 1).fresh(b"%d" % i))
            self.assertLessEqual(len(dedup), 100)
        self.assertFalse(dedup.of("greedy", 1).fresh(b"999"))
        self.assertFalse(dedup.of("modest", 1).fresh(b"mine"))
        self.assertGreater(dedup.forgotten, 0)
