"""Tests for `rtmb.core.routing`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rtmb.core.counters import Counters
from rtmb.core.routing import Route, Routing
from rtmb.core.subjects import has_wildcard, hears, is_pattern, to_raw
from rtmb.core.subscriptions import Group, Subscription, choose


def subscription(pattern: str, queue: str | None = None, **more: Any) -> Subscription:
    subscriber: Any = SimpleNamespace(name="s", stalled=False, counters=Counters())
    return Subscription(subscriber, pattern, queue, **more)


class RoutingCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.routes: dict[bytes, Route] = {}
        self.routing = Routing(self.routes)

    def add(self, pattern: str, queue: str | None = None, **more: Any) -> Subscription:
        made = subscription(pattern, queue, **more)
        self.routing.add(made, has_wildcard(pattern))
        return made

    def find(self, subject: str) -> Route:
        """The route of a subject, kept and made anew when it is stale, as the hub does it."""
        raw = to_raw(subject)
        route = self.routes.get(raw)
        if route is None:
            route = self.routes[raw] = Route(raw, self.routing.share_of(raw))
        if route.made != self.routing.generation_of(route.share):
            self.routing.make(route)
        return route

    def fresh(self, subject: str) -> bool:
        route = self.routes[to_raw(subject)]
        return route.made == self.routing.generation_of(route.share)


class RoutingTests(RoutingCase):
    def test_finds_all_kinds(self) -> None:
        """Literals, both wildcards and queues are found together."""
        plain = [self.add(p) for p in ("a.b", "a.*", "*.b", "a.>", ">")]
        queued = [self.add("a.b", "q"), self.add("a.*", "q"), self.add("a.b", "r")]
        self.add("a.c")
        self.add("a.b.>")
        route = self.find("a.b")
        self.assertEqual(set(route.subscriptions()), {*plain, *queued})
        assert route.deals is not None
        sizes = {deal[0].name: sum(len(g.members) for g in deal) for deal in route.deals}
        self.assertEqual(sizes, {b"q": 2, b"r": 1})

    def test_removing_leaves_nothing(self) -> None:
        """Emptied of subscriptions it is empty, and has no tokens left."""
        every = [self.add(p) for p in ("a.b.c", "a.*", "a.>", ">", "*", "a.b.c", "a.*.c")]
        for s in every:
            self.assertTrue(self.routing.remove(s))
            self.assertFalse(self.routing.remove(s))
        self.assertEqual((len(self.routing), list(self.routing)), (0, []))

    def test_a_new_pattern_concerns_just_its_routes(self) -> None:
        """Inboxes coming and going leave everyone else's routes alone."""
        for subject in ("orders.new", "stock.x"):
            self.find(subject)
        self.add("_INBOX.abc.*")
        self.add("orders.old")
        self.assertTrue(self.fresh("orders.new") and self.fresh("stock.x"))
        self.add("stock.>")
        self.assertEqual((self.fresh("orders.new"), self.fresh("stock.x")), (True, False))
        self.add("orders.new")
        self.assertFalse(self.fresh("orders.new"))
        self.find("orders.new")
        self.add("*.new")
        self.assertFalse(self.fresh("orders.new"))

    def test_a_known_pattern_concerns_no_route(self) -> None:
        """Who comes to a pattern that is there, or leaves one, is found without a new route."""
        first = self.add("a.*")
        route = self.find("a.b")
        second = self.add("a.*")
        self.assertTrue(self.fresh("a.b"))
        self.assertEqual(list(route.subscriptions()), [first, second])
        self.routing.remove(first)
        self.assertTrue(self.fresh("a.b"))
        self.assertEqual(list(route.subscriptions()), [second])

    def test_a_pattern_that_comes_back(self) -> None:
        """A route does not keep looking at where a pattern was before."""
        for pattern in ("a.b", "a.*"):
            first = self.add(pattern)
            self.find("a.b")
            self.routing.remove(first)
            self.assertEqual(list(self.find("a.b").subscriptions()), [])
            second = self.add(pattern)
            self.assertEqual(list(self.find("a.b").subscriptions()), [second])
            self.routing.remove(second)

    def test_hidden_subjects_are_left_out(self) -> None:
        """A subscription wider than it may see gets the rest."""
        self.add("a.>", deny=("a.secret",))
        self.assertTrue(list(self.find("a.open").subscriptions()))
        self.assertFalse(list(self.find("a.secret").subscriptions()))

    def test_lists_are_copied_while_someone_goes_through_them(self) -> None:
        """Who comes or goes in the middle of a delivery does not disturb it."""
        first, second = self.add("a"), self.add("a")
        (interest,) = self.find("a").interests
        seen = interest.plain
        self.routing.passing += 1
        self.routing.remove(first)
        self.add("a")
        self.routing.passing -= 1
        self.assertEqual(seen, [first, second])
        self.assertEqual(len(interest.plain or ()), 2)

    def test_the_journal_is_interested(self) -> None:
        self.routing.journal("a.*")
        self.routing.journal("b")
        self.assertEqual([self.find(s).journaled for s in ("a.x", "b", "c")], [True, True, False])
        wanted = self.add("a.*")
        self.routing.remove(wanted)
        self.assertTrue(self.find("a.x").journaled)

    def test_other_indexes_are_asked(self) -> None:
        extra = subscription(">")
        self.routing.others.append(lambda subject: [extra] if subject == "a" else [])
        self.assertEqual(list(self.find("a").subscriptions()), [extra])
        self.assertEqual(list(self.find("b").subscriptions()), [])
        self.routing.others.clear()
        self.assertTrue(self.fresh("a"))
        self.routing.invalidate(">")
        self.assertEqual(list(self.find("a").subscriptions()), [])


class QueueGroupTests(RoutingCase):
    def next(self, subject: str = "x", mute: Any = None) -> Subscription | None:
        deals = self.find(subject).deals
        assert deals is not None
        return choose(deals[0], mute, to_raw(subject))

    def test_in_turn(self) -> None:
        """Members are served in turn; stalled ones are passed over, unless all are."""
        a, b, c = (self.add("x", "q") for _ in range(3))
        self.assertEqual([self.next() for _ in range(4)], [a, b, c, a])
        c.subscriber.stalled = b.subscriber.stalled = True
        self.assertEqual([self.next() for _ in range(3)], [a, a, a])
        a.subscriber.stalled = True
        self.assertIsNotNone(self.next())

    def test_muted(self) -> None:
        only = self.add("x", "q")
        self.assertIsNone(self.next(mute=only.subscriber))

    def test_one_name_at_two_patterns_is_one_group(self) -> None:
        """A message goes to one member, whichever pattern that came by, and all get their turn."""
        members = [self.add("x.a", "q"), self.add("x.*", "q"), self.add("x.>", "q")]
        deals = self.find("x.a").deals
        assert deals is not None
        self.assertEqual(len(deals), 1)
        self.assertEqual({self.next("x.a") for _ in range(3)}, set(members))

    def test_the_turn_is_kept_over_subjects(self) -> None:
        """Subjects of one pattern that follow each other do not all begin with one member."""
        members = [self.add("x.*", "q") for _ in range(4)]
        self.assertEqual([self.next(f"x.{i}") for i in range(4)], members)

    def test_who_may_not_see_it_is_passed_over(self) -> None:
        blind = self.add("x.*", "q", deny=("x.secret",))
        seeing = self.add("x.*", "q")
        self.assertEqual([self.next("x.secret") for _ in range(3)], [seeing] * 3)
        self.assertIn(blind, [self.next("x.open") for _ in range(2)])

    def test_an_empty_group_has_nobody(self) -> None:
        self.assertIsNone(choose((Group(b"q"),), None, b"x"))


tokens = st.sampled_from(["a", "b", "c", "*", ">", "a*", "!x"])
patterns = st.lists(tokens, min_size=1, max_size=4).map(".".join).filter(is_pattern)
words = st.sampled_from(["a", "b", "c", "a*", "!x"])
subjects = st.lists(words, min_size=1, max_size=4).map(".".join)
steps = st.one_of(
    st.tuples(st.just("add"), st.tuples(patterns, st.sampled_from([None, None, "q", "r"]))),
    st.tuples(st.just("remove"), st.integers(0, 20)),
    st.tuples(st.just("ask"), subjects),
)


class PropertyTests(RoutingCase):
    @settings(max_examples=300, deadline=None)
    @given(st.lists(steps, max_size=40))
    def test_routes_agree_with_the_plain_rule(self, steps: list[tuple[str, Any]]) -> None:
        """In any order of additions, removals and questions, with routes kept and without."""
        self.setUp()
        held: list[Subscription] = []
        for step, what in steps:
            if step == "add":
                held.append(self.add(*what))
            elif step == "remove" and held:
                self.routing.remove(held.pop(what % len(held)))
            elif step == "ask":
                wanted = {s for s in held if hears(s.pattern, what)}
                for route in (self.find(what), self.routing.search(to_raw(what))):
                    found = list(route.subscriptions())
                    self.assertEqual(set(found), wanted)
                    self.assertEqual(len(found), len(wanted))
                    groups = {s.queue for s in wanted if s.queue is not None}
                    self.assertEqual(self.groups(route), groups)

    @staticmethod
    def groups(route: Route) -> set[str]:
        deals = [deal for deal in route.deals or () if any(group.members for group in deal)]
        return {deal[0].name.decode() for deal in deals}
