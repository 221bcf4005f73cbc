"""What a client can be told, and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from rtmb.client.address import Tls
from rtmb.client.events import Event


@dataclass
class Stats:
    """What a client has counted. Bytes are of payloads and headers."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0
    #: Messages that slow readers lost.
    dropped: int = 0
    reconnects: int = 0
    #: What the server complained about.
    errors: int = 0


class ClientOptions(TypedDict, total=False):
    """What `connect`, `Client` and `ClientService` take besides a URL."""

    #: More servers to go to when the first cannot be reached.
    servers: Sequence[str]
    #: What the server calls this client in its log and its monitoring.
    name: str
    #: Who this is; what stands in a URL goes before.
    user: str | None
    password: str | None
    token: str | None
    nkey_seed: str | None
    #: True, the path of a PEM file with authorities to trust, or Twisted's options for TLS. When
    #: the server requires TLS and this says nothing, the system's authorities are trusted.
    tls: Tls
    #: Do the TLS handshake before the server's INFO.
    tls_first: bool
    #: Seconds to connect to one server, with all handshakes.
    connect_timeout: float
    #: Whether to come back when the connection is lost.
    reconnect: bool
    #: Attempts in a row before giving up; -1: never.
    max_reconnects: int
    #: Seconds before the first attempt to come back. Doubled after each round of the servers, up to
    #: `reconnect_wait_max`; of each wait up to half is left out by chance.
    reconnect_wait: float
    reconnect_wait_max: float
    #: Seconds between PINGs, and how many may stay unanswered.
    ping_interval: float
    max_pings_out: int
    #: Bytes that may wait to be sent, while there is no connection or the server is slow.
    pending_limit: int
    #: Whether this client's own subscriptions get what it publishes.
    echo: bool
    #: Called with each `Event`.
    on_event: Callable[[Event], object] | None
    reactor: Any


DEFAULTS: ClientOptions = {
    "servers": (),
    "name": "",
    "user": None,
    "password": None,
    "token": None,
    "nkey_seed": None,
    "tls": None,
    "tls_first": False,
    "connect_timeout": 5.0,
    "reconnect": True,
    "max_reconnects": -1,
    # Soon, as most absences are restarts, but not all clients at once.
    "reconnect_wait": 0.25,
    "reconnect_wait_max": 15.0,
    "ping_interval": 120.0,
    "max_pings_out": 2,
    # As much as the broker holds for one client.
    "pending_limit": 64 << 20,
    "echo": True,
    "on_event": None,
    "reactor": None,
}


def with_defaults(options: ClientOptions) -> ClientOptions:
    """All options, those given and the others."""
    for key in options:
        if key not in DEFAULTS:
            raise TypeError(f"a client has no option {key!r}")
    return {**DEFAULTS, **options}
