"""The description of the API, made from the table that routes: OpenAPI for requests, AsyncAPI for
`/ws`, and a page on which people read both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.web.server import Request

from rtmb import __version__
from rtmb.doors.http.json_socket import Command, Said
from rtmb.doors.http.kit import Code, Endpoint, answer
from rtmb.doors.http.operations import Operation, Parameter, operation

if TYPE_CHECKING:
    from rtmb.broker import Broker

_BINARY = {"type": "string", "format": "binary"}
_COMPONENTS = "#/components/schemas/{name}"
_ERROR = {"$ref": "#/components/schemas/Error"}
#: What may stand in the place of a name in a path.
_PATH_NAMES = {
    "name": "The name of a topic",
    "subject": "A subject: tokens joined by dots",
    "pattern": "A subject, or a pattern with * and >",
    "cid": "The number of a client, as /connz has it",
    "consumer": "The name of a consumer of the journal",
}
_SECURITY = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "keyInQuery": {"type": "apiKey", "in": "query", "name": "api_key"},
    "user": {"type": "http", "scheme": "basic"},
    "token": {"type": "http", "scheme": "bearer"},
}


class ErrorDetail(msgspec.Struct):
    """What went wrong: a word for programs, and a line for people."""

    code: str
    message: str


class Error(msgspec.Struct):
    """Every answer that is an error."""

    error: ErrorDetail


# OpenAPI


def openapi(table: Mapping[str, Endpoint]) -> dict[str, Any]:
    """The whole document."""
    described = [o for endpoint in table.values() for o in endpoint.operations.values()]
    types = [t for o in described for t in (o.body, o.answer) if _is_type(t)]
    _, schemas = msgspec.json.schema_components([*types, Error], ref_template=_COMPONENTS)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rtmb",
            "version": __version__,
            "description": "The HTTP door of a real-time message broker. `/ws` is described in "
            "/asyncapi.json; where no key and no users are set, a request needs no credentials.",
        },
        "paths": {path: _path(path, endpoint) for path, endpoint in table.items()},
        "components": {"schemas": schemas, "securitySchemes": _SECURITY},
        "security": [{name: []} for name in _SECURITY] + [{}],
    }


def _is_type(kind: Any) -> bool:
    return kind is not None and not isinstance(kind, (str, tuple))


def _path(path: str, endpoint: Endpoint) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)\}", path)
    found: dict[str, Any] = {
        method.lower(): _operation(described, endpoint.open)
        for method, described in endpoint.operations.items()
    }
    if names:
        found["parameters"] = [_path_parameter(name) for name in names]
    return found


def _path_parameter(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    about = {"description": _PATH_NAMES[name], "schema": schema}
    return {"name": name, "in": "path", "required": True, **about}


def _operation(described: Operation, is_open: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": described.summary, "responses": _responses(described)}
    parameters = [_parameter(p) for p in described.query]
    parameters += [
        {"name": name, "in": "header", "description": about, "schema": {"type": "string"}}
        for name, about in described.headers
    ]
    if parameters:
        found["parameters"] = parameters
    if described.body is not None:
        found["requestBody"] = {"required": True, "content": _content(described.body)}
    if is_open:
        found["security"] = []
    return found


def _parameter(parameter: Parameter[Any]) -> dict[str, Any]:
    about = {"description": parameter.about, "schema": parameter.schema}
    return {"name": parameter.name, "in": "query", **about}


def _content(kind: Any) -> dict[str, Any]:
    """A body by its media type."""
    if isinstance(kind, tuple):
        return {name: {} for name in kind}
    if isinstance(kind, str):
        is_text = kind.startswith("text/")
        return {kind: {"schema": {"type": "string"} if is_text else _BINARY}}
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_COMPONENTS)
    return {"application/json": {"schema": schema}}


def _responses(described: Operation) -> dict[str, Any]:
    success: dict[str, Any] = {"description": described.summary}
    if described.answer is not None:
        success["content"] = _content(described.answer)
    found = {str(described.status): success}
    by_status: dict[int, list[Code]] = {}
    for code in described.errors:
        by_status.setdefault(code.status, []).append(code)
    for status, codes in sorted(by_status.items()):
        found[str(status)] = _error(". ".join(f"{c.name}: {c.meaning}" for c in codes))
    found["default"] = _error("Any other error")
    return found


def _error(about: str) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": _ERROR}}}


# AsyncAPI


def asyncapi() -> dict[str, Any]:
    """The whole document."""
    (command, said), schemas = msgspec.json.schema_components(
        [Command, Said], ref_template=_COMPONENTS
    )
    messages = {"command": command, "said": said}
    channel = {"$ref": "#/channels/ws"}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "rtmb: JSON over WebSocket",
            "version": __version__,
            "description": "One JSON object in each frame. /openapi.json describes the requests.",
        },
        "channels": {
            "ws": {
                "address": "/ws",
                "messages": {
                    name: {"contentType": "application/json", "payload": payload}
                    for name, payload in messages.items()
                },
            }
        },
        "operations": {
            "command": {
                "action": "receive",
                "summary": "What a client says",
                "channel": channel,
                "messages": [{"$ref": "#/channels/ws/messages/command"}],
            },
            "said": {
                "action": "send",
                "summary": "What the broker says",
                "channel": channel,
                "messages": [{"$ref": "#/channels/ws/messages/said"}],
            },
        },
        "components": {"schemas": schemas},
    }


# The endpoints


class Description(Endpoint):
    """``/openapi.json`` and ``/asyncapi.json``. There is nothing secret in them."""

    open = True

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        #: The document, once the table that it is made of is complete.
        self.document: dict[str, Any] = {}

    @operation("The description of this API")
    def render_GET(self, request: Request) -> bytes:
        return msgspec.json.format(answer(request, self.document), indent=2) + b"\n"
