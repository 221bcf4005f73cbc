"""The ways into the hub: a package for each door, and beside them what doors have in common:
`session`, `listener` and `outbox`."""

from __future__ import annotations

from collections.abc import Iterable

from twisted.plugin import getPlugins

from rtmb.doors.http.site import HttpDoor
from rtmb.doors.msgpack.service import MsgpackDoor
from rtmb.doors.nats.service import NatsDoor
from rtmb.interfaces import IDoor

#: The doors that rtmb brings.
BUILT_IN: tuple[IDoor, ...] = (NatsDoor(), HttpDoor(), MsgpackDoor())


def plugged_in() -> Iterable[IDoor]:
    """The doors that other packages bring."""
    return getPlugins(IDoor)
