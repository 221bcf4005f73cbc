"""Tests for `rtmb.core.subjects`."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rtmb.core.subjects import has_wildcard, is_pattern, is_subject, matches, overlap


class GrammarTests(SynchronousTestCase):
    def test_patterns(self) -> None:
        """What may be subscribed to."""
        good = [
            "a",
            "a.b",
            "*",
            ">",
            "a.*",
            "*.b",
            "a.>",
            "a*",
            "a.b>c",
            "é.日本",
            "!system/x",
            "$X",
        ]
        bad = ["", ".", "a.", ".a", "a..b", ">.a", "a.>.b", "a b", "a\tb", "a\r", "a\n"]
        self.assertEqual([p for p in good if not is_pattern(p)], [])
        self.assertEqual([p for p in bad if is_pattern(p)], [])

    def test_subjects(self) -> None:
        """What may be published to holds no wildcard token."""
        self.assertTrue(is_subject("a.b*.c>d"))
        self.assertEqual([s for s in ("*", ">", "a.*", "a.>", "a.*.b", "") if is_subject(s)], [])

    def test_wildcards_are_whole_tokens(self) -> None:
        self.assertTrue(has_wildcard("a.*") and has_wildcard(">"))
        self.assertFalse(has_wildcard("a*.b") or has_wildcard("a.b>"))

    def test_matches(self) -> None:
        """The seeds' own examples of what matches what."""
        yes = [
            ("foo.*.baz", "foo.bar.baz"),
            ("foo.>", "foo.bar.baz.qux"),
            ("foo.>", "foo.bar"),
            ("top.*.blog", "top.steven.blog"),
            (">", "a"),
            ("*.*", "a.b"),
        ]
        no = [
            ("foo.*", "foo.bar.test"),
            ("foo.>", "foo"),
            ("foo", "FOO"),
            ("a.b", "a"),
            ("a", "a.b"),
            ("*", "a.b"),
        ]
        self.assertEqual([p for p in yes if not matches(*p)], [])
        self.assertEqual([p for p in no if matches(*p)], [])

    def test_covering(self) -> None:
        """A pattern covers another when it matches all that the other does."""
        self.assertTrue(matches("a.>", "a.*") and matches("a.*", "a.*") and matches(">", "a.>"))
        self.assertFalse(matches("a.*", "a.>") or matches("a.b", "a.*"))

    def test_overlap(self) -> None:
        self.assertTrue(overlap("a.*", "*.b") and overlap(">", "a") and overlap("a.>", "a.b.c"))
        self.assertFalse(overlap("a.*", "b.*") or overlap("a", "a.b") or overlap("a.*", "a.b.c"))
