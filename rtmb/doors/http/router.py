"""Which endpoint stands at which path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from urllib.parse import unquote_to_bytes

from twisted.web.server import Request

from rtmb.doors.http.kit import Endpoint, nothing_here, refuse

_NAME = re.compile(r"\{(\w+)\}")


class NotFound(Endpoint):
    """Stands wherever nothing else does."""

    @cached_property
    def methods(self) -> list[str]:
        return []

    def render(self, request: Request) -> bytes:
        return refuse(request, nothing_here())


class Router:
    """The table of all paths. A path is text with names in braces, such as
    ``/topics/{name}/messages``; a name may stand for several parts, slashes included. The first
    that fits is taken."""

    def __init__(self, table: Mapping[str, Endpoint], not_found: Endpoint) -> None:
        self.table = table
        self._not_found = not_found
        self._patterns: dict[str, list[tuple[re.Pattern[str], Endpoint]]] = {}
        for path, endpoint in table.items():
            entry = re.compile(_expression(path), re.DOTALL), endpoint
            self._patterns.setdefault(_first_part(path), []).append(entry)

    def find(self, path: bytes) -> tuple[Endpoint, dict[str, str]]:
        """What stands at a path of a request, and what its names stand for."""
        text = unquote_to_bytes(path).decode("utf-8", "surrogateescape")
        for pattern, endpoint in self._patterns.get(_first_part(text), ()):
            found = pattern.fullmatch(text)
            if found is not None:
                return endpoint, {name: value or "" for name, value in found.groupdict().items()}
        return self._not_found, {}


def _first_part(path: str) -> str:
    return path[1:].partition("/")[0]


def _expression(path: str) -> str:
    """The regular expression of a path. What is left out at its end is an empty name, which the
    endpoint refuses better than with "there is nothing here"."""
    parts = [rf"(?P<{part}>.*)" if i % 2 else re.escape(part)
             for i, part in enumerate(_NAME.split(path))]  # fmt: skip
    expression = "".join(parts)
    return re.sub(r"/(\(\?P<\w+>\.\*\))$", r"(?:/\1)?", expression) + (
        "/?" * (path[-1] not in "/}")
    )
