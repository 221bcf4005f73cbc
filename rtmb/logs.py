"""Log lines for machines: each event is one JSON object on a line of its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO, Any

import msgspec
from twisted.logger import ILogObserver, LogEvent, formatEvent
from twisted.python.failure import Failure
from zope.interface import directlyProvides

#: What Twisted adds to an event for itself.
_TWISTED = frozenset(("format", "isError", "message", "system", "time", "why", "failure"))

_encode = msgspec.json.Encoder(enc_hook=str).encode


def json_observer(out: IO[Any]) -> Callable[[LogEvent], None]:
    """An observer that writes ``{"time", "level", "logger", "message", …}``: the finished message,
    and beside it the facts that it was made from."""

    def observe(event: LogEvent) -> None:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(event.get("log_time", 0.0), UTC).isoformat(),
            "level": getattr(event.get("log_level"), "name", "info"),
            "logger": event.get("log_namespace", ""),
            "message": formatEvent(event),
        }
        failure = event.get("log_failure")
        if isinstance(failure, Failure):
            line["traceback"] = failure.getTraceback()
        for key, value in event.items():
            if not key.startswith("log_") and key not in _TWISTED and key not in line:
                line[key] = value if isinstance(value, (str, int, float, bool)) else str(value)
        out.write(_encode(line).decode("utf-8", "replace") + "\n")
        out.flush()

    directlyProvides(observe, ILogObserver)
    return observe
