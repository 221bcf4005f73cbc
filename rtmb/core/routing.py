"""Who receives what: subscriptions, the trie of their patterns, queue groups, and routes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from rtmb.core.subjects import OWN, has_wildcard, matches

if TYPE_CHECKING:
    from rtmb.interfaces import ISubscriber

#: How many subjects' routes are kept ready. A route costs a few hundred bytes, so this is some
#: megabytes at most; nats-server keeps 1,024, but a miss costs Python more than it costs Go.
ROUTE_CACHE = 16_384


class Subscription:
    """One subscriber's interest in one pattern."""

    __slots__ = ("delivered", "deny", "key", "maximum", "pattern", "queue", "subscriber")

    def __init__(
        self,
        subscriber: ISubscriber,
        pattern: str,
        queue: str | None = None,
        key: bytes = b"",
        deny: tuple[str, ...] = (),
    ) -> None:
        self.subscriber = subscriber
        self.pattern = pattern
        self.queue = queue
        #: The subscriber's own name for this: the sid of the text door.
        self.key = key
        #: Patterns that `pattern` overlaps and that this subscriber may not see.
        self.deny = deny
        #: Messages delivered. The text door's bulk walk adds to `Route.hits` instead;
        #: `Hub.settle` brings the two together.
        self.delivered = 0
        #: Ends by itself when `delivered` reaches this.
        self.maximum: int | None = None

    def __repr__(self) -> str:
        queue = f" queue {self.queue}" if self.queue else ""
        return f"<Subscription {self.pattern}{queue} of {self.subscriber.name}>"


class QueueGroup:
    """The members of one queue group for one subject, served in turn."""

    __slots__ = ("members", "name", "turn")

    def __init__(self, name: str, members: tuple[Subscription, ...], turn: int = 0) -> None:
        self.name = name
        self.members = members
        self.turn = turn

    def next(self, without: ISubscriber | None = None) -> Subscription | None:
        """Whose turn it is, passing over the stalled, unless all are, and `without`."""
        members = self.members
        n = len(members)
        fallback: Subscription | None = None
        for step in range(n):
            at = (self.turn + step) % n
            member = members[at]
            if member.subscriber is without:
                continue
            if not member.subscriber.stalled:
                self.turn = at + 1
                return member
            fallback = fallback or member
        self.turn += 1
        return fallback


class Share:
    """What one member of a queue group got of a route since `Hub.settle` last looked."""

    __slots__ = ("bytes", "hits", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.hits = self.bytes = 0


class Route:
    """Who receives one subject. Never changed once made, but for its counters: when subscriptions
    change it is dropped whole (`live` becomes False) and another is made."""

    __slots__ = ("bulk", "bytes", "groups", "hits", "live", "plain", "plan", "shares", "subject")

    def __init__(
        self, subject: str, plain: tuple[Subscription, ...], groups: tuple[QueueGroup, ...]
    ) -> None:
        self.subject = subject
        self.plain = plain
        self.groups = groups
        self.live = True
        #: What the text door's bulk walk has prepared for this route; see `rtmb.doors.nats.walk`.
        self.plan: object = None
        #: The subscriptions that the bulk walk serves without counting each message, and the
        #: messages and bytes that each of them got since `Hub.settle` last looked.
        self.bulk: tuple[Subscription, ...] = ()
        self.hits = self.bytes = 0
        #: The same for members of queue groups, who do not all get the same.
        self.shares: tuple[Share, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.plain or self.groups)


class _Node:
    """One token of the trie. The wildcards stand beside the children, not among them."""

    __slots__ = ("children", "entries", "rest", "star")

    def __init__(self) -> None:
        self.children: dict[str, _Node] | None = None
        self.star: _Node | None = None
        self.rest: _Node | None = None
        self.entries: dict[Subscription, None] | None = None

    def child(self, token: str) -> _Node | None:
        if token == "*":
            return self.star
        if token == ">":
            return self.rest
        return self.children.get(token) if self.children else None

    def grow(self, token: str) -> _Node:
        node = _Node()
        if token == "*":
            self.star = node
        elif token == ">":
            self.rest = node
        else:
            if self.children is None:
                self.children = {}
            self.children[token] = node
        return node

    def cut(self, token: str) -> None:
        if token == "*":
            self.star = None
        elif token == ">":
            self.rest = None
        elif self.children is not None:
            del self.children[token]
            if not self.children:
                self.children = None

    @property
    def empty(self) -> bool:
        return not (self.children or self.star or self.rest or self.entries)


class SubjectTrie:
    """All subscriptions, and the routes of the subjects that were asked for lately.

    A change to a literal pattern touches one cached route. A change to a wildcard looks through
    the cached subjects that share its first token, so that clients coming and going with
    ``_INBOX.<id>.*`` leave the routes of everyone else alone.
    """

    def __init__(
        self, dropped: Callable[[Route], None] | None = None, cache: int = ROUTE_CACHE
    ) -> None:
        self._root = _Node()
        self._dropped = dropped
        self._limit = cache
        self._cached: dict[str, dict[str, Route]] = {}
        self._cached_count = 0
        self._count = 0
        #: Other indexes than this trie: each says which of its subscriptions get a subject. When
        #: one changes its mind, it calls `invalidate`.
        self.others: list[Callable[[str], Iterable[Subscription]]] = []
        #: Whose turn is first in a new route's groups. It moves on, so that routes remade often,
        #: or never kept, do not all begin with the same member.
        self._turn = 0

    def __len__(self) -> int:
        """How many subscriptions there are."""
        return self._count

    # Changing

    def add(self, subscription: Subscription) -> None:
        node = self._root
        for token in subscription.pattern.split("."):
            children = node.children
            below = children.get(token) if children is not None else None
            node = below or node.child(token) or node.grow(token)
        if node.entries is None:
            node.entries = {}
        node.entries[subscription] = None
        self._count += 1
        self.invalidate(subscription.pattern)

    def remove(self, subscription: Subscription) -> bool:
        """Take a subscription out; False when it was not there."""
        path: list[tuple[_Node, str]] = []
        node: _Node | None = self._root
        for token in subscription.pattern.split("."):
            assert node is not None
            path.append((node, token))
            node = node.child(token)
            if node is None:
                return False
        assert node is not None
        if not node.entries or subscription not in node.entries:
            return False
        del node.entries[subscription]
        if not node.entries:
            node.entries = None
        for parent, token in reversed(path):
            here = parent.child(token)
            if here is None or not here.empty:
                break
            parent.cut(token)
        self._count -= 1
        self.invalidate(subscription.pattern)
        return True

    # Asking

    def route(self, subject: str) -> Route:
        """Who receives `subject`, from the cache where it can be."""
        route = self.ready(subject)
        if route is not None:
            return route
        route = self.search(subject)
        if self._limit <= 0:
            return route
        if self._cached_count >= self._limit:
            self.invalidate(">")
        self._cached.setdefault(subject.partition(".")[0], {})[subject] = route
        self._cached_count += 1
        return route

    def ready(self, subject: str) -> Route | None:
        """The route of `subject` if it is in the cache."""
        bucket = self._cached.get(subject.partition(".")[0])
        return bucket.get(subject) if bucket is not None else None

    def search(self, subject: str) -> Route:
        """Who receives `subject`, worked out anew and not kept."""
        plain: list[Subscription] = []
        grouped: dict[str, list[Subscription]] = {}
        found = self._found(subject.split("."))
        for entries in itertools.chain(found, (other(subject) for other in self.others)):
            for subscription in entries:
                if subscription.deny and any(matches(d, subject) for d in subscription.deny):
                    continue
                if subscription.queue is None:
                    plain.append(subscription)
                else:
                    grouped.setdefault(subscription.queue, []).append(subscription)
        groups = tuple(
            QueueGroup(name, tuple(members), self._turn) for name, members in grouped.items()
        )
        if groups:
            self._turn += 1
        return Route(subject, tuple(plain), groups)

    def _found(self, tokens: list[str]) -> Iterator[dict[Subscription, None]]:
        # The set of nodes reached level by level: at most 2^depth, and no more than the trie has.
        level = [self._root]
        own = tokens[0][:1] == OWN
        for token in tokens:
            below: list[_Node] = []
            for node in level:
                if not own:
                    if node.rest is not None and node.rest.entries:
                        yield node.rest.entries
                    if node.star is not None:
                        below.append(node.star)
                if node.children is not None:
                    child = node.children.get(token)
                    if child is not None:
                        below.append(child)
            if not below:
                return
            level, own = below, False
        for node in level:
            if node.entries:
                yield node.entries

    def __iter__(self) -> Iterator[Subscription]:
        """Every subscription, in no particular order."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield from node.entries or ()
            stack.extend(n for n in (node.star, node.rest) if n is not None)
            stack.extend((node.children or {}).values())

    # The cache

    def cached(self) -> Iterator[Route]:
        """The routes that are kept ready."""
        for bucket in self._cached.values():
            yield from bucket.values()

    def invalidate(self, pattern: str) -> None:
        """Drop the cached routes of every subject that `pattern` matches."""
        first = pattern.partition(".")[0]
        if not has_wildcard(pattern):
            if pattern in self._cached.get(first, ()):
                self._drop(first, (pattern,))
        elif first in ("*", ">"):
            for key, bucket in list(self._cached.items()):
                self._drop(key, [s for s in bucket if matches(pattern, s)])
        elif first in self._cached:
            # The literal part before the first wildcard sorts most subjects out cheaply.
            literal = re.split(r"(?<=\.)[*>](?=\.|$)", pattern, maxsplit=1)[0]
            bucket = self._cached[first]
            self._drop(first, [s for s in bucket if s.startswith(literal) and matches(pattern, s)])

    def _drop(self, first: str, subjects: Iterable[str]) -> None:
        bucket = self._cached[first]
        for subject in subjects:
            route = bucket.pop(subject)
            route.live = False
            self._cached_count -= 1
            if self._dropped is not None:
                self._dropped(route)
        if not bucket:
            del self._cached[first]
