"""``/api``: the description of the API as a page. It needs no script and nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from html import escape
from typing import Any

import msgspec
from twisted.web.server import Request

from rtmb.doors.http.kit import Code, Endpoint
from rtmb.doors.http.operations import operation

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { overflow-x: auto; padding: .7rem; border: 1px solid #8884; border-radius: 6px; }
section { border-top: 1px solid #8884; padding: .4rem 0; }
h2 { margin: 2rem 0 .5rem; } h3 { margin: .6rem 0 .2rem; font-size: 1rem; }
b.method { display: inline-block; min-width: 5rem; }
table { border-collapse: collapse; } td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
"""


def api_page(openapi: dict[str, Any], asyncapi: dict[str, Any]) -> str:
    """The page of both documents."""
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><title>rtmb: the API</title>',
            '<meta name="viewport" content="width=device-width">',
            f"<style>{_STYLE}</style></head><body>",
            f"<h1>rtmb {escape(openapi['info']['version'])}: the API</h1>",
            '<p>For programs: <a href="/openapi.json">/openapi.json</a> and, for <code>/ws</code>,',
            '<a href="/asyncapi.json">/asyncapi.json</a>. <a href="/">The live page</a>.</p>',
            "<h2>Requests</h2>",
            *(_path(path, item) for path, item in openapi["paths"].items()),
            "<h2>JSON over WebSocket, <code>/ws</code></h2>",
            *_schemas(asyncapi["components"]["schemas"]),
            "<h2>What is asked and answered</h2>",
            *_schemas(openapi["components"]["schemas"]),
            "<h2>Errors</h2>",
            _table((code.name, f"{code.status or ''} {code.meaning}".strip()) for code in Code),
            "</body></html>\n",
        )
    )


def _path(path: str, item: dict[str, Any]) -> str:
    common = item.get("parameters", [])
    return "\n".join(
        _operation(method, path, described, common)
        for method, described in item.items()
        if method != "parameters"
    )


def _operation(
    method: str, path: str, described: dict[str, Any], common: list[dict[str, Any]]
) -> str:
    parameters = [*common, *described.get("parameters", [])]
    body = described.get("requestBody", {}).get("content", {})
    return "\n".join(
        (
            f'<section><h3><b class="method">{method.upper()}</b> ',
            f"<code>{escape(path)}</code></h3><p>{escape(described['summary'])}</p>",
            _table((f"{p['name']} ({p['in']})", p["description"]) for p in parameters),
            _table((f"body: {kind}", _shown(content)) for kind, content in body.items()),
            _table(_answers(described["responses"])),
            "</section>",
        )
    )


def _answers(responses: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for status, answer in responses.items():
        if status == "default":
            continue
        kinds = [f"{kind} {_shown(c)}".strip() for kind, c in answer.get("content", {}).items()]
        yield status, answer["description"] if int(status) >= 400 else ", ".join(kinds)


def _shown(content: dict[str, Any]) -> str:
    """The name of a schema, if it has one."""
    schema = content.get("schema", {})
    name = schema.get("$ref") or schema.get("items", {}).get("$ref", "")
    return str(name).rpartition("/")[2]


def _schemas(schemas: dict[str, Any]) -> Iterator[str]:
    for name, schema in schemas.items():
        text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
        yield f"<section><h3>{escape(name)}</h3><pre>{escape(text)}</pre></section>"


def _table(rows: Any) -> str:
    cells = (f"<tr><td><code>{escape(a)}</code></td><td>{escape(b)}</td></tr>" for a, b in rows)
    found = "".join(cells)
    return f"<table>{found}</table>" if found else ""


class ApiPage(Endpoint):
    """``/api``."""

    open = True
    #: The page, once the table that it is made of is complete.
    page = b""

    @operation("The description of this API, for people", answer="text/html")
    def render_GET(self, request: Request) -> bytes:
        digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'"
        request.setHeader(b"content-type", b"text/html; charset=utf-8")
        request.setHeader(b"content-security-policy", policy.encode())
        request.setHeader(b"x-content-type-options", b"nosniff")
        return self.page
