"""What the commands have in common: how their help looks, and the options for connecting."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from rtmb.config import positive_size
from rtmb.core.subjects import is_pattern, is_subject

DEFAULT_URL = "nats://127.0.0.1:4222"
DEFAULT_HTTP = "http://127.0.0.1:8080"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Command(click.Command):
    """A command whose help ends with examples, line for line as they are written."""

    def __init__(self, *arguments: Any, examples: str = "", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples.strip("\n").splitlines():
                    formatter.write(f"  {line}\n" if line else "\n")


class Subject(click.ParamType[str]):
    """A subject to publish on, or a pattern to subscribe to."""

    def __init__(self, *, pattern: bool = False) -> None:
        self.name = "pattern" if pattern else "subject"
        self._valid = is_pattern if pattern else is_subject

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if not self._valid(value):
            hint = "tokens joined by dots, without spaces"
            if self.name == "subject":
                hint += " or wildcards"
            self.fail(f"{value!r} is no {self.name}: {hint}", param, ctx)
        return str(value)


class Seconds(click.ParamType[float]):
    """A time: 2, 0.5, 200ms, 5s, 3m, 1h."""

    name = "seconds"
    _units = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h|)", str(value))
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no time above 0, such as 0.5, 200ms or 3m", param, ctx)
        return float(match[1]) * self._units[match[2]]


class Size(click.ParamType[int]):
    """A number of bytes: 128, 64KiB, 1MiB."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return positive_size(value)
        except ValueError as error:
            self.fail(f"{value!r} is not {error}", param, ctx)


class Count(click.ParamType[int]):
    """A whole number."""

    name = "n"

    def __init__(self, least: int) -> None:
        self._least = least

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if not re.fullmatch(r"\d{1,15}", str(value)) or int(value) < self._least:
            self.fail(f"{value!r} is no whole number from {self._least} on", param, ctx)
        return int(value)


class HeaderField(click.ParamType[tuple[str, str]]):
    name = "name=value"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not re.fullmatch(r"[!-9;-~]+", key) or re.search(r"[\r\n]", text):
            self.fail(f"{value!r} is no header such as Trace-Id=42", param, ctx)
        return key, text


SUBJECT, PATTERN, SECONDS, HEADER = Subject(), Subject(pattern=True), Seconds(), HeaderField()
COUNT, COUNT_OR_NONE = Count(1), Count(0)


@dataclass(frozen=True)
class Target:
    """A server and who we are to it."""

    url: str = DEFAULT_URL
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @property
    def shown(self) -> str:
        """The address without its secrets."""
        parts = urlsplit(self.url if "://" in self.url else f"nats://{self.url}")
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


@dataclass(frozen=True)
class HttpTarget:
    """A broker's HTTP door and who we are there."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


_FILE = click.Path(exists=True, dir_okay=False)
_LOGIN_OPTIONS = (
    click.option("--user", envvar="NATS_USER", help="User."),
    click.option("--password", envvar="NATS_PASSWORD", help="Password of the user."),
    click.option("--token", envvar="NATS_TOKEN", help="Token."),
)
_TLS_OPTIONS = (
    click.option("--tls-ca", envvar="NATS_CA", type=_FILE,
                 help="Authority that the server's certificate comes from (PEM)."),
    click.option("--tls-cert", envvar="NATS_CERT", type=_FILE, help="Our certificate."),
    click.option("--tls-key", envvar="NATS_KEY", type=_FILE, help="Its private key."),
)  # fmt: skip
_NATS_OPTIONS = (
    click.option("-s", "--server", envvar="NATS_URL", default=DEFAULT_URL, metavar="URL",
                 show_default=True, help="Server; several with commas between."),
    *_LOGIN_OPTIONS,
    click.option("--nkey", envvar="NATS_NKEY", type=_FILE, help="File with an nkey seed."),
    *_TLS_OPTIONS,
)  # fmt: skip
_HTTP_OPTIONS = (
    click.option("--http", envvar="RTMB_HTTP", default=DEFAULT_HTTP, metavar="URL",
                 show_default=True, help="The broker's HTTP door."),
    click.option("--api-key", envvar="API_KEY", help="Key of the HTTP door."),
    *_LOGIN_OPTIONS,
    *_TLS_OPTIONS,
)  # fmt: skip
#: Of both: what goes into the target under its own name.
_COMMON = ("user", "password", "token", "tls_ca", "tls_cert", "tls_key")


def connection_options(command: Decorated) -> Decorated:
    """Gives `command` the options for connecting, as one argument: `target`."""

    @functools.wraps(command)
    def with_target(*arguments: Any, **options: Any) -> Any:
        nkey = options.pop("nkey")
        target = Target(
            url=options.pop("server"),
            nkey_seed=_seed(nkey) if nkey else None,
            **{name: options.pop(name) for name in _COMMON},
        )
        return command(*arguments, target=target, **options)

    for option in reversed(_NATS_OPTIONS):
        with_target = option(with_target)
    return with_target  # type: ignore[return-value]


def http_options(command: Decorated) -> Decorated:
    """Gives `command` the options for the HTTP door, as one argument: `target`."""

    @functools.wraps(command)
    def with_target(*arguments: Any, **options: Any) -> Any:
        url = options.pop("http")
        if not url.startswith(("http://", "https://")):
            raise click.BadParameter(f"{url!r} begins with neither http:// nor https://")
        names = ("api_key", *_COMMON)
        target = HttpTarget(url=url.rstrip("/"), **{name: options.pop(name) for name in names})
        return command(*arguments, target=target, **options)

    for option in reversed(_HTTP_OPTIONS):
        with_target = option(with_target)
    return with_target  # type: ignore[return-value]


def _seed(path: str) -> str:
    """The seed in a file; other lines, as in a .creds file, are left out."""
    match = re.search(r"^SU[A-Z2-7]{56}$", Path(path).read_text(errors="replace"), re.MULTILINE)
    if match is None:
        raise click.BadParameter(f"{path} holds no user seed (SU…)", param_hint="--nkey")
    return match[0]
