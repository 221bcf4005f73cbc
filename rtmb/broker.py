"""What a broker consists of: one hub, its doors, and what they share.

`twistd rtmb` runs one (see `rtmb.twistd`); an application embeds one: give it `Settings` and a
reactor, and start it like any Twisted service.
"""

from __future__ import annotations

import ipaddress
import platform
import uuid
from collections.abc import Callable
from typing import Any

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from rtmb import __version__, compiled
from rtmb.announcements import System
from rtmb.auth import Authenticator
from rtmb.config import Settings, SettingsError
from rtmb.core.hub import Hub
from rtmb.core.journal import Journal
from rtmb.core.subjects import is_pattern
from rtmb.doors import BUILT_IN, plugged_in
from rtmb.interfaces import IAuthenticator
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
        self.system = System(self.hub, reactor, settings.metrics_interval)
        self.system.setName("system")
        self.system.setServiceParent(self)
        self._own_authenticator = authenticator is None
        self.authenticator = authenticator or _authenticator(settings)
        self.tls = tls_options(settings)
        self._add_doors()

    def _add_doors(self) -> None:
        doors = {door.name: door for door in BUILT_IN}
        wanted = {name: dict(self.settings.doors.get(name, {})) for name in doors}
        if self.settings.doors.keys() - doors.keys():
            doors.update((door.name, door) for door in plugged_in())
        for name, options in self.settings.doors.items():
            if name not in doors:
                raise SettingsError(
                    f"doors.{name}: no such door; installed are {', '.join(sorted(doors))}"
                )
            wanted[name] = options
        for name, options in wanted.items():
            service = doors[name].open(self, options)
            if service is not None:
                service.setName(name)
                service.setServiceParent(self)

    @property
    def port(self) -> int:
        """The port of the text door, once it listens."""
        return int(self.getServiceNamed("nats").port)

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
        if self._own_authenticator:
            self.authenticator = _authenticator(settings)
        for service in self:
            if hasattr(service, "reload"):
                service.reload(settings, self.authenticator)

    def lame_duck(self) -> Deferred[Any]:
        """Send the clients elsewhere, gently; fires when the last has gone."""
        grace = self.settings.lame_duck
        return DeferredList(
            [s.enter_lame_duck(grace) for s in self if hasattr(s, "enter_lame_duck")]
        )


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
