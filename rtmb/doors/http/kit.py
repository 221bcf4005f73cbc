"""What every path of the HTTP door is made with: `Endpoint`, what is read from a request, answers,
and `Code`, the codes of all errors.

An error is ``{"error": {"code", "message"}}``, whatever went wrong and wherever.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import msgspec
from twisted.web.resource import Resource
from twisted.web.server import Request

from rtmb.auth import User
from rtmb.core.subjects import NO_REPLY, is_pattern, is_subject

if TYPE_CHECKING:
    from rtmb.broker import Broker
    from rtmb.doors.http.operations import Operation

T = TypeVar("T")

_NUMBER = re.compile(r"-?[0-9]{1,18}")

encode_json = msgspec.json.Encoder().encode


# Errors


class Code(Enum):
    """What went wrong, as a program is told: the word, its status in HTTP, and what it means. `/ws`
    and event streams know no status; of these, they use the ones that the protocol of `/ws` names.
    """

    BAD_REQUEST = 400, "Something in the request is missing or not what it should be"
    UNAUTHORIZED = 401, "Who you are is not known; on a WebSocket also: you may not do this"
    FORBIDDEN = 403, "You may not do this"
    NOT_FOUND = 404, "There is nothing at this path"
    TOPIC_NOT_FOUND = 404, "There is no such topic"
    NO_JOURNAL = 404, "This broker keeps no journal"
    METHOD_NOT_ALLOWED = 405, "This path does not know that method; Allow says which it knows"
    CONFLICT = 409, "It is there already"
    EPOCH_CHANGED = 409, "The broker was restarted: its journal is another"
    TOO_LARGE = 413, "The body is larger than is allowed"
    UPGRADE_REQUIRED = 426, "This path is for WebSockets"
    TOO_MANY = 429, "There are as many of these as there may be"
    HEADERS_TOO_LARGE = 431, "A header or the path is too long"
    INTERNAL = 500, "The broker failed; its log says how"
    OVERLOADED = 503, "Too many connections, or too much at once: try again later"
    SHUTTING_DOWN = 503, "The broker is about to stop: go to another"
    NO_RESPONDERS = 503, "Nobody listens to the subject of a request"
    TIMEOUT = 504, "Nobody answered a request in time"
    SLOW_CONSUMER = 0, "You do not read what you asked for, and are closed"

    def __init__(self, status: int, meaning: str) -> None:
        self.status = status
        self.meaning = meaning


class RefusedError(Exception):
    """The answer to a request is an error. `more` stands in the answer beside it."""

    def __init__(self, code: Code, text: str, **more: Any) -> None:
        super().__init__(text)
        self.code = code
        self.more = more


def bad(text: str) -> RefusedError:
    return RefusedError(Code.BAD_REQUEST, text)


def nothing_here() -> RefusedError:
    return RefusedError(Code.NOT_FOUND, "there is nothing here")


def forbidden(text: str) -> RefusedError:
    return RefusedError(Code.FORBIDDEN, text)


def too_large(limit: int) -> RefusedError:
    return RefusedError(Code.TOO_LARGE, f"at most {limit} bytes are allowed")


def error_body(error: RefusedError) -> bytes:
    shown = {"code": error.code.name, "message": str(error)}
    return encode_json({**error.more, "error": shown}) + b"\n"


# Requests


class ApiRequest(Request):
    """A request whose sender is known, and at which path it stands."""

    #: Who sent it, once that has been found out.
    sender: User | None = None
    #: What stands in the path where its pattern has a name in braces.
    path_arguments: Mapping[str, str]


def user_of(request: Request) -> User:
    """Who sent a request. Nothing is done for one that nobody has looked at."""
    user = cast(ApiRequest, request).sender
    if user is None:
        raise RuntimeError("a request came past the access check")
    return user


def require_unrestricted(request: Request) -> None:
    """For what is done to others: only someone without restrictions may."""
    if user_of(request).restricted:
        raise forbidden("you may not do this to others")


def header(request: Request, name: bytes) -> str | None:
    """A header of the request; what is no UTF-8 in it matches nothing."""
    found = request.getHeader(name)
    return found.decode("utf-8", "replace") if found is not None else None


def is_upgrade(request: Request) -> bool:
    """Whether it wants to become a WebSocket."""
    return header(request, b"upgrade") is not None


def argument(request: Request, name: str) -> str | None:
    """An argument of the query, the last if there are several."""
    found = request.args.get(name.encode())
    try:
        return found[-1].decode("utf-8") if found else None
    except UnicodeDecodeError:
        raise bad(f"{name} is not UTF-8") from None


def is_true(text: str | None) -> bool:
    """Whether an argument of the query that is a switch is on."""
    return text is not None and text.lower() in ("1", "true", "t")


@overload
def whole_number(
    request: Request, name: str, default: int, *, negative_is_default: bool = ...
) -> int: ...
@overload
def whole_number(request: Request, name: str, default: None = ...) -> int | None: ...


def whole_number(
    request: Request, name: str, default: int | None = None, *, negative_is_default: bool = False
) -> int | None:
    """A whole number of the query."""
    found = argument(request, name)
    if not found:
        return default
    if _NUMBER.fullmatch(found) is None or (found.startswith("-") and not negative_is_default):
        raise bad(f"{name} must be a whole number")
    return int(found) if int(found) >= 0 else default


def number_of_seconds(
    request: Request, name: str, default: float, *, most: float = math.inf, above_0: bool = False
) -> float:
    """A number of seconds of the query."""
    found = argument(request, name)
    try:
        value = float(found) if found is not None else default
    except ValueError:
        value = math.nan
    if not 0 <= value <= most or value == math.inf or (above_0 and not value):
        bounds = f"{' above 0' if above_0 else ''}{f' up to {most:g}' if most < math.inf else ''}"
        raise bad(f"{name} must be a number of seconds{bounds}")
    return value


def path_argument(request: Request, name: str) -> str:
    """What stands in the path in the place of ``{name}``, slashes included."""
    found = cast(ApiRequest, request).path_arguments.get(name) or ""
    if not found.isascii() and any("\udc80" <= c <= "\udcff" for c in found):
        raise bad("the path is not UTF-8")
    return found


def body_of(request: Request) -> bytes:
    content = request.content
    return bytes(content.read()) if content is not None else b""


def json_of(request: Request, kind: type[T], wanted: str) -> T:
    """The body as JSON of some type; `wanted` is the error when it is not."""
    try:
        return msgspec.json.decode(body_of(request), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad(wanted) from None


def subject_of(text: str) -> str:
    if not is_subject(text):
        raise bad(f"not a subject: {text!r}")
    return text


def reply_of(text: str) -> str:
    """The subject of a reply: one that someone can hear."""
    if text.startswith(NO_REPLY):
        raise bad(f"not a subject for replies: {text!r}")
    return subject_of(text)


def pattern_of(text: str) -> str:
    if not is_pattern(text):
        raise bad(f"not a subject or pattern: {text!r}")
    return text


# Answers


def answer(request: Request, value: Any, status: int = 200) -> bytes:
    """An answer in JSON."""
    return _json(request, status, encode_json(value) + b"\n")


def refuse(request: Request, error: RefusedError) -> bytes:
    """The answer that is an error."""
    return _json(request, error.code.status, error_body(error))


def _json(request: Request, status: int, body: bytes) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json")
    request.setHeader(b"cache-control", b"no-store")
    return body


class Endpoint(Resource):
    """What answers at one path: a method ``render_GET`` and so on for each method that it knows.

    These return bytes, `NOT_DONE_YET`, or what is to be JSON; a `RefusedError` is an answer too.
    """

    isLeaf = True
    #: Whether anyone may ask, also who could not say who it is.
    open = False
    #: The largest body, where it is not a message of `max_payload`.
    most_body: int | None = None

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker
        self.hub = broker.hub

    def is_open(self, request: Request) -> bool:
        """Whether anyone may ask this."""
        return self.open

    def refuse_if_leaving(self) -> None:
        """For who would stay: nobody comes in any more once the broker is to be left."""
        if self.broker.clients.leaving:
            raise RefusedError(Code.SHUTTING_DOWN, "the broker is about to stop: go to another")

    @cached_property
    def methods(self) -> list[str]:
        """What it knows, as the header Allow lists it."""
        known = {name[7:] for name in dir(self) if name.startswith("render_")} | {"OPTIONS"}
        # Every resource of Twisted's knows HEAD, as GET without a body.
        return sorted(known if "GET" in known else known - {"HEAD"})

    @property
    def allow(self) -> bytes:
        return ", ".join(self.methods).encode()

    @property
    def operations(self) -> dict[str, Operation]:
        """What each method does; see `rtmb.doors.http.operations.operation`."""
        names = [name for name in self.methods if name not in ("HEAD", "OPTIONS")]
        return {name: getattr(self, f"render_{name}").operation for name in names}

    def render(self, request: Request) -> bytes | int:
        try:
            if request.method.decode("ascii", "replace") not in self.methods:
                request.setHeader(b"allow", self.allow)
                known = ", ".join(self.methods)
                raise RefusedError(Code.METHOD_NOT_ALLOWED, f"only {known} are known here")
            found = super().render(request)
        except RefusedError as error:
            return refuse(request, error)
        return found if isinstance(found, (bytes, int)) else answer(request, found)
