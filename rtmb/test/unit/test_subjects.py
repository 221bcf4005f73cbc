"""Tests for `rtmb.core.subjects`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rtmb.core.routing import QueueGroup, Route, SubjectTrie, Subscription
from rtmb.core.subjects import has_wildcard, is_pattern, is_subject, matches, overlap


def subscriber(name: str = "s") -> Any:
    return SimpleNamespace(name=name, stalled=False)


def subscription(pattern: str, queue: str | None = None, **more: Any) -> Subscription:
    return Subscription(subscriber(), pattern, queue, **more)


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


class TrieTests(SynchronousTestCase):
    cache = 100

    def setUp(self) -> None:
        self.dropped: list[Route] = []
        self.trie = SubjectTrie(self.dropped.append, self.cache)

    def test_finds_all_kinds(self) -> None:
        """Literals, both wildcards and queues are found together."""
        plain = [subscription(p) for p in ("a.b", "a.*", "*.b", "a.>", ">")]
        queued = [subscription("a.b", "q"), subscription("a.*", "q"), subscription("a.b", "r")]
        for s in (*plain, *queued, subscription("a.c"), subscription("a.b.>")):
            self.trie.add(s)
        route = self.trie.route("a.b")
        self.assertEqual(set(route.plain), set(plain))
        self.assertEqual({g.name: len(g.members) for g in route.groups}, {"q": 2, "r": 1})

    def test_remove_leaves_nothing(self) -> None:
        """A trie emptied of subscriptions is an empty trie."""
        all_ = [subscription(p) for p in ("a.b.c", "a.*", "a.>", ">", "*", "a.b.c")]
        for s in all_:
            self.trie.add(s)
        for s in all_:
            self.assertTrue(self.trie.remove(s))
            self.assertFalse(self.trie.remove(s))
        self.assertEqual(len(self.trie), 0)
        self.assertTrue(self.trie._root.empty)

    def test_a_change_drops_just_the_routes_it_concerns(self) -> None:
        """Inboxes coming and going leave everyone else's routes alone."""
        kept, concerned = self.trie.route("orders.new"), self.trie.route("stock.x")
        self.trie.add(subscription("_INBOX.abc.*"))
        self.trie.add(subscription("orders.old"))
        self.assertTrue(kept.live and concerned.live)
        self.trie.add(subscription("stock.>"))
        self.assertTrue(kept.live)
        self.assertFalse(concerned.live)
        self.trie.add(subscription("*.new"))
        self.assertFalse(kept.live)
        self.assertEqual(self.dropped, [concerned, kept])

    def test_cache_is_bounded(self) -> None:
        for i in range(1000):
            self.trie.route(f"s.{i}")
        self.assertLessEqual(sum(1 for _ in self.trie.cached()), self.cache)

    def test_deny_is_left_out(self) -> None:
        """A subscription wider than it may see gets the rest."""
        self.trie.add(subscription("a.>", deny=("a.secret",)))
        self.assertTrue(self.trie.route("a.open"))
        self.assertFalse(self.trie.route("a.secret"))

    def test_iterates_over_all(self) -> None:
        all_ = [subscription(p) for p in ("a", "a.b", "*", ">")]
        for s in all_:
            self.trie.add(s)
        self.assertEqual(set(self.trie), set(all_))


class TrieWithoutCacheTests(TrieTests):
    """The same with no cache: a cache must change nothing but the speed."""

    cache = 0

    def test_a_change_drops_just_the_routes_it_concerns(self) -> None:
        """Nothing is kept, so nothing is dropped."""
        self.trie.route("a")
        self.trie.add(subscription("a"))
        self.assertEqual(self.dropped, [])


class QueueGroupTests(SynchronousTestCase):
    def test_in_turn(self) -> None:
        """Members are served in turn; stalled ones are passed over, unless all are."""
        a, b, c = (subscription("x", "q") for _ in range(3))
        group = QueueGroup("q", (a, b, c))
        self.assertEqual([group.next() for _ in range(4)], [a, b, c, a])
        c.subscriber.stalled = b.subscriber.stalled = True
        self.assertEqual([group.next() for _ in range(3)], [a, a, a])
        a.subscriber.stalled = True
        self.assertIsNotNone(group.next())
        self.assertIsNone(QueueGroup("q", (a,)).next(without=a.subscriber))


tokens = st.sampled_from(["a", "b", "c", "*", ">", "a*"])
patterns = st.lists(tokens, min_size=1, max_size=4).map(".".join).filter(is_pattern)
subjects = st.lists(st.sampled_from(["a", "b", "c", "a*"]), min_size=1, max_size=4).map(".".join)


class PropertyTests(SynchronousTestCase):
    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(
            st.one_of(
                st.tuples(st.just("add"), patterns),
                st.tuples(st.just("remove"), st.integers(0, 20)),
                st.tuples(st.just("ask"), subjects),
            ),
            max_size=40,
        )
    )
    def test_trie_agrees_with_the_plain_rule(self, steps: list[tuple[str, Any]]) -> None:
        """In any order of additions, removals and questions, cached or not."""
        for cache in (0, 3, 1000):
            trie, held = SubjectTrie(cache=cache), []
            for step, what in steps:
                if step == "add":
                    held.append(subscription(what))
                    trie.add(held[-1])
                elif step == "remove" and held:
                    trie.remove(held.pop(what % len(held)))
                elif step == "ask":
                    found = trie.route(what).plain
                    self.assertEqual(set(found), {s for s in held if matches(s.pattern, what)})
                    self.assertEqual(len(found), len(set(found)))
