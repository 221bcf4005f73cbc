"""A broker for other people's tests. docs/testing.md tells how; in short:

- the pytest fixtures `rtmb_broker`, `rtmb_session_broker` and `rtmb_broker_factory`, with nothing
  to import;
- `start_broker` (a `BrokerProcess`): a broker in a process of its own, for any test;
- `BrokerMixin`: a broker on real ports in trial's reactor;
- `MemoryBroker`: a broker and its clients with no sockets and a clock that the test winds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtmb.testing.inside import BrokerMixin
    from rtmb.testing.memory import MemoryBroker
    from rtmb.testing.process import BrokerProcess, PublishedMessage, start_broker

__all__ = ["BrokerMixin", "BrokerProcess", "MemoryBroker", "PublishedMessage", "start_broker"]

#: Loaded when first asked for: who starts a process need not wait for Twisted to be imported.
_HOMES = {
    "BrokerMixin": "rtmb.testing.inside",
    "BrokerProcess": "rtmb.testing.process",
    "MemoryBroker": "rtmb.testing.memory",
    "PublishedMessage": "rtmb.testing.process",
    "start_broker": "rtmb.testing.process",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
