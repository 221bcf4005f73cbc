"""``/connz``, ``/leafz``: the clients of all doors; ``/connections/{cid}``, which closes one."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.web.server import Request

from rtmb.codecs.json_message import shown
from rtmb.doors.http.forms import LEAF, describe, describe_subscription
from rtmb.doors.http.kit import (
    Code,
    Endpoint,
    RefusedError,
    is_true,
    path_argument,
    require_unrestricted,
)
from rtmb.doors.http.monitor import OFFSET, PAGE_LIMIT, Monitored, page_of
from rtmb.doors.http.operations import Choice, Operation, Page, Text, operation
from rtmb.interfaces import IClient

#: How `/connz` can be sorted. The largest comes first, but for these two; and as in nats-server,
#: the client that came last is the first by uptime.
_SORTS: dict[str, Callable[[IClient], float]] = {
    "cid": attrgetter("number"),
    "start": attrgetter("started"),
    "subs": lambda c: len(c.subscriptions),
    "pending": attrgetter("pending"),
    "msgs_to": attrgetter("counters.out_msgs"),
    "msgs_from": attrgetter("counters.in_msgs"),
    "bytes_to": attrgetter("counters.out_bytes"),
    "bytes_from": attrgetter("counters.in_bytes"),
    "last": attrgetter("last_input"),
    "idle": lambda c: -c.last_input,
    "uptime": attrgetter("started"),
    "rtt": lambda c: c.rtt or 0.0,
}
_RISING = ("cid", "start")
_SORT = Choice("sort", "Which come first", "cid", tuple(_SORTS), "invalid sorting option: {word}")
_STATE = Choice(
    "state",
    "Which; who has left is not kept",
    "open",
    ("open", "all", "any", "closed"),
    "Error decoding state for {word}",
)
_SUBS = Text("subs", "1 to list the subscriptions, or detail", "")
_CID = Page("cid", "Only this client", 0)


class Connz(Monitored):
    """``/connz``: a page of the clients."""

    about = Operation(
        "The clients of all doors",
        query=(_SORT, _STATE, _SUBS, _CID, OFFSET, PAGE_LIMIT),
        errors=(Code.BAD_REQUEST,),
    )

    def found(self, request: Request) -> dict[str, Any]:
        offset, limit = page_of(request)
        sort, state, subs = _SORT.of(request), _STATE.of(request), _SUBS.of(request)
        cid = _CID.of(request)
        clients = list(self.broker.clients) if state != "closed" else []  # who is gone is not kept
        total = len(clients)
        if cid:
            offset, limit, clients = 0, 1, [c for c in clients if c.number == cid]
        clients.sort(key=_SORTS[sort], reverse=sort not in _RISING)
        page = [self._described(client, subs) for client in clients[offset : offset + limit]]
        return {
            "num_connections": len(page),
            "total": total,
            "offset": offset,
            "limit": limit,
            "connections": page,
        }

    def _described(self, client: IClient, subs: str) -> dict[str, Any]:
        found = describe(client, self.hub.clock())
        held = client.subscriptions
        if subs == "detail":
            details = [{**describe_subscription(s), "cid": client.number} for s in held]
            found["subscriptions_list_detail"] = details
        elif is_true(subs):
            found["subscriptions_list"] = [shown(s.pattern) for s in held]
        return found


class Leafz(Monitored):
    """``/leafz``: the clients that are links to a NATS cluster."""

    about = Operation("Links to a NATS cluster")

    def found(self, request: Request) -> dict[str, Any]:
        now = self.hub.clock()
        leaves = [describe(c, now) for c in self.broker.clients if c.kind == LEAF]
        return {"leafnodes": len(leaves), "leafs": leaves}


class Closed(msgspec.Struct):
    """A client was told to go."""

    status: str
    cid: int


class Connection(Endpoint):
    """``/connections/{cid}``: DELETE closes a client."""

    @operation(
        "Close a client",
        answer=Closed,
        errors=(Code.FORBIDDEN, Code.NOT_FOUND),
    )
    def render_DELETE(self, request: Request) -> Any:
        require_unrestricted(request)
        text = path_argument(request, "cid")
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
        client = self.broker.clients.get(number)
        if client is None:
            raise RefusedError(Code.NOT_FOUND, f"no connection {text}")
        address = request.getClientAddress()
        who = address.host if isinstance(address, (IPv4Address, IPv6Address)) else "someone"
        client.close(f"kicked by {who}")
        return Closed("closed", number)
