"""The live page, as it is served."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from typing import TYPE_CHECKING

from twisted.web.server import Request

from rtmb.doors.http.kit import Endpoint, is_upgrade
from rtmb.doors.http.operations import operation
from rtmb.doors.http.sockets import SocketEndpoint

if TYPE_CHECKING:
    from rtmb.broker import Broker


class Page(Endpoint):
    """The page at ``/``; an upgrade there is a NATS client's. It may use nothing from elsewhere,
    and run nothing but itself."""

    def __init__(self, broker: Broker, nats: SocketEndpoint) -> None:
        super().__init__(broker)
        self._nats = nats
        self._page = (resources.files("rtmb.doors.http.dashboard") / "index.html").read_bytes()
        scripts, styles = (self._hashes(name) for name in (b"script", b"style"))
        self._policy = (
            "default-src 'none'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
            f"form-action 'none'; frame-ancestors 'none'; script-src {scripts}; style-src {styles}"
        ).encode()

    def _hashes(self, name: bytes) -> str:
        """The elements of that name that stand in the page, as the policy names them."""
        found = re.findall(b"<%b[^>]*>(.*?)</%b>" % (name, name), self._page, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in found)
        return " ".join(["'self'", *(f"'sha256-{digest}'" for digest in digests)])

    def is_open(self, request: Request) -> bool:
        """The page asks for the key itself."""
        return self._nats.is_open(request) if is_upgrade(request) else True

    @operation("The live page; as a WebSocket, what /nats is", answer="text/html")
    def render_GET(self, request: Request) -> bytes | int:
        if is_upgrade(request):
            return self._nats.render(request)
        request.setHeader(b"content-type", b"text/html; charset=utf-8")
        request.setHeader(b"content-security-policy", self._policy)
        request.setHeader(b"x-content-type-options", b"nosniff")
        request.setHeader(b"referrer-policy", b"no-referrer")
        request.setHeader(b"cache-control", b"no-cache")
        return self._page
