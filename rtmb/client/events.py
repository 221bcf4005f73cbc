"""What a client tells of itself: to its log, and to who asked to be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twisted.logger import Logger, LogLevel

from rtmb.client.errors import explain


@dataclass(frozen=True)
class Event:
    """Something that happened to a client; `str` is a line for people.

    The names: `connected`, `disconnected`, `reconnected`, `closed`, `lame_duck` (the server is
    about to stop), `slow_reader` (a subscription's reader is too slow, messages were dropped) and
    `error` (the server complained, or could not be reached)."""

    name: str
    url: str = ""
    error: Exception | None = None
    subject: str = ""
    dropped: int = 0

    def __str__(self) -> str:
        text = self.name.replace("_", " ")
        if self.subject:
            text += f" on {self.subject}: {self.dropped} messages dropped"
        if self.url:
            text += f": {self.url}"
        if self.error is not None:
            text += f": {explain(self.error)}"
        return text


class EventReporter:
    """Logs the events of one client, and hands them to its `on_event`."""

    log = Logger(namespace="rtmb.client")

    def __init__(self, name: str, on_event: Callable[[Event], object] | None) -> None:
        self._label = f"{name}: " if name else ""
        self._on_event = on_event

    def report(self, event: Event) -> None:
        worrying = event.name in ("disconnected", "slow_reader", "error")
        level = LogLevel.warn if worrying else LogLevel.info
        self.log.emit(level, "{client}{event}", client=self._label, event=event)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            self.log.failure("on_event failed")
