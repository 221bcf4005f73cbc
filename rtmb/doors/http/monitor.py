"""Monitoring over HTTP: what nats-top and the Prometheus exporter for NATS read, and ``/ratez`` for
the live page. Clients are in `connz`, topics in `topicz`, what Prometheus reads in `metrics`.

Field names, forms and defaults of the ``…z`` answers are those of nats-server. See
docs/monitoring.md.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec
from twisted.web.server import Request

from rtmb import __version__, compiled
from rtmb.codecs.json_message import shown, timestamp
from rtmb.core.history import Topic
from rtmb.core.subjects import is_subject
from rtmb.core.subscriptions import Subscription
from rtmb.doors.http.forms import LEAF, describe_subscription, uptime
from rtmb.doors.http.kit import (
    Code,
    Endpoint,
    RefusedError,
    answer,
    bad,
)
from rtmb.doors.http.metrics import memory
from rtmb.doors.http.operations import Operation, Page, Switch, Text, operation
from rtmb.interfaces import IClient

#: How many entries a page has when nobody says, as in nats-server.
LIMIT = 1024


OFFSET = Page("offset", "How many to leave out at the beginning", 0)
PAGE_LIMIT = Page("limit", "How many at most", LIMIT)
_SUBS = Switch("subs", "Whether to list the subscriptions", False)
_TEST = Text("test", "A subject: list who would receive it", "")


def page_of(request: Request) -> tuple[int, int]:
    """Where a page begins and how long it is."""
    return OFFSET.of(request), PAGE_LIMIT.of(request) or LIMIT


class Monitored(Endpoint):
    """A question about the broker: who inherits it answers in `found`, and says what in `about`."""

    about: Operation

    @property
    def operations(self) -> dict[str, Operation]:
        return {"GET": self.about}

    def render_GET(self, request: Request) -> bytes:
        head = {
            "server_id": self.broker.server_id,
            "now": timestamp(self.hub.clock()),
        }
        # With line breaks: people read it with curl.
        whole = answer(request, {**head, **self.found(request)})
        return msgspec.json.format(whole, indent=2) + b"\n"

    def found(self, request: Request) -> dict[str, Any]:
        raise NotImplementedError


class Varz(Monitored):
    """``/varz``: the broker as a whole."""

    about = Operation("The broker as a whole, as nats-server tells it")

    def found(self, request: Request) -> dict[str, Any]:
        broker, hub, told = self.broker, self.hub, self.broker.announcements
        settings, totals, pulse = broker.settings, broker.totals(), broker.pulse
        return {
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
            "start": timestamp(pulse.started),
            "uptime": uptime(hub.clock() - pulse.started),
            "mem": memory(),
            "cores": os.cpu_count() or 1,
            "cpu": pulse.cpu,
            "connections": len(broker.clients),
            "total_connections": told.connections.total(),
            "routes": 0,
            "remotes": 0,
            "leafnodes": sum(client.kind == LEAF for client in broker.clients),
            "in_msgs": totals.in_msgs,
            "out_msgs": totals.out_msgs,
            "in_bytes": totals.in_bytes,
            "out_bytes": totals.out_bytes,
            "slow_consumers": told.slow_consumers.total(),
            "subscriptions": len(hub.routing),
            # Beyond nats-server:
            "form": compiled.form(),
            "drops": told.drops.total(),
            "topics": len(hub.history),
            "history_messages": sum(topic.kept for topic in hub.history),
            "history_bytes": hub.history.held,
        }


class Ratez(Monitored):
    """``/ratez``: the totals of the last minutes, for charts."""

    about = Operation("The totals of the last minutes, a row a second")

    def found(self, request: Request) -> dict[str, Any]:
        columns = ("time", "in_msgs", "out_msgs", "in_bytes", "out_bytes")
        return {"columns": columns, "totals": list(self.broker.pulse.past)}


class Routez(Monitored):
    """``/routez``: there are none, but tools ask."""

    about = Operation("Routes to other servers: there are none")

    def found(self, request: Request) -> dict[str, Any]:
        return {"num_routes": 0, "routes": []}


class Healthz(Endpoint):
    """``/healthz``: whether to send clients here."""

    open = True

    @operation("Whether to send clients here", answer=dict[str, str], errors=(Code.SHUTTING_DOWN,))
    def render_GET(self, request: Request) -> Any:
        if self.broker.clients.leaving:
            text = "the broker is in lame duck mode: it closes its clients, and stops"
            raise RefusedError(Code.SHUTTING_DOWN, text, status="unavailable")
        return {"status": "ok"}


class Subsz(Monitored):
    """``/subsz``: subscriptions, and who would receive a subject."""

    about = Operation(
        "How many subscriptions there are, and who would receive a subject",
        query=(_SUBS, _TEST, OFFSET, PAGE_LIMIT),
        errors=(Code.BAD_REQUEST,),
    )

    def found(self, request: Request) -> dict[str, Any]:
        offset, limit = page_of(request)
        subject = _TEST.of(request)
        routing = self.hub.routing
        listed: Iterable[Subscription] = ()
        total = 0
        if subject:
            if not is_subject(subject):
                raise bad(f"invalid test subject, must be valid publish subject: {subject}")
            receivers = self.hub.subscriptions_of(subject)
            listed, total = receivers, len(receivers)
        elif _SUBS.of(request):
            listed, total = routing, len(routing)
        fanouts = [_fanout(topic) for topic in self.hub.history]
        found: dict[str, Any] = {
            "num_subscriptions": len(routing),
            "num_cache": len(fanouts),
            "max_fanout": max(fanouts, default=0),
            "avg_fanout": sum(fanouts) / len(fanouts) if fanouts else 0.0,
            "total": total,
            "offset": offset,
            "limit": limit,
        }
        page = list(islice(listed, offset, offset + limit))
        if page:
            found["subscriptions_list"] = [self._shown(s) for s in page]
        return found

    def _shown(self, subscription: Subscription) -> dict[str, Any]:
        found = describe_subscription(subscription)
        client = subscription.subscriber
        if IClient.providedBy(client):
            found |= {"cid": client.number, "name": shown(client.name), "door": client.door}
        return found


def _fanout(topic: Topic) -> int:
    """How many get a message on a topic."""
    plain = sum(len(interest.plain or ()) for interest in topic.interests)
    return plain + len(topic.deals or ())
