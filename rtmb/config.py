"""Settings: every option once, with its default, its reason and where it may come from.

An option is given on the command line (`--max-payload`), in the environment (`RTMB_MAX_PAYLOAD`) or
in a TOML file (`max_payload`); the first of these wins. What only a file can say, users and other
packages' doors, stands in its tables `[auth]` and `[doors.<name>]`.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twisted.logger import Logger

from rtmb.auth import AuthTable, AuthTableError

log = Logger()


class SettingsError(Exception):
    """A setting is wrong; the text is one line for the person who wrote it."""


# What a value may look like. Each takes text (command line, environment) or a TOML value.

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+)\s*(?:([KMG])(?:i?B)?|B)?", re.IGNORECASE)


def whole(value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,18}", str(value).strip()):
        raise ValueError("a whole number")
    return int(value)


def positive(value: Any) -> int:
    if (number := whole(value)) == 0:
        raise ValueError("a whole number above 0")
    return number


def port_number(value: Any) -> int:
    try:
        number = whole(value)
    except ValueError:
        number = 65536
    if number > 65535:
        raise ValueError("a port from 0 to 65535")
    return number


def size(value: Any) -> int:
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("a number of bytes such as 4096, 64KiB or 1MiB")
    return int(match[1]) * _UNITS[(match[2] or "").upper()]


def positive_size(value: Any) -> int:
    if (number := size(value)) == 0:
        raise ValueError("more than 0 bytes")
    return number


def seconds(value: Any) -> float:
    try:
        number = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < 1e9:
        raise ValueError("a number of seconds above 0")
    return number


def switch(value: Any) -> bool:
    word = str(value).strip().lower()
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off", ""):
        return False
    raise ValueError("true or false")


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text in quotes")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Several: a list in TOML, the option repeated, or words with commas or spaces between."""
    if isinstance(value, str):
        value = re.split(r"[,\s]+", value.strip()) if value.strip() else []
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and v for v in value):
        raise ValueError("a list of texts")
    return tuple(value)


def one_of(*choices: str) -> Callable[[Any], str]:
    def choice(value: Any) -> str:
        if value not in choices:
            raise ValueError(" or ".join(choices))
        return str(value)

    return choice


def option(default: Any, parse: Callable[[Any], Any], help: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"parse": parse, "help": help})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that can be set. Comments say why a default is what it is."""

    # Where to listen. Loopback: a broker without passwords should not be found by strangers.
    interface: str = option("127.0.0.1", text, "Address to listen on")
    # What every NATS client tries when told nothing.
    port: int = option(4222, port_number, "Port of the text door; 0 picks a free one")
    # Shown to clients and in the log; empty: rtmb- and a few letters of the server's id.
    name: str = option("", text, "Name of this broker")

    # Who may come in. One user or one token; more of them in [[auth.users]].
    user: str = option("", text, "User that clients must give")
    password: str = option("", text, "Password of that user, plain or a bcrypt hash", secret=True)
    token: str = option("", text, "Token that clients must give", secret=True)
    # NATS's own: enough for a slow network, too short to hold many sockets open for nothing.
    auth_timeout: float = option(2.0, seconds, "Seconds to authenticate, and for a TLS handshake")

    tls_cert: str = option("", text, "Certificate file (PEM, chain included): turns TLS on")
    tls_key: str = option("", text, "Private key file (PEM)")
    tls_ca: str = option("", text, "Authorities that clients' certificates, if given, must be from")
    tls_verify: bool = option(False, switch, "Require a client certificate")
    tls_first: bool = option(False, switch, "Do the TLS handshake before INFO")

    # NATS's limits, so that what fits there fits here.
    max_payload: int = option(1 << 20, positive_size, "Largest payload, headers included")
    max_connections: int = option(65_536, whole, "Most connections at once")
    max_control_line: int = option(4096, positive_size, "Longest protocol line")
    # Room for a burst of a second or so; what a client that never reads can cost.
    max_pending: int = option(64 << 20, positive_size, "Most bytes queued for one client")
    max_subscriptions: int = option(0, whole, "Most subscriptions of one client; 0: no limit")

    # Often enough to find dead peers in minutes, rarely enough to cost nothing.
    ping_interval: float = option(120.0, seconds, "Seconds without traffic before a PING")
    ping_max: int = option(2, whole, "PINGs that may stay unanswered")

    # Enough for a client that comes late to see what was going on.
    history: int = option(100, whole, "Messages remembered of each subject; 0: none")
    # Some 50,000 subjects with their last values, or a second of heavy traffic.
    history_bytes: int = option(
        128 << 20, size, "Most memory for them all; subjects longest unused are forgotten first"
    )

    # The HTTP door: REST, WebSocket, monitoring and the page.
    http_port: int = option(8080, port_number, "Port of the HTTP door; 0 picks a free one")
    no_http: bool = option(False, switch, "Turn the HTTP door off")
    api_key: str = option("", text, "Key that HTTP clients must give (also API_KEY)", secret=True)
    # A page of another site must not read this broker through its visitor's browser.
    cors_origin: tuple[str, ...] = option(
        (), texts, "Site whose pages may use the HTTP door, such as https://example.org, or *"
    )
    # Small: these are for people's eyes, who want what is new, not what is old.
    ws_queue: int = option(100, positive, "Messages queued for a WebSocket that does not read")
    ws_stuck: float = option(5.0, seconds, "Seconds without reading before such a one is closed")

    # The msgpack door.
    msgpack_port: int = option(36_912, port_number, "Port of the msgpack door; 0 picks a free one")
    no_msgpack: bool = option(False, switch, "Turn the msgpack door off")
    # A second or so of busy traffic, at a cost nobody notices.
    msgpack_buffer: int = option(10_000, positive, "Recent messages kept for its slow clients")
    msgpack_buffer_bytes: int = option(4 << 20, positive_size, "Most memory for them")

    # lbroker's.
    metrics_interval: float = option(10.0, seconds, "Seconds between !system/metrics/... messages")

    # The journal, which Spark reads. Nothing is kept unless asked for.
    journal: tuple[str, ...] = option((), texts, "Pattern of subjects to keep in the journal")
    # A few minutes of busy traffic.
    journal_bytes: int = option(256 << 20, positive_size, "Most memory for the journal")
    journal_messages: int = option(0, whole, "Most messages in the journal; 0: no limit")
    # Long enough for a restarted Spark query to come back and repeat itself.
    dedup_window: float = option(120.0, seconds, "Seconds in which a repeated message id is known")

    # How long closing may take.
    drain_timeout: float = option(5.0, seconds, "Seconds to flush clients when stopping")
    lame_duck: float = option(30.0, seconds, "Seconds over which SIGUSR2 closes the clients")

    log_format: str = option("text", one_of("text", "json"), "Log lines for people or machines")

    # Only a file can say these.
    auth: AuthTable = field(default_factory=AuthTable, repr=False)
    doors: Mapping[str, dict[str, Any]] = field(default_factory=dict, repr=False)


FIELDS = {f.name: f for f in dataclasses.fields(Settings) if "parse" in f.metadata}


def _nearest(word: str, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(words), 1)
    return f"; did you mean {near[0]}?" if near else ""


def unknown(where: str, key: str, known: Iterable[str]) -> SettingsError:
    return SettingsError(f"{where}: unknown key {key}{_nearest(key, known)}")


def parse_value(name: str, value: Any, where: str) -> Any:
    """One option's value, or a line that says where it stands and what it should be."""
    try:
        return FIELDS[name].metadata["parse"](value)
    except ValueError as error:
        shown = "" if not FIELDS[name].repr else f", not {value!r}"
        raise SettingsError(f"{where}: expected {error}{shown}") from None


def load_file(path: str) -> dict[str, Any]:
    """The settings that a TOML file gives."""
    try:
        with Path(path).open("rb") as file:
            tree = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    return read_table(tree, path)


def read_table(tree: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings that a table such as a TOML file's gives; `where` says whose it is."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if key == "auth":
            values["auth"] = _auth_table(where, value)
        elif key == "doors":
            if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
                raise SettingsError(f"{where}: doors must be tables such as [doors.echo]")
            values["doors"] = value
        elif key in FIELDS:
            values[key] = parse_value(key, value, f"{where}: {key}")
        else:
            raise unknown(where, key, [*FIELDS, "auth", "doors"])
    return values


def _auth_table(path: str, table: Any) -> AuthTable:
    try:
        return AuthTable.from_table(table)
    except AuthTableError as error:
        raise SettingsError(f"{path}: {error}") from None


#: Variables that are no options: where the file is, where the `rtmb` command finds a broker, and
#: whether compiled modules are left aside.
_NO_OPTIONS = ("RTMB_CONFIG", "RTMB_HTTP", "RTMB_PURE")

#: What Kubernetes sets in a pod for each Service whose name begins with rtmb. The variable of a
#: Service's port may have an option's name, and is told by its value.
_SERVICE_LINK = re.compile(
    r"RTMB_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)
_SERVICE_PORT_VALUE = re.compile(r"(tcp|udp|sctp)://\S+")


def from_environment(environment: Mapping[str, str], given: Collection[str] = ()) -> dict[str, Any]:
    """The settings that `RTMB_…` variables give, except those that are `given` elsewhere."""
    values: dict[str, Any] = {}
    service_links: list[str] = []
    for variable, value in environment.items():
        if not variable.startswith("RTMB_") or variable in _NO_OPTIONS:
            continue
        name = variable.removeprefix("RTMB_").lower()
        if _is_service_link(variable, value):
            service_links.append(variable)
        elif name not in FIELDS:
            log.warn(
                "environment: unknown variable {variable}{hint}",
                variable=variable,
                hint=_nearest(variable, [f"RTMB_{f.upper()}" for f in FIELDS]),
            )
        elif name not in given:
            values[name] = parse_value(name, value, f"environment: {variable}")
    if service_links:
        log.info(
            "environment: {variables} skipped: Kubernetes sets these for a Service, they are no"
            " options",
            variables=", ".join(sorted(service_links)),
        )
    if environment.get("API_KEY") and "api_key" not in values:
        values["api_key"] = environment["API_KEY"]
    return values


def _is_service_link(variable: str, value: str) -> bool:
    if _SERVICE_LINK.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and bool(_SERVICE_PORT_VALUE.fullmatch(value))


def load(
    given: Mapping[str, Any],
    config: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from the command line, then the environment, then a file, then the defaults."""
    environment = environment or {}
    config = config or environment.get("RTMB_CONFIG")
    values = load_file(config) if config else {}
    values.update(from_environment(environment, given))
    for name, value in given.items():
        values[name] = parse_value(name, value, "--" + name.replace("_", "-"))
    return checked(values)


def checked(values: Mapping[str, Any]) -> Settings:
    """The settings of values that are right by themselves, if they are so together."""
    settings = Settings(**values)
    _check(settings)
    return settings


def _check(settings: Settings) -> None:
    """What no single value shows."""
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise SettingsError("tls_cert and tls_key go together")
    if (settings.tls_ca or settings.tls_verify or settings.tls_first) and not settings.tls_cert:
        raise SettingsError("tls_ca, tls_verify and tls_first need tls_cert and tls_key")
    if settings.tls_verify and not settings.tls_ca:
        raise SettingsError("tls_verify needs tls_ca")
    for name in ("tls_cert", "tls_key", "tls_ca"):
        path = getattr(settings, name)
        if path and not Path(path).is_file():
            raise SettingsError(f"{name}: no such file: {path}")
    if settings.password and not settings.user:
        raise SettingsError("password needs user")
    if settings.user and not settings.password:
        raise SettingsError("user needs password")
    if settings.max_pending < settings.max_payload:
        raise SettingsError("max_pending must be at least max_payload")


def example() -> str:
    """`rtmb.example.toml`: every option with its default and what it is for."""
    lines = [
        "# Every option of rtmb with its default. Each is also an option of the command line",
        "# (max_payload is --max-payload) and a variable of the environment (RTMB_MAX_PAYLOAD);",
        "# the command line wins over the environment, and that over this file.",
        "",
    ]
    for name, f in FIELDS.items():
        default = f.default
        shown = str(default).lower() if isinstance(default, bool) else repr(default)
        if isinstance(default, str):
            shown = f'"{default}"'
        elif isinstance(default, tuple):
            shown = "[]"
        elif isinstance(default, int) and default >= 1 << 20 and default % (1 << 20) == 0:
            shown = f'"{default >> 20}MiB"'
        lines += [f"# {f.metadata['help']}.", f"#{name} = {shown}", ""]
    return "\n".join(lines) + _EXAMPLE_TABLES


_EXAMPLE_TABLES = """\
# Users with their permissions. Patterns may hold wildcards; deny wins over allow; no allow list
# means all is allowed. A subscription that is wider than a deny list is let in, and the messages
# that the list names are left out.
#
#[auth]
#no_auth_user = "guest"           # who a client is that gives no credentials at all
#
#[[auth.users]]
#user = "alice"
#password = "$2b$10$..."          # plain, or a bcrypt hash
#expires = 2030-01-01T00:00:00Z   # optional: disconnected then, and refused from then on
#
#[[auth.users]]
#nkey = "U..."                    # a public user nkey; the client signs a nonce
#permissions.publish.allow = ["orders.>"]
#permissions.publish.deny = ["orders.secret.>"]
#permissions.subscribe.allow = ["orders.*", "_INBOX.>", "work.* workers"]   # pattern [queue]
#permissions.subscribe.deny = ["orders.internal"]
#
#[[auth.users]]
#user = "guest"
#password = ""
#permissions.publish.deny = [">"]

# A door of another package; its name and keys are its own.
#
#[doors.echo]
#port = 7777
"""
