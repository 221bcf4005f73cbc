"""The glob tree, beside a matcher that is too plain to be wrong."""

from __future__ import annotations

import doctest
from collections import Counter
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from twisted.trial.unittest import SynchronousTestCase

from rtmb.codecs.msgpack import MOST_WILDCARDS
from rtmb.doors.msgpack import globs
from rtmb.doors.msgpack.globs import GlobTree, compile_glob, has_glob


@cache
def plain(pattern: str, text: str) -> bool:
    """What a pattern means."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(plain(pattern[1:], text[i:]) for i in range(len(text) + 1))
    return bool(text) and pattern[0] in ("?", text[0]) and plain(pattern[1:], text[1:])


def tree_of(*patterns: str) -> GlobTree[str]:
    tree: GlobTree[str] = GlobTree()
    for pattern in patterns:
        tree.add(pattern, pattern)
    return tree


# Few characters, so that patterns share beginnings and match; one of them takes two UTF-16 units.
patterns = st.text("ab/é😀*?", max_size=6)
texts = st.text("ab/é😀", max_size=8)


class AnyOrder(RuleBasedStateMachine):
    """Adding, removing and matching in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: GlobTree[int] = GlobTree()
        # A run of stars is one star, as the tree has it.
        self.model: Counter[tuple[str, int]] = Counter()

    @staticmethod
    def key(pattern: str, value: int) -> tuple[str, int]:
        while "**" in pattern:
            pattern = pattern.replace("**", "*")
        return pattern, value

    @rule(pattern=patterns, value=st.integers(0, 2))
    def add(self, pattern: str, value: int) -> None:
        key = self.key(pattern, value)
        assert self.tree.add(pattern, value) == (not self.model[key])
        self.model[key] += 1

    @rule(pattern=patterns, value=st.integers(0, 2))
    def remove_anything(self, pattern: str, value: int) -> None:
        key = self.key(pattern, value)
        assert self.tree.remove(pattern, value) == (self.model[key] == 1)
        self.model[key] = max(0, self.model[key] - 1)

    @rule(data=st.data())
    def remove_something(self, data: st.DataObject) -> None:
        there = sorted(+self.model)
        if there:
            self.remove_anything(*data.draw(st.sampled_from(there)))

    @rule(text=texts)
    def match(self, text: str) -> None:
        expected = {value for pattern, value in +self.model if plain(pattern, text)}
        assert self.tree.match(text) == expected

    @invariant()
    def counts(self) -> None:
        assert len(self.tree) == len(+self.model)
        if not +self.model:
            assert self.tree._root.empty  # nothing is left over


class GlobTreeTests(SynchronousTestCase):
    def test_any_order(self) -> None:
        """Whatever is added and removed, the tree agrees with the plain matcher."""
        run_state_machine_as_test(AnyOrder, settings=settings(max_examples=150, deadline=None))

    def test_wildcards(self) -> None:
        """`*` is any run of characters, none and separators included; `?` is exactly one."""
        cases = {
            ("*", ""): True,
            ("*", "a/b.c"): True,
            ("a*", "a"): True,
            ("a*c", "a/b.c"): True,
            ("a*c", "a/b.d"): False,
            ("?", ""): False,
            ("?", "ab"): False,
            ("?", "😀"): True,
            ("é?", "éa"): True,
            ("a?c", "a/c"): True,
            ("", ""): True,
            ("", "a"): False,
            ("[a]", "a"): False,
            ("[a]", "[a]"): True,
            ("*ab", "aab"): True,
            ("*a?*b", "xaayab"): True,
            ("a\n*", "a\n\n"): True,
        }
        for (pattern, text), expected in cases.items():
            self.assertEqual(bool(tree_of(pattern).match(text)), expected, (pattern, text))
            found = compile_glob(pattern).fullmatch(text)
            self.assertEqual(bool(found), expected, (pattern, text))

    def test_a_pattern_that_begins_two_others(self) -> None:
        """Each of three patterns with the same beginning is found, and gone once removed."""
        tree = tree_of("ab", "abc", "abd")
        self.assertEqual([tree.match(t) for t in ("ab", "abc", "abd")], [{"ab"}, {"abc"}, {"abd"}])
        tree.remove("ab", "ab")
        self.assertEqual([tree.match(t) for t in ("ab", "abc", "abd")], [set(), {"abc"}, {"abd"}])
        self.assertNotIn("ab", tree)
        self.assertIn("abc", tree)

    def test_counted(self) -> None:
        """What was added twice is there until it is removed twice."""
        tree = tree_of("a*", "a*")
        self.assertFalse(tree.remove("a*", "a*"))
        self.assertEqual(tree.match("ab"), {"a*"})
        self.assertTrue(tree.remove("a*", "a*"))
        self.assertEqual((tree.match("ab"), len(tree)), (set(), 0))
        self.assertFalse(tree.remove("a*", "a*"))

    def test_steps_stay_within_nodes_times_characters(self) -> None:
        """A pattern that makes backtracking matchers explode takes ten times as many steps on a
        text ten times as long, not millions of times as many."""
        bad = "*a*a*a*a*b"
        tree = tree_of(bad, "*a?*a?*a?*b", "**a**a**")
        for length in (100, 1000):
            self.assertEqual(tree.match("a" * length), {"**a**a**"})
            self.assertLess(tree.steps, 2 * 30 * (length + 1))
        self.assertIn(bad, tree.match("a" * 1000 + "b"))

    def test_steps_of_the_worst_pattern_that_the_door_takes(self) -> None:
        """Each wildcard costs a match no more than three steps for each character."""
        text = "a" * 4096
        for piece in ("*a", "a*", "*?", "*a?", "a?"):
            pattern = (piece * MOST_WILDCARDS)[: MOST_WILDCARDS * len(piece)]
            while pattern.count("*") + pattern.count("?") > MOST_WILDCARDS:
                pattern = pattern[1:]
            for end in ("", "b"):
                tree = tree_of(pattern + end)
                tree.match(text)
                self.assertLess(tree.steps, 3 * (MOST_WILDCARDS + 1) * len(text), pattern)

    def test_steps_with_many_ordinary_patterns(self) -> None:
        """Ten thousand patterns, with and without wildcards, cost a match hardly more steps than
        its text has characters."""
        tree = tree_of(*(f"sensors/{i}/*" for i in range(5000)), *(f"s/{i}" for i in range(5000)))
        text = "sensors/4321/temperature"
        self.assertEqual(tree.match(text), {"sensors/4321/*"})
        self.assertLess(tree.steps, 2 * len(text))

    @given(pattern=patterns, text=texts)
    def test_one_pattern_as_a_regular_expression(self, pattern: str, text: str) -> None:
        self.assertEqual(bool(compile_glob(pattern).fullmatch(text)), plain(pattern, text))

    def test_has_glob(self) -> None:
        self.assertEqual([has_glob(p) for p in ("a", "a*", "?", "")], [False, True, True, False])

    def test_examples(self) -> None:
        """The examples in the documentation are true."""
        self.assertEqual(doctest.testmod(globs).failed, 0)
