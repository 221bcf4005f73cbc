"""What can be asked at each path, said once: the parameters of requests, each read and described by
one object, and `operation`, which says of a method of an `Endpoint` what it does.

`rtmb.doors.http.openapi` makes the description of the API of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from twisted.web.server import Request

from rtmb.doors.http.kit import Code, argument, bad, is_true, number_of_seconds, whole_number

#: A body that may be anything.
BYTES = "application/octet-stream"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


# Parameters of the query


@dataclass(frozen=True)
class Parameter(Generic[T]):
    """One parameter of the query."""

    name: str
    #: What it is for, in a few words.
    about: str
    default: T

    def of(self, request: Request) -> T:
        """What a request says."""
        raise NotImplementedError

    @property
    def schema(self) -> dict[str, Any]:
        """What it may be, as JSON Schema."""
        raise NotImplementedError


class Text(Parameter[str]):
    """Any text."""

    def of(self, request: Request) -> str:
        return argument(request, self.name) or self.default

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string"}


class Switch(Parameter[bool]):
    """On or off."""

    def of(self, request: Request) -> bool:
        return is_true(argument(request, self.name))

    @property
    def schema(self) -> dict[str, Any]:
        return {"enum": ["0", "1", "true", "false"]}


class Number(Parameter[int]):
    """A whole number, 0 or above."""

    def of(self, request: Request) -> int:
        return whole_number(request, self.name, self.default)

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": 0, "maximum": 10**17, "default": self.default}


class Page(Parameter[int]):
    """A number of nats-server's pages: below zero counts as left out there."""

    def of(self, request: Request) -> int:
        return whole_number(request, self.name, self.default, negative_is_default=True)

    @property
    def schema(self) -> dict[str, Any]:
        bounds = {"minimum": -(10**17), "maximum": 10**17}
        return {"type": "integer", **bounds, "default": self.default}


@dataclass(frozen=True)
class Choice(Parameter[str]):
    """One of several words."""

    choices: tuple[str, ...] = ()
    #: What is said of another word; `{word}` stands for it.
    complaint: str = "not one of these: {word}"

    def of(self, request: Request) -> str:
        word = argument(request, self.name) or self.default
        if word not in self.choices:
            raise bad(f"{self.complaint.format(word=word)}; there are {', '.join(self.choices)}")
        return word

    @property
    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.choices), "default": self.default}


@dataclass(frozen=True)
class Seconds(Parameter[float]):
    """A number of seconds above 0."""

    most: float = 0.0

    def of(self, request: Request) -> float:
        return number_of_seconds(request, self.name, self.default, most=self.most, above_0=True)

    @property
    def schema(self) -> dict[str, Any]:
        bounds = {"exclusiveMinimum": 0, "maximum": self.most}
        return {"type": "number", **bounds, "default": self.default}


# Operations


@dataclass(frozen=True)
class Operation:
    """What one method of one path does."""

    summary: str
    query: tuple[Parameter[Any], ...] = ()
    #: Headers of the request that mean something, each with what.
    headers: tuple[tuple[str, str], ...] = ()
    #: A type for a body that is JSON, or a media type; None: there is none.
    body: Any = None
    #: Likewise what is answered, or several media types.
    answer: Any = dict[str, Any]
    status: int = 200
    #: What may go wrong, beside what may go wrong anywhere.
    errors: tuple[Code, ...] = ()


def operation(summary: str, **more: Any) -> Callable[[F], F]:
    """Say what a method of an `Endpoint` does."""

    def mark(method: F) -> F:
        method.operation = Operation(summary, **more)  # type: ignore[attr-defined]
        return method

    return mark
