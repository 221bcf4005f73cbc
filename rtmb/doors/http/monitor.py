"""Monitoring over HTTP: what nats-top and the Prometheus exporter for NATS read, `/metrics` for
Prometheus itself, `/ratez` and `/topicz` for the live page, and a way to close a client.

`monitoring` makes the resources; the HTTP door mounts them at its root behind its access check.
Field names, forms and defaults of the ``…z`` answers are those of nats-server. Clients of any door
are listed; what those of a door do not know of themselves is left out. See docs/monitoring.md.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from twisted.web.resource import IResource, Resource
from twisted.web.server import Request

from rtmb import __version__, compiled
from rtmb.codecs.json_message import shown, timestamp
from rtmb.core.history import Topic
from rtmb.core.subjects import Subscription, is_subject
from rtmb.doors.http import metrics
from rtmb.doors.http.kit import RefusedError, answer, argument, bad, header, path_rest
from rtmb.doors.http.rest import Call, user_of
from rtmb.interfaces import ISubscriber

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: How many entries a page has when nobody says, as in nats-server.
LIMIT = 1024
#: The door whose clients are links to a NATS cluster, not clients in the narrow sense.
LEAF = "leaf"
#: Characters of a topic's last message that `/topicz` shows.
PREVIEW = 200
#: Rates of topics are worked out again after this many seconds at the earliest.
_RATE_PERIOD = 0.9
_NUMBER = re.compile(r"-?[0-9]{1,9}")


# The forms of durations


def uptime(seconds: float) -> str:
    """
    >>> uptime(93784.9), uptime(59.2)
    ('1d2h3m4s', '59s')
    """
    whole = max(0, int(seconds))
    parts = ((whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"))
    first = next((i for i, (count, _) in enumerate(parts) if count), len(parts))
    return "".join(f"{n}{unit}" for n, unit in (*parts[first:], (whole % 60, "s")))


def duration(seconds: float) -> str:
    """
    >>> duration(0.000968), duration(0.0125), duration(1.5)
    ('968µs', '12.5ms', '1.5s')
    """
    if seconds < 0.001:
        return f"{seconds * 1e6:.6g}µs"
    if seconds < 1:
        return f"{seconds * 1e3:.6g}ms"
    return f"{seconds:.6g}s"


# Reading the query


def _text(request: Request, name: str, default: str = "") -> str:
    return argument(request, name) or default


def _number(request: Request, name: str, default: int = 0) -> int:
    """A number of the query; below zero counts as left out, as nats-server has it."""
    text = argument(request, name)
    if not text:
        return default
    if _NUMBER.fullmatch(text) is None:
        raise bad(f"{name} must be a whole number")
    return int(text) if int(text) >= 0 else default


def _page(request: Request) -> tuple[int, int]:
    """Where a page begins and how long it is."""
    return _number(request, "offset"), _number(request, "limit", LIMIT) or LIMIT


# Clients, of whatever door


class _Client:
    """One client as the monitoring sees it: what its door does not know has a default."""

    def __init__(self, cid: int, client: ISubscriber, started: float) -> None:
        self.cid = cid
        self.client = client
        self.counters = client.counters
        self.start: float = getattr(client, "started", started)
        self.last: float = getattr(client, "last_input", self.start)
        self.rtt: float | None = getattr(client, "rtt", None)
        self.pending = metrics.pending(client)

    @property
    def _held(self) -> Any:
        """Its subscriptions, or just their patterns, by whatever name the door has for them."""
        held = getattr(self.client, "subscriptions", None)
        return held if held is not None else getattr(self.client, "patterns", ())

    @property
    def count(self) -> int:
        return len(self._held)

    def subscriptions(self) -> list[dict[str, Any]]:
        held = self._held
        if isinstance(held, Mapping) and hasattr(self.client, "subscriptions"):
            return [_detail(s, self.cid) for s in held.values()]
        return [{"subject": shown(pattern), "cid": self.cid} for pattern in held]

    def _said(self) -> Mapping[str, Any]:
        """What it said of itself; else what its door put behind its number, or all of its name."""
        options = getattr(self.client, "options", None)
        if isinstance(options, Mapping):
            return options
        _, number, label = self.client.name.partition(f" - cid:{self.cid}")
        return {"name": label.removeprefix(" - ") if number else self.client.name}

    def _peer(self) -> Any:
        """Where it comes from: what has a `host` and a `port`, or None."""
        transport = getattr(self.client, "transport", None)
        return self.client if transport is None else transport.getPeer()

    def describe(self, now: float) -> dict[str, Any]:
        client, counters, said, peer = self.client, self.counters, self._said(), self._peer()
        found = {
            "cid": self.cid,
            "kind": "Leafnode" if client.door == LEAF else "Client",
            "type": client.door,
            "ip": getattr(peer, "host", ""),
            "port": getattr(peer, "port", 0),
            "start": timestamp(self.start),
            "last_activity": timestamp(self.last),
            "rtt": duration(self.rtt) if self.rtt is not None else None,
            "uptime": uptime(now - self.start),
            "idle": uptime(now - self.last),
            "pending_bytes": self.pending,
            "in_msgs": counters.in_msgs,
            "out_msgs": counters.out_msgs,
            "in_bytes": counters.in_bytes,
            "out_bytes": counters.out_bytes,
            "subscriptions": self.count,
        }
        for name in ("name", "lang", "version"):
            value = said.get(name)
            found[name] = shown(value) if isinstance(value, str) and value else None
        return {name: value for name, value in found.items() if value is not None}


def _detail(subscription: Subscription, cid: int) -> dict[str, Any]:
    found: dict[str, Any] = {"subject": shown(subscription.pattern)}
    if subscription.queue is not None:
        found["qgroup"] = shown(subscription.queue)
    found["sid"] = subscription.key.decode("utf-8", "replace")
    found["msgs"] = subscription.delivered
    if subscription.maximum is not None:
        found["max"] = subscription.maximum
    found["cid"] = cid
    return found


#: How `/connz` can be sorted. The largest comes first, but for these two; and as in nats-server,
#: the client that came last is the first by uptime.
_SORTS: dict[str, Callable[[_Client], float]] = {
    "cid": attrgetter("cid"),
    "start": attrgetter("start"),
    "subs": attrgetter("count"),
    "pending": attrgetter("pending"),
    "msgs_to": attrgetter("counters.out_msgs"),
    "msgs_from": attrgetter("counters.in_msgs"),
    "bytes_to": attrgetter("counters.out_bytes"),
    "bytes_from": attrgetter("counters.in_bytes"),
    "last": attrgetter("last"),
    "idle": lambda c: -c.last,
    "uptime": attrgetter("start"),
    "rtt": lambda c: c.rtt or 0.0,
}
_RISING = ("cid", "start")
_STATES = ("open", "all", "any", "closed")


# The resources


class _Answer(Call):
    """A GET that answers with what `find` finds."""

    def __init__(self, broker: Broker, find: Callable[[Request], Any]) -> None:
        super().__init__(broker)
        self._find = find

    def render_GET(self, request: Request) -> bytes:
        if any(request.postpath or ()):
            raise RefusedError(404, "NOT_FOUND", "there is nothing below this")
        # With line breaks: people read it with curl.
        return msgspec.json.format(answer(request, self._find(request)), indent=2) + b"\n"


class _Metrics(Resource):
    """`/metrics`, in the form that the scraper asks for."""

    isLeaf = True

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._registry = registry

    def render_GET(self, request: Request) -> bytes:
        encode, kind = choose_encoder(header(request, b"accept") or "")
        request.setHeader(b"content-type", kind.encode())
        return encode(self._registry)


class _Connections(Call):
    """`DELETE /connections/{cid}` closes a client."""

    def render_DELETE(self, request: Request) -> bytes:
        path = path_rest(request)
        cid = int(path) if _NUMBER.fullmatch(path) else 0
        client = self.hub.clients.get(cid)
        if client is None:
            raise RefusedError(404, "NOT_FOUND", f"no connection {path}")
        close = getattr(client, "close", None)
        if close is None:
            raise RefusedError(409, "CONFLICT", f"the door {client.door} cannot close clients")
        close(reason=f"kicked by {getattr(request.getClientAddress(), 'host', 'someone')}")
        return answer(request, {"status": "closed", "cid": cid})


class Monitor:
    """Answers questions about one broker."""

    def __init__(self, broker: Broker, pulse: metrics.Pulse) -> None:
        self._broker = broker
        self._hub = broker.hub
        self._pulse = pulse
        self._rated = 0.0
        self._counted: dict[str, int] = {}
        self._rates: dict[str, float] = {}

    def _head(self) -> dict[str, Any]:
        return {"server_id": self._broker.server_id, "now": timestamp(self._hub.clock())}

    def varz(self, request: Request) -> dict[str, Any]:
        broker, hub, system = self._broker, self._hub, self._broker.system
        settings, totals = broker.settings, hub.totals
        messages, size = metrics.held(hub.history)
        return {
            **self._head(),
            "server_name": broker.name,
            "version": __version__,
            "proto": 1,
            "go": f"python{platform.python_version()}",
            "host": settings.interface,
            "port": broker.port,
            "max_connections": settings.max_connections,
            "ping_interval": int(settings.ping_interval * 1e9),
            "ping_max": settings.ping_max,
            "auth_timeout": settings.auth_timeout,
            "max_control_line": settings.max_control_line,
            "max_payload": settings.max_payload,
            "max_pending": settings.max_pending,
            "start": timestamp(self._pulse.started),
            "uptime": uptime(hub.clock() - self._pulse.started),
            "mem": metrics.memory(),
            "cores": os.cpu_count() or 1,
            "cpu": self._pulse.cpu,
            "connections": len(hub.clients),
            "total_connections": system.connections.total(),
            "routes": 0,
            "remotes": 0,
            "leafnodes": len(self._leaves()),
            "in_msgs": totals.in_msgs,
            "out_msgs": totals.out_msgs,
            "in_bytes": totals.in_bytes,
            "out_bytes": totals.out_bytes,
            "slow_consumers": system.slow_consumers.total(),
            "subscriptions": len(hub.trie),
            # Beyond nats-server:
            "form": compiled.form(),
            "drops": system.drops.total(),
            "topics": len(hub.history),
            "history_messages": messages,
            "history_bytes": size,
        }

    def ratez(self, request: Request) -> dict[str, Any]:
        """The totals of the last minutes, for charts."""
        columns = ("time", "in_msgs", "out_msgs", "in_bytes", "out_bytes")
        return {**self._head(), "columns": columns, "totals": list(self._pulse.past)}

    # Connections

    def _clients(self) -> list[_Client]:
        self._hub.settle_all()
        return [_Client(n, c, self._pulse.started) for n, c in self._hub.clients.items()]

    def _leaves(self) -> list[tuple[int, ISubscriber]]:
        return [(n, c) for n, c in self._hub.clients.items() if c.door == LEAF]

    def connz(self, request: Request) -> dict[str, Any]:
        offset, limit = _page(request)
        sort, state = _text(request, "sort", "cid"), _text(request, "state", "open")
        subs, cid = _text(request, "subs"), _number(request, "cid")
        if sort not in _SORTS:
            raise bad(f"invalid sorting option: {sort}; there are {', '.join(_SORTS)}")
        if state not in _STATES:
            raise bad(f"Error decoding state for {state}; there are {', '.join(_STATES)}")
        clients = self._clients() if state != "closed" else []  # who is gone is not kept
        total = len(clients)
        if cid:
            offset, limit, clients = 0, 1, [c for c in clients if c.cid == cid]
        clients.sort(key=_SORTS[sort], reverse=sort not in _RISING)
        now = self._hub.clock()
        page = []
        for client in clients[offset : offset + limit]:
            described = client.describe(now)
            if subs == "detail":
                described["subscriptions_list_detail"] = client.subscriptions()
            elif _is_true(subs):
                described["subscriptions_list"] = [s["subject"] for s in client.subscriptions()]
            page.append(described)
        return {
            **self._head(),
            "num_connections": len(page),
            "total": total,
            "offset": offset,
            "limit": limit,
            "connections": page,
        }

    def leafz(self, request: Request) -> dict[str, Any]:
        now = self._hub.clock()
        self._hub.settle_all()
        leaves = [_Client(n, c, self._pulse.started).describe(now) for n, c in self._leaves()]
        return {**self._head(), "leafnodes": len(leaves), "leafs": leaves}

    def routez(self, request: Request) -> dict[str, Any]:
        return {**self._head(), "num_routes": 0, "routes": []}

    def healthz(self, request: Request) -> dict[str, Any]:
        return {"status": "ok"}

    # Subscriptions and topics

    def subsz(self, request: Request) -> dict[str, Any]:
        offset, limit = _page(request)
        subject = _text(request, "test")
        trie = self._hub.trie
        self._hub.settle_all()
        listed: Iterable[Subscription] = ()
        total = 0
        if subject:
            if not is_subject(subject):
                raise bad(f"invalid test subject, must be valid publish subject: {subject}")
            receivers = self._hub.subscriptions_of(subject)
            listed, total = receivers, len(receivers)
        elif _is_true(_text(request, "subs")):
            listed, total = trie, len(trie)
        fanouts = [len(r.plain) + len(r.groups) for r in trie.cached()]
        found = {
            **self._head(),
            "num_subscriptions": len(trie),
            "num_cache": len(fanouts),
            "max_fanout": max(fanouts, default=0),
            "avg_fanout": sum(fanouts) / len(fanouts) if fanouts else 0.0,
            "total": total,
            "offset": offset,
            "limit": limit,
        }
        page = list(islice(listed, offset, offset + limit))
        if page:
            numbers = {id(client): n for n, client in self._hub.clients.items()}
            found["subscriptions_list"] = [
                _detail(s, numbers.get(id(s.subscriber), 0))
                | {"name": shown(s.subscriber.name), "door": s.subscriber.door}
                for s in page
            ]
        return found

    def topicz(self, request: Request) -> dict[str, Any]:
        """Topics with their rate since this was last asked."""
        offset, limit = _page(request)
        sort, part = _text(request, "sort", "rate"), _text(request, "filter")
        sorts: dict[str, Callable[[Topic], Any]] = {
            "rate": lambda t: (-self._rates.get(t.name, 0.0), t.name),
            "messages": lambda t: (-t.messages, t.name),
            "bytes": lambda t: (-t.bytes, t.name),
            "last": lambda t: (-t.times[-1] if t.times else 0.0, t.name),
            "name": attrgetter("name"),
        }
        if sort not in sorts:
            raise bad(f"invalid sorting option: {sort}; there are {', '.join(sorts)}")
        self._hub.settle_all()
        topics = list(self._hub.history)
        self._rate(topics)
        total = len(topics)
        may_read = user_of(request).subscribe.may_subscribe
        topics = [t for t in topics if part in t.name and may_read(t.name)]
        topics.sort(key=sorts[sort])
        return {
            **self._head(),
            "total": total,
            "matching": len(topics),
            "offset": offset,
            "limit": limit,
            "topics": [self._topic(t) for t in topics[offset : offset + limit]],
        }

    def _topic(self, topic: Topic) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": shown(topic.name),
            "messages": topic.messages,
            "bytes": topic.bytes,
            "rate": round(self._rates.get(topic.name, 0.0), 1),
            "kept": len(topic.ring),
            "subscribers": len(self._hub.subscriptions_of(topic.name)),
        }
        for last in topic.newest(1):
            found["last_time"] = timestamp(last.time)
            found["last_size"] = last.size
            found["last"] = last.payload[: PREVIEW * 4].decode("utf-8", "replace")[:PREVIEW]
        return found

    def _rate(self, topics: list[Topic]) -> None:
        now = self._hub.clock()
        passed = now - self._rated
        if passed < _RATE_PERIOD:
            return
        before, self._counted = self._counted, {t.name: t.messages for t in topics}
        if self._rated:
            # A topic not seen before began since: all that it has is new.
            self._rates = {n: (c - before.get(n, 0)) / passed for n, c in self._counted.items()}
        self._rated = now


def _is_true(text: str) -> bool:
    return text.lower() in ("1", "true", "t")


def monitoring(broker: Broker) -> dict[bytes, IResource]:
    """The resources by name, for the root of the HTTP door."""
    registry, pulse = metrics.start(broker)
    monitor = Monitor(broker, pulse)
    found: dict[bytes, IResource] = {
        name.encode(): _Answer(broker, getattr(monitor, name))
        for name in ("varz", "connz", "subsz", "routez", "leafz", "healthz", "ratez", "topicz")
    }
    found[b"metrics"] = _Metrics(registry)
    found[b"connections"] = _Connections(broker)
    return found
