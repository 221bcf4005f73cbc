"""What `twistd rtmb` runs: the command line, signals, the log's format."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from twisted.logger import ILogObserver
from twisted.python import usage
from twisted.python.logfile import LogFile

from rtmb import __version__, compiled, config, process
from rtmb.broker import Broker
from rtmb.config import FIELDS, Settings, SettingsError
from rtmb.logs import json_observer


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
        print(f"rtmb {__version__} ({compiled.form()})")
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
        process.prepare(self.settings.max_connections)
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
        self.log.info("lame duck mode: {n} clients", n=len(self.clients))
        self.enter_lame_duck().addCallback(lambda _: self.reactor.stop())


def makeService(options: Options) -> TwistdBroker:
    """What `twistd rtmb` runs."""
    try:
        return TwistdBroker(options)
    except SettingsError as error:
        raise SystemExit(f"rtmb: {error}") from None
