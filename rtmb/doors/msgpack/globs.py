"""Globs: a tree of patterns that finds all that match a text at once.

In a pattern ``*`` stands for any run of characters, none included, and ``?`` for exactly one;
characters are code points, and nothing else is special. Knows nothing of the rest of rtmb: take the
file along if it is of use elsewhere.

>>> tree: GlobTree[str] = GlobTree()
>>> tree.add("weather/*", "ann")
True
>>> tree.add("*/oslo", "bob")
True
>>> sorted(tree.match("weather/oslo"))
['ann', 'bob']
>>> tree.match("weather")
set()

Each pattern is kept with the values that were added under it, and counted: what was added twice and
removed once is still there.

>>> tree.add("weather/*", "ann"), tree.remove("weather/*", "ann")
(False, False)
>>> tree.match("weather/bergen")
{'ann'}
>>> tree.remove("weather/*", "ann"), tree.match("weather/bergen")
(True, set())

How it works. Patterns with the same beginning share it: the tree's edges are pieces of literal
text, ``?`` and ``*``. A match walks from the root with a position in the text. A literal edge leads
on if the text goes on like that, ``?`` if there is a character left. A ``*`` leads on from every
position from here to the end; so once a ``*`` was reached at some position, reaching it again
further on adds nothing, and reaching it earlier adds only the positions between. That is all it
takes for each node to be seen at most once at each position: a match takes at most (nodes x
characters) steps whatever the patterns, and for ordinary sets, where few patterns begin like the
text and few hold a ``*`` early on, about as many steps as the text has characters.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V", bound=Hashable)

#: A piece of a pattern: a wildcard, or literal text up to the next one.
_PIECE = re.compile(r"\*+|\?|[^*?]+")


def has_glob(pattern: str) -> bool:
    """Whether `pattern` matches anything besides itself.

    >>> has_glob("a/b"), has_glob("a/?")
    (False, True)
    """
    return "*" in pattern or "?" in pattern


def compile_glob(pattern: str) -> re.Pattern[str]:
    """One pattern as a regular expression, for `fullmatch`: to look through many texts.

    Where it has looked for the text after a ``*`` it does not look again, so no pattern makes it
    slow.

    >>> bool(compile_glob("a*b?").fullmatch("axxbxbc")), bool(compile_glob("a*b").fullmatch("a"))
    (True, False)
    """
    first, *others = re.split(r"\*+", pattern)
    if not others:
        return re.compile(_without_stars(pattern), re.DOTALL)
    *middle, last = map(_without_stars, others)
    # The first place where each piece fits will do; only the last must stand at the very end.
    found = "".join(f"(?>.*?{piece})" for piece in middle if piece)
    return re.compile(f"{_without_stars(first)}{found}.*{last}", re.DOTALL)


def _without_stars(pattern: str) -> str:
    return ".".join(map(re.escape, pattern.split("?")))


class _Node(Generic[V]):
    """The end of an edge: of literal text, of a ``?`` or of a ``*``."""

    __slots__ = ("any", "label", "one", "texts", "values")

    def __init__(self, label: str) -> None:
        #: What the edge to this node holds.
        self.label = label
        #: Literal edges from here, by their first character.
        self.texts: dict[str, _Node[V]] = {}
        self.one: _Node[V] | None = None
        self.any: _Node[V] | None = None
        #: The values of the pattern that ends here, each with how often it was added.
        self.values: dict[V, int] = {}

    @property
    def empty(self) -> bool:
        return not (self.values or self.texts or self.one or self.any)


class GlobTree(Generic[V]):
    """Patterns, each with one or more values. ``**`` is the same as ``*``."""

    def __init__(self) -> None:
        self._root: _Node[V] = _Node("")
        self._count = 0
        #: How many steps the last `match` took: what its bounds are tested by.
        self.steps = 0

    def __len__(self) -> int:
        """How many different pairs of pattern and value there are."""
        return self._count

    def __contains__(self, pattern: str) -> bool:
        """Whether this pattern is there, with any value."""
        path = self._path(pattern)
        return bool(path and path[-1].values)

    def add(self, pattern: str, value: V) -> bool:
        """Add a pattern with a value; True when that pair was not there before."""
        node = self._root
        for piece in _PIECE.findall(pattern):
            node = self._grow(node, piece)
        count = node.values.get(value, 0)
        node.values[value] = count + 1
        self._count += not count
        return not count

    def remove(self, pattern: str, value: V) -> bool:
        """Take back one `add`; True when that was the last of this pair.

        A pair that is not there is no error."""
        path = self._path(pattern)
        values = path[-1].values if path else {}
        if value not in values:
            return False
        values[value] -= 1
        if values[value]:
            return False
        del values[value]
        self._count -= 1
        self._prune(path)
        return True

    def match(self, text: str) -> set[V]:
        """The values of every pattern that matches `text`."""
        found: set[V] = set()
        end = len(text)
        stack: list[tuple[_Node[V], int]] = [(self._root, 0)]
        #: For each `*` node, the first position it was reached at: it was looked at from there on.
        reached: dict[_Node[V], int] = {}
        steps = 0
        while stack:
            node, at = stack.pop()
            steps += 1
            last = at
            if node.label == "*":
                if node.values:
                    found.update(node.values)
                last = reached.get(node, end + 1) - 1
                if at > last:
                    continue
                reached[node] = at
            elif at == end and node.values:
                found.update(node.values)
            if node.any is not None:
                stack.append((node.any, at))
            texts, one = node.texts, node.one
            if not texts and one is None:
                continue
            for here in range(at, min(last + 1, end)):
                steps += 1
                child = texts.get(text[here])
                if child is not None and text.startswith(child.label, here):
                    stack.append((child, here + len(child.label)))
                if one is not None:
                    stack.append((one, here + 1))
        self.steps = steps
        return found

    # The tree

    def _grow(self, node: _Node[V], piece: str) -> _Node[V]:
        """The node that `piece` leads to from `node`, made where there is none."""
        if piece[0] == "*":
            node.any = node.any or _Node("*")
            return node.any
        if piece == "?":
            node.one = node.one or _Node("?")
            return node.one
        while piece:
            child = node.texts.get(piece[0])
            if child is None:
                child = node.texts[piece[0]] = _Node(piece)
            same = _common(child.label, piece)
            if same < len(child.label):
                child = self._split(node, child, same)
            node, piece = child, piece[same:]
        return node

    def _split(self, parent: _Node[V], child: _Node[V], at: int) -> _Node[V]:
        """Put a node into the middle of a literal edge."""
        upper: _Node[V] = _Node(child.label[:at])
        child.label = child.label[at:]
        upper.texts[child.label[0]] = child
        parent.texts[upper.label[0]] = upper
        return upper

    def _path(self, pattern: str) -> list[_Node[V]]:
        """The nodes from the root to the end of `pattern`; none when it is not there."""
        path = [self._root]
        for piece in _PIECE.findall(pattern):
            while piece:
                node = path[-1]
                if piece[0] == "*":
                    child, rest = node.any, ""
                elif piece == "?":
                    child, rest = node.one, ""
                else:
                    child = node.texts.get(piece[0])
                    if child is None or not piece.startswith(child.label):
                        return []
                    rest = piece[len(child.label) :]
                if child is None:
                    return []
                path.append(child)
                piece = rest
        return path

    def _prune(self, path: list[_Node[V]]) -> None:
        """Cut off what no pattern needs any more, and join the literal edges that meet there."""
        while len(path) > 1 and path[-1].empty:
            node, parent = path.pop(), path[-1]
            if node is parent.any:
                parent.any = None
            elif node is parent.one:
                parent.one = None
            else:
                del parent.texts[node.label[0]]
        node = path[-1]
        if len(path) > 1 and node is path[-2].texts.get(node.label[0]) and _is_joint(node):
            (below,) = node.texts.values()
            below.label = node.label + below.label
            path[-2].texts[below.label[0]] = below


def _is_joint(node: _Node[V]) -> bool:
    """Whether a literal node only stands between two literal edges."""
    return len(node.texts) == 1 and not (node.values or node.one or node.any)


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(i for i in range(shorter) if one[i] != other[i])
