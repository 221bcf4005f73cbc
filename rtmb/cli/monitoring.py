"""What `rtmb top` knows of a broker: readings of its monitoring over HTTP, and rates between them.

It reads `/varz` and `/connz`, which nats-server has too, and `/topicz`, which only rtmb has. Rates
are differences of two readings, worked out here.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec
from twisted.internet import error
from twisted.internet.defer import TimeoutError as LateError
from twisted.web.client import Agent, ResponseFailed, readBody
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers

from rtmb.cli.options import HttpTarget
from rtmb.cli.runner import NO_CONNECTION, CommandFailed
from rtmb.cli.tls_files import client_tls
from rtmb.client.errors import explain
from rtmb.client.websocket import TrustPolicy
from rtmb.core.subjects import OWN

#: Seconds that an answer may take.
PATIENCE = 5.0


class Unreachable(CommandFailed):
    """The monitoring does not answer, or not with what it should."""

    def __init__(self, message: str) -> None:
        super().__init__(message, NO_CONNECTION)


@dataclass
class MonitoringReading:
    """What the monitoring said at one moment."""

    time: float
    server: dict[str, Any]
    connections: list[dict[str, Any]]
    #: None where the server knows of none: nats-server.
    topics: list[dict[str, Any]] | None


@dataclass
class Frame:
    """Two readings and what lies between them."""

    now: MonitoringReading
    before: MonitoringReading | None = None
    _clients: dict[int, dict[str, Any]] = field(init=False)
    _topics: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        before = self.before
        self._clients = {c["cid"]: c for c in before.connections} if before else {}
        self._topics = {t["name"]: t["messages"] for t in (before.topics or [])} if before else {}

    def _per_second(self, amount: float) -> float | None:
        passed = self.now.time - self.before.time if self.before else 0.0
        return max(0.0, amount) / passed if passed > 0 else None

    def server_rate(self, key: str) -> float | None:
        before = self.before.server if self.before else {}
        return self._per_second(self.now.server.get(key, 0) - before.get(key, 0))

    def client_rate(self, client: dict[str, Any], key: str) -> float | None:
        before = self._clients.get(client["cid"], {})
        return self._per_second(client.get(key, 0) - before.get(key, 0))

    def topic_rate(self, topic: dict[str, Any]) -> float | None:
        # A topic not seen before began since: all that it has is new.
        return self._per_second(topic["messages"] - self._topics.get(topic["name"], 0))

    def clients(self, sort: str) -> list[dict[str, Any]]:
        by: dict[str, Callable[[dict[str, Any]], float]] = {
            "out": lambda c: -(self.client_rate(c, "out_msgs") or 0),
            "in": lambda c: -(self.client_rate(c, "in_msgs") or 0),
            "pending": lambda c: -c.get("pending_bytes", 0),
            "subs": lambda c: -c.get("subscriptions", 0),
            "cid": lambda c: c["cid"],
        }
        return sorted(self.now.connections, key=lambda c: (by[sort](c), c["cid"]))

    def topics(self) -> list[dict[str, Any]]:
        """The busiest first, and the broker's own last: they are many and always there."""

        def order(topic: dict[str, Any]) -> tuple[bool, float, int, str]:
            name, rate = topic["name"], self.topic_rate(topic) or 0.0
            return name.startswith(OWN), -rate, -topic["messages"], name

        return sorted(self.now.topics or [], key=order)


class Monitoring:
    """Asks a broker over HTTP."""

    def __init__(self, reactor: Any, target: HttpTarget, *, system: bool = False) -> None:
        self._reactor = reactor
        self._url = target.url
        self._system = system
        host = urlsplit(target.url).hostname or ""
        tls = client_tls(target.tls_ca, target.tls_cert, target.tls_key, host)
        self._agent = Agent(reactor, TrustPolicy(tls), connectTimeout=PATIENCE)
        self._headers = Headers({b"User-Agent": [b"rtmb top"]})
        for name, value in _login(target).items():
            self._headers.addRawHeader(name, value)

    async def read(self) -> MonitoringReading:
        server = await self._get("/varz")
        connections = await self._get("/connz?subs=1&limit=1024")
        query = "&system=1" if self._system else ""
        answer = await self._get(f"/topicz?limit=1024{query}", optional=True)
        if not isinstance(server, dict) or not isinstance(connections, dict):
            raise Unreachable(f"{self._url} is not the monitoring of a broker")
        topics = answer.get("topics", []) if isinstance(answer, dict) else None
        if topics is not None and not self._system:
            topics = [topic for topic in topics if not topic["name"].startswith(OWN)]
        return MonitoringReading(
            self._reactor.seconds(), server, connections.get("connections") or [], topics
        )

    async def _get(self, path: str, *, optional: bool = False) -> Any:
        where = self._url + path
        try:
            asking = self._agent.request(b"GET", where.encode(), self._headers)
            response = await asking.addTimeout(PATIENCE, self._reactor)
            body = await readBody(response).addTimeout(PATIENCE, self._reactor)
        except (error.ConnectError, error.DNSLookupError, error.ConnectionClosed) as problem:
            raise Unreachable(f"{self._url}: {problem}") from None
        except (ResponseFailed, PotentialDataLoss) as problem:
            raise Unreachable(f"{self._url} {_no_http(problem)}") from None
        except (LateError, error.TimeoutError):
            raise Unreachable(f"{self._url} does not answer within {PATIENCE:g} s") from None
        if response.code in (401, 403):
            raise Unreachable(
                f"{self._url} does not let us in: see --api-key, --token, --user and --password"
            )
        if response.code == 404 and optional:
            return None
        if response.code != 200:
            raise Unreachable(f"{where} answers {response.code}")
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unreachable(f"{where} answers something else than JSON") from None


def _login(target: HttpTarget) -> dict[bytes, bytes]:
    """Headers that say who we are: the first that is given of key, user and token."""
    if target.api_key:
        return {b"X-API-Key": target.api_key.encode()}
    if target.user:
        both = f"{target.user}:{target.password or ''}".encode()
        return {b"Authorization": b"Basic " + base64.b64encode(both)}
    if target.token:
        return {b"Authorization": b"Bearer " + target.token.encode()}
    return {}


def _no_http(problem: Exception) -> str:
    """Why there is no answer, as far as it is known."""
    text = explain(problem)
    return (
        f"cannot be used: {text}"
        if "TLS" in text or "trusted" in text
        else "does not answer in HTTP"
    )
