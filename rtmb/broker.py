"""What a broker consists of: one hub, its doors, and what they share.

`twistd rtmb` runs one (see `rtmb.twistd`); an application embeds one: give it `Settings` and a
reactor, and start it like any Twisted service.
"""

from __future__ import annotations

import ipaddress
import platform
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from rtmb import __version__, compiled
from rtmb.announcements import Announcements
from rtmb.auth import Authenticator
from rtmb.clients import Clients
from rtmb.config import Settings, SettingsError
from rtmb.core.counters import Counters
from rtmb.core.hub import Hub
from rtmb.core.journal import Journal
from rtmb.core.subjects import is_pattern
from rtmb.doors import BUILT_IN, plugged_in
from rtmb.interfaces import IAuthenticator, IDoor, IDoorService
from rtmb.pulse import Pulse
from rtmb.tls import tls_options


class Broker(MultiService):
    """One hub and its doors."""

    log = Logger()

    def __init__(
        self,
        settings: Settings | None = None,
        reactor: Any = None,
        authenticator: IAuthenticator | None = None,
    ) -> None:
        super().__init__()
        if reactor is None:
            from twisted.internet import reactor
        self.reactor = reactor
        self.settings = settings = settings or Settings()
        self.server_id = uuid.uuid4().hex.upper()
        self.name = settings.name or f"rtmb-{self.server_id[:8]}"
        self.journal = _journal(settings, reactor.seconds)
        self.hub = Hub(
            reactor.seconds,
            history=settings.history,
            history_bytes=settings.history_bytes,
            journal=self.journal,
        )
        #: Everyone connected, at any door.
        self.clients = Clients(settings.max_connections)
        self.announcements = Announcements(
            self.hub, self.clients, reactor, settings.metrics_interval
        )
        self._own_authenticator = authenticator is None
        self.authenticator = authenticator or _authenticator(settings)
        self.tls = tls_options(settings)
        if self.journal is not None:
            self.journal.alarm = partial(self.announcements.about_to_be_lost, self.journal)
        #: What is measured while it runs.
        self.pulse = Pulse(reactor, self.hub, self.totals)
        self._run("announcements", self.announcements)
        self._run("pulse", self.pulse)
        #: The services of the doors that are open, by name.
        self.doors: dict[str, IDoorService] = {}
        for name, (door, options) in _doors(settings).items():
            service = door.open(self, options)
            if service is not None:
                self.doors[name] = service
                self._run(name, service)

    def _run(self, name: str, service: Any) -> None:
        service.setName(name)
        service.setServiceParent(self)

    def totals(self) -> Counters:
        """Messages and bytes in and out since the start, without what the broker itself says."""
        found = Counters()
        found.add(self.hub.totals)
        found.in_msgs -= self.announcements.published.in_msgs
        found.in_bytes -= self.announcements.published.in_bytes
        return found

    @property
    def port(self) -> int:
        """The port of the text door, once it listens."""
        return int(cast(Any, self.doors["nats"]).port)

    @property
    def url(self) -> str:
        return f"nats://{self.settings.interface}:{self.port}"

    def privilegedStartService(self) -> None:
        self.log.info(
            "rtmb {version} on Python {python}, {form}",
            version=__version__,
            python=platform.python_version(),
            form=compiled.form(),
        )
        super().privilegedStartService()
        if not self.authenticator.required and not _is_loopback(self.settings.interface):
            self.log.warn(
                "anyone who can reach {interface} can publish and subscribe: no users are set",
                interface=self.settings.interface,
            )

    def reload(self, settings: Settings) -> None:
        """Take over new users, permissions and limits. The rest needs a restart."""
        self.settings = settings
        self.clients.limit = settings.max_connections
        if self._own_authenticator:
            self.authenticator = _authenticator(settings)
        for service in self.doors.values():
            service.reload(settings, self.authenticator)

    def enter_lame_duck(self) -> Deferred[Any]:
        """Let nobody in any more and send the clients elsewhere, gently; fires when the last has
        gone."""
        self.clients.leaving = True
        grace = self.settings.lame_duck
        return DeferredList([s.enter_lame_duck(grace) for s in self.doors.values()])


def _doors(settings: Settings) -> dict[str, tuple[IDoor, dict[str, Any]]]:
    """The doors to open, each with its own table of the configuration."""
    own = {door.name: door for door in BUILT_IN}
    others = {}
    if settings.doors.keys() - own.keys():
        others = {door.name: door for door in plugged_in()}
    opened: dict[str, tuple[IDoor, dict[str, Any]]]
    opened = {name: (door, {}) for name, door in own.items()}
    for name, options in settings.doors.items():
        if name in own and options:
            raise SettingsError(
                f"doors.{name}: unknown key {next(iter(options))}; what this door can be told "
                "stands at the top level"
            )
        if name not in own and name not in others:
            raise SettingsError(
                f"doors.{name}: no such door; installed are {', '.join(sorted(own | others))}"
            )
        if name in others:
            opened[name] = (others[name], dict(options))
    return opened


def _authenticator(settings: Settings) -> Authenticator:
    return Authenticator(
        settings.auth, user=settings.user, password=settings.password, token=settings.token
    )


def _journal(settings: Settings, clock: Callable[[], float]) -> Journal | None:
    if not settings.journal:
        return None
    for pattern in settings.journal:
        if not is_pattern(pattern):
            raise SettingsError(f"journal: not a subject or pattern: {pattern!r}")
    return Journal(
        settings.journal, clock, budget=settings.journal_bytes, messages=settings.journal_messages
    )


def _is_loopback(interface: str) -> bool:
    try:
        return ipaddress.ip_address(interface).is_loopback
    except ValueError:
        return interface == "localhost"
