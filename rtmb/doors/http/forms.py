"""The forms that clients, subscriptions and durations have in monitoring: those of nats-server."""

from __future__ import annotations

from typing import Any

from rtmb.codecs.json_message import shown, timestamp
from rtmb.core.subscriptions import Subscription
from rtmb.interfaces import IClient


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


#: What a client is that is a link to a NATS cluster.
LEAF = "Leafnode"


def describe(client: IClient, now: float) -> dict[str, Any]:
    """One client, as nats-server would show it."""
    counters = client.counters
    found = {
        "cid": client.number,
        "kind": client.kind,
        "type": client.door,
        "ip": client.host,
        "port": client.port,
        "start": timestamp(client.started),
        "last_activity": timestamp(client.last_input),
        "rtt": duration(client.rtt) if client.rtt is not None else None,
        "uptime": uptime(now - client.started),
        "idle": uptime(now - client.last_input),
        "pending_bytes": client.pending,
        "in_msgs": counters.in_msgs,
        "out_msgs": counters.out_msgs,
        "in_bytes": counters.in_bytes,
        "out_bytes": counters.out_bytes,
        "subscriptions": len(client.subscriptions),
    }
    for name, text in client.describe().items():
        found[name] = shown(text)
    return {name: value for name, value in found.items() if value is not None}


def describe_subscription(subscription: Subscription) -> dict[str, Any]:
    """One subscription, likewise."""
    found: dict[str, Any] = {"subject": shown(subscription.pattern)}
    if subscription.queue is not None:
        found["qgroup"] = shown(subscription.queue)
    found["sid"] = subscription.key.decode("utf-8", "replace")
    found["msgs"] = subscription.delivered
    if subscription.maximum is not None:
        found["max"] = subscription.maximum
    return found
