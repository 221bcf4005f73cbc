"""What requests to the HTTP door have in common: their arguments, and answers in JSON.

An error is ``{"error": {"code", "message"}}``, the codes being those of `/ws`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from twisted.web.server import Request

from rtmb.core.subjects import is_pattern, is_subject

_encode = msgspec.json.Encoder().encode


class RefusedError(Exception):
    """The answer to a request is an error."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


def bad(text: str) -> RefusedError:
    return RefusedError(400, "BAD_REQUEST", text)


def answer(request: Request, value: Any, status: int = 200) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json")
    request.setHeader(b"cache-control", b"no-store")
    return _encode(value) + b"\n"


def refuse(request: Request, status: int, code: str, text: str) -> bytes:
    return answer(request, error_body(code, text), status)


def error_body(code: str, text: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": text}}


def argument(request: Request, name: str) -> str | None:
    """An argument of the query, the last if there are several."""
    found = request.args.get(name.encode())
    try:
        return found[-1].decode("utf-8") if found else None
    except UnicodeDecodeError:
        raise bad(f"{name} is not UTF-8") from None


def body_of(request: Request) -> bytes:
    content = request.content
    return bytes(content.read()) if content is not None else b""


def header(request: Request, name: bytes) -> str | None:
    """A header of the request; what is no UTF-8 in it matches nothing."""
    found = request.getHeader(name)
    return found.decode("utf-8", "replace") if found is not None else None


def whole_number(request: Request, name: str, default: int) -> int:
    found = argument(request, name)
    if found is None:
        return default
    if not (found.isascii() and found.isdigit() and len(found) <= 6):
        raise bad(f"{name} must be a whole number")
    return int(found)


def path_rest(request: Request) -> str:
    """What stands in the path behind the name of the resource, slashes included."""
    try:
        return b"/".join(request.postpath or ()).decode("utf-8")
    except UnicodeDecodeError:
        raise bad("the path is not UTF-8") from None


def subject_of(text: str) -> str:
    if not is_subject(text):
        raise bad(f"not a subject: {text!r}")
    return text


def pattern_of(text: str) -> str:
    if not is_pattern(text):
        raise bad(f"not a subject or pattern: {text!r}")
    return text
