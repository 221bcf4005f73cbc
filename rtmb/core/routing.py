"""Who receives what: subscriptions, the patterns they are for, queue groups, and routes.

Subscriptions hang at their pattern, an `Interest`; a `Route` of a subject is the interests that
match it. So a subscription that comes to a pattern which is there already, or goes, touches no
route, and a route holds no subscription. Only a new pattern, or a new queue group at one, changes
routes: then a number goes up, the generation of the first token's share of all subjects, and a
route that was made in another generation is made anew when it is next used. No change ever walks
through routes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping

from rtmb.core import raw
from rtmb.core.subjects import OWN, from_raw, to_raw
from rtmb.core.subscriptions import Group, Subscription

#: Subjects fall into so many shares by their first token.
SHARES = 1024
#: A route made in no generation: it is to be made.
STALE = -1

_OWN = ord(OWN)


class Interest:
    """A pattern that someone has subscribed to, or that the journal keeps."""

    __slots__ = ("groups", "journaled", "plain")

    def __init__(self) -> None:
        self.plain: list[Subscription] | None = None
        self.groups: dict[bytes, Group] | None = None
        #: Whether the journal keeps what matches this.
        self.journaled = False

    def empty(self) -> bool:
        return not self.plain and not self.groups and not self.journaled

    def subscriptions(self) -> Iterator[Subscription]:
        yield from self.plain or ()
        for group in (self.groups or {}).values():
            yield from group.members


class Node(Interest):
    """A token in the tree of patterns that have wildcards. The wildcards stand beside the other
    children, not among them."""

    __slots__ = ("children", "rest", "star")

    def __init__(self) -> None:
        super().__init__()
        self.children: dict[bytes, Node] | None = None
        self.star: Node | None = None
        self.rest: Node | None = None

    def child(self, token: bytes) -> Node | None:
        if token == b"*":
            return self.star
        if token == b">":
            return self.rest
        return self.children.get(token) if self.children is not None else None

    def grow(self, token: bytes) -> Node:
        node = Node()
        if token == b"*":
            self.star = node
        elif token == b">":
            self.rest = node
        else:
            if self.children is None:
                self.children = {}
            self.children[token] = node
        return node

    def cut(self, token: bytes) -> None:
        if token == b"*":
            self.star = None
        elif token == b">":
            self.rest = None
        elif self.children is not None:
            del self.children[token]
            if not self.children:
                self.children = None

    def unused(self) -> bool:
        return self.empty() and self.children is None and self.star is None and self.rest is None


class Route:
    """Who receives one subject, as of one generation."""

    __slots__ = ("deals", "interests", "journaled", "made", "others", "share", "subject", "text")

    def __init__(self, subject: bytes, share: int) -> None:
        self.subject = subject
        #: Which share of all subjects this one falls into.
        self.share = share
        #: The generation in which this was made.
        self.made = STALE
        self.interests: tuple[Interest, ...] = ()
        #: The queue groups. Those of one name at several patterns are one: they deal together.
        self.deals: tuple[tuple[Group, ...], ...] | None = None
        #: Subscriptions that other indexes found; see `Routing.others`.
        self.others: tuple[Subscription, ...] | None = None
        #: Whether the journal keeps this subject, and then its text once it was needed.
        self.journaled = False
        self.text: str | None = None

    def subscriptions(self) -> Iterator[Subscription]:
        """Everyone who could receive this subject."""
        for interest in self.interests:
            for subscription in interest.subscriptions():
                if not subscription.hides(self.subject):
                    yield subscription
        yield from self.others or ()


class Routing:
    """All subscriptions by pattern, and how routes are made of them."""

    def __init__(self, routes: Mapping[bytes, Route] | None = None) -> None:
        #: Routes that somebody keeps, by subject: who subscribes to just one subject makes its
        #: route stale.
        self._routes: Mapping[bytes, Route] = {} if routes is None else routes
        self._literals: dict[bytes, Interest] = {}
        self._root = Node()
        self._wild = 0
        self._count = 0
        self._generation = 0
        self._generations = array("q", bytes(8 * SHARES))
        #: Above 0 while someone goes through lists of subscriptions: they are copied then before
        #: they are changed.
        self.passing = 0
        #: Other indexes than this one: each says which of its subscriptions get a subject. When
        #: one changes its mind, it calls `invalidate`.
        self.others: list[Callable[[str], Iterable[Subscription]]] = []

    def __len__(self) -> int:
        """How many subscriptions there are."""
        return self._count

    def __iter__(self) -> Iterator[Subscription]:
        """Every subscription, in no particular order."""
        for interest in list(self._literals.values()):
            yield from interest.subscriptions()
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield from node.subscriptions()
            stack.extend(n for n in (node.star, node.rest) if n is not None)
            stack.extend((node.children or {}).values())

    # Changing

    def add(self, subscription: Subscription, wildcard: bool) -> None:
        """Begin to deliver to a subscription; `wildcard` says what its pattern is."""
        pattern = subscription.raw
        interest = self._interest(pattern, wildcard)
        new = interest.empty()
        queue = subscription.raw_queue
        if queue is None:
            if interest.plain is None:
                interest.plain = [subscription]
                subscription.at = 0
            else:
                if self.passing:
                    interest.plain = interest.plain.copy()
                subscription.at = len(interest.plain)
                interest.plain.append(subscription)
        else:
            if interest.groups is None:
                interest.groups = {}
            group = interest.groups.get(queue)
            if group is None:
                group = interest.groups[queue] = Group(queue)
                new = True
            elif self.passing:
                group.members = group.members.copy()
            subscription.at = len(group.members)
            group.members.append(subscription)
        self._count += 1
        if new:
            self._changed(pattern, wildcard)

    def journal(self, pattern: str) -> None:
        """Let the journal keep what matches a pattern, for good."""
        given = to_raw(pattern)
        wildcard = raw.kind_of(given, 0, len(given)) == raw.WILDCARD
        self._interest(given, wildcard).journaled = True
        self._changed(given, wildcard)

    def _interest(self, pattern: bytes, wildcard: bool) -> Interest:
        """The interest in a pattern, made if there is none."""
        if wildcard:
            node = self._root
            for token in pattern.split(b"."):
                below = node.child(token)
                node = node.grow(token) if below is None else below
            if node.empty():
                self._wild += 1
            return node
        interest = self._literals.get(pattern)
        if interest is None:
            interest = self._literals[pattern] = Interest()
        return interest

    def remove(self, subscription: Subscription) -> bool:
        """Take a subscription out; False when it was not there."""
        if subscription.at < 0:
            return False
        pattern = subscription.raw
        wildcard = raw.kind_of(pattern, 0, len(pattern)) == raw.WILDCARD
        path: list[Node] = []
        interest: Interest
        if wildcard:
            node = self._root
            for token in pattern.split(b"."):
                path.append(node)
                below = node.child(token)
                assert below is not None
                node = below
            interest = node
        else:
            interest = self._literals[pattern]
        queue = subscription.raw_queue
        if queue is None:
            assert interest.plain is not None
            if self.passing:
                interest.plain = interest.plain.copy()
            _take_out(interest.plain, subscription)
        else:
            assert interest.groups is not None
            group = interest.groups[queue]
            if self.passing:
                group.members = group.members.copy()
            _take_out(group.members, subscription)
            if not group.members:
                del interest.groups[queue]
        self._count -= 1
        if interest.empty():
            # Routes may still hold it, and find nobody there.
            interest.plain = None
            interest.groups = None
            if wildcard:
                self._wild -= 1
                self._prune(path, pattern)
            else:
                del self._literals[pattern]
        return True

    def _prune(self, path: list[Node], pattern: bytes) -> None:
        tokens = pattern.split(b".")
        for i in range(len(tokens) - 1, -1, -1):
            below = path[i].child(tokens[i])
            if below is None or not below.unused():
                break
            path[i].cut(tokens[i])

    # Generations

    def _changed(self, pattern: bytes, wildcard: bool) -> None:
        """Other routes than before for what `pattern` matches."""
        if not wildcard:
            route = self._routes.get(pattern)
            if route is not None:
                route.made = STALE
            return
        first = pattern.partition(b".")[0]
        if first == b"*" or first == b">":
            self._generation += 1
        else:
            self._generations[hash(first) & (SHARES - 1)] += 1

    def invalidate(self, pattern: str) -> None:
        """Make the routes anew of what `pattern` matches: another index has changed its mind."""
        given = to_raw(pattern)
        self._changed(given, raw.kind_of(given, 0, len(given)) == raw.WILDCARD)

    def share_of(self, subject: bytes) -> int:
        return hash(subject.partition(b".")[0]) & (SHARES - 1)

    def generation_of(self, share: int) -> int:
        return self._generation + raw.long_at(self._generations, share)

    # Making routes

    def search(self, subject: bytes) -> Route:
        """A route that is not kept."""
        route = Route(subject, 0)
        self.make(route)
        return route

    def make(self, route: Route) -> None:
        """Find who receives a subject now."""
        subject = route.subject
        interests: list[Interest] = []
        literal = self._literals.get(subject)
        if literal is not None:
            interests.append(literal)
        if self._wild:
            self._find(subject, interests)
        route.interests = tuple(interests)
        route.deals = None
        route.journaled = False
        grouped = False
        for interest in interests:
            grouped = grouped or bool(interest.groups)
            route.journaled = route.journaled or interest.journaled
        if grouped:
            route.deals = _deals(interests)
        route.others = self._ask_others(subject) if self.others else None
        route.made = self._generation + raw.long_at(self._generations, route.share)

    def _ask_others(self, subject: bytes) -> tuple[Subscription, ...] | None:
        name = from_raw(subject)
        found: list[Subscription] = []
        for other in self.others:
            found.extend(other(name))
        return tuple(found) if found else None

    def _find(self, subject: bytes, found: list[Interest]) -> None:
        tokens = subject.split(b".")
        if subject[0] != _OWN:
            _descend(self._root, tokens, 0, found)
        elif self._root.children is not None:
            # A wildcard that means all does not mean the broker's own subjects.
            below = self._root.children.get(tokens[0])
            if below is not None:
                _descend(below, tokens, 1, found)


def _descend(node: Node, tokens: list[bytes], at: int, found: list[Interest]) -> None:
    """Find what matches the tokens from `at` on, below a node."""
    if at == len(tokens):
        if not node.empty():
            found.append(node)
        return
    if node.rest is not None:
        found.append(node.rest)
    if node.star is not None:
        _descend(node.star, tokens, at + 1, found)
    if node.children is not None:
        below = node.children.get(tokens[at])
        if below is not None:
            _descend(below, tokens, at + 1, found)


def _take_out(listed: list[Subscription], subscription: Subscription) -> None:
    last = listed.pop()
    if last is not subscription:
        listed[subscription.at] = last
        last.at = subscription.at
    subscription.at = -1


def _deals(interests: list[Interest]) -> tuple[tuple[Group, ...], ...]:
    by_name: dict[bytes, list[Group]] = {}
    for interest in interests:
        if interest.groups is not None:
            for name, group in interest.groups.items():
                by_name.setdefault(name, []).append(group)
    return tuple([tuple(groups) for groups in by_name.values()])
