"""The broker as a service: options, wiring, signals. `twistd rtmb` calls `makeService`.

`Broker` is also what an application embeds: give it `Settings` and a reactor, and start it.
"""

from __future__ import annotations

import ctypes
import gc
import ipaddress
import os
import resource
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL.crypto import X509, PKey
from OpenSSL.SSL import Error as SSLError
from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.ssl import CertificateOptions
from twisted.logger import ILogObserver, Logger
from twisted.python import usage
from twisted.python.logfile import LogFile

from rtmb import __version__, config
from rtmb.auth import Authenticator
from rtmb.config import FIELDS, Settings, SettingsError
from rtmb.doors import BUILT_IN, plugged_in
from rtmb.hub import Hub
from rtmb.interfaces import IAuthenticator
from rtmb.journal import Journal
from rtmb.logs import json_observer
from rtmb.subjects import is_pattern
from rtmb.system import System

#: glibc's names for what `mallopt` sets.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: Young objects before Python looks for cycles: the bulk walk makes many, and none in cycles.
_GC_THRESHOLD = 20_000


def _describe(name: str) -> str:
    default = FIELDS[name].default
    shown = "" if default in ("", False, ()) else f" [{default}]"
    return f"{FIELDS[name].metadata['help']}{shown}"


class Options(usage.Options):
    """The command line of `twistd rtmb`, made from `rtmb.config.Settings`."""

    longdesc = (
        "A real-time message broker. Every option is also a key of the TOML file "
        "(--max-payload is max_payload) and a variable of the environment (RTMB_MAX_PAYLOAD)."
    )
    optParameters = [
        ["config", "c", None, "TOML file with settings; see rtmb.example.toml"],
        *(
            [name.replace("_", "-"), None, None, _describe(name)]
            for name, f in FIELDS.items()
            if not isinstance(f.default, (bool, tuple))
        ),
    ]
    optFlags = [
        [name.replace("_", "-"), None, _describe(name)]
        for name, f in FIELDS.items()
        if isinstance(f.default, bool)
    ]

    def __init__(self) -> None:
        super().__init__()
        self.repeated: dict[str, list[str]] = {}

    def parseOptions(self, options: list[str] | None = None) -> None:
        """As usual, but what is wrong is one line and exit status 1."""
        try:
            super().parseOptions(options)
        except usage.UsageError as error:
            raise SystemExit(f"rtmb: {error}; see twistd rtmb --help") from None

    def opt_version(self) -> None:
        """Print the version and exit."""
        print(f"rtmb {__version__}")
        raise SystemExit(0)

    def load(self) -> Settings:
        """The settings as they are at this moment: the file is read each time."""
        given = {}
        for name, f in FIELDS.items():
            if isinstance(f.default, tuple):
                value = self.repeated.get(name)
            else:
                value = self[name.replace("_", "-")]
            if value is not None and not (isinstance(f.default, bool) and not value):
                given[name] = value
        return config.load(given, self["config"], os.environ)


def _repeatable(name: str) -> Callable[[Options, str], None]:
    def collect(self: Options, value: str) -> None:
        self.repeated.setdefault(name, []).append(value)

    collect.__doc__ = f"{_describe(name)}; may be given several times"
    return collect


for _name, _field in FIELDS.items():
    if isinstance(_field.default, tuple):
        setattr(Options, f"opt_{_name}", _repeatable(_name))


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
        self.tls = _tls(settings)
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


class TwistdBroker(Broker):
    """A broker that has the process to itself: signals, descriptors, the log's format."""

    def __init__(self, options: Options) -> None:
        self._options = options
        super().__init__(options.load())

    def setServiceParent(self, parent: Any) -> None:
        """twistd takes its log observer from the application, which is our parent."""
        if self.settings.log_format == "json":
            parent.setComponent(ILogObserver, json_observer(self._log_target()))
        super().setServiceParent(parent)

    def _log_target(self) -> Any:
        """Where twistd would write its log: standard output, or a file that SIGUSR1 rotates."""
        twistd: Any = self._options.parent or {}
        name = twistd.get("logfile") or ("-" if twistd.get("nodaemon", True) else "twistd.log")
        if name == "-":
            return sys.stdout
        file = LogFile.fromFullPath(name, rotateLength=None)
        self._on_signal(signal.SIGUSR1, file.rotate)
        return file

    def privilegedStartService(self) -> None:
        # Before anyone can connect, and so know that there is someone to send signals to.
        self._on_signal(signal.SIGHUP, self._reload_file)
        self._on_signal(signal.SIGUSR2, self._retire)
        try:
            super().privilegedStartService()
        except SettingsError as error:
            raise SystemExit(f"rtmb: {error}") from None

    def startService(self) -> None:
        _raise_descriptor_limit(self.settings.max_connections)
        _keep_freed_memory()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        super().startService()

    def _on_signal(self, number: int, call: Callable[[], None]) -> None:
        signal.signal(number, lambda *_: self.reactor.callFromThread(call))

    def _reload_file(self) -> None:
        try:
            settings = self._options.load()
        except SettingsError as error:
            self.log.error("not reloaded, the old settings stay: {error}", error=error)
            return
        self.reload(settings)
        self.log.info("settings reloaded")

    def _retire(self) -> None:
        self.log.info("lame duck mode: {n} clients", n=len(self.hub.clients))
        self.lame_duck().addCallback(lambda _: self.reactor.stop())


def makeService(options: Options) -> TwistdBroker:
    """What `twistd rtmb` runs."""
    try:
        return TwistdBroker(options)
    except SettingsError as error:
        raise SystemExit(f"rtmb: {error}") from None


def _authenticator(settings: Settings) -> Authenticator:
    return Authenticator(
        settings.access, user=settings.user, password=settings.password, token=settings.token
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


def _keep_freed_memory() -> None:
    """Let the C library keep some freed memory. Left to itself it may give each buffer that was
    read or sent back to the system and ask for it again, which halves the throughput (benchmarks:
    1,000 connections held, 1→1 at 16 KiB)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library, with habits of its own
    mallopt(_M_TRIM_THRESHOLD, 16 << 20)
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)


def _raise_descriptor_limit(connections: int) -> None:
    """Allow as many descriptors as the system lets us, up to what the connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tls(settings: Settings) -> CertificateOptions | None:
    """TLS as the settings have it, or None."""
    if not settings.tls_cert:
        return None
    name = "tls_cert"
    try:
        chain = x509.load_pem_x509_certificates(Path(settings.tls_cert).read_bytes())
        name = "tls_key"
        key = load_pem_private_key(Path(settings.tls_key).read_bytes(), None)
        name = "tls_ca"
        authorities = None
        if settings.tls_ca:
            found = x509.load_pem_x509_certificates(Path(settings.tls_ca).read_bytes())
            authorities = [X509.from_cryptography(certificate) for certificate in found]
        name = "tls_cert and tls_key"
        first, *others = [X509.from_cryptography(certificate) for certificate in chain]
        options = CertificateOptions(
            privateKey=PKey.from_cryptography_key(key),  # type: ignore[arg-type]
            certificate=first,
            extraCertChain=others,
            verify=authorities is not None,
            caCerts=authorities,
            requireCertificate=settings.tls_verify,
        )
        options.getContext()
    except (OSError, ValueError, TypeError, SSLError) as error:
        raise SettingsError(f"{name}: {error or 'do not belong together'}") from None
    return options
