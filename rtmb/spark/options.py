"""Options of the source and the sink: each with its default and what it may be, all checked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from rtmb.core.subjects import hears, is_subject
from rtmb.spark.transport import BrokerLogin

#: What Spark itself puts among the options.
_SPARKS_OWN = ("path", "checkpointlocation", "queryname", "header", "__read_options")


class OptionError(ValueError):
    """An option is wrong; the text says which, and what would be right."""


@dataclass(frozen=True)
class Option:
    """One option. `parse` raises `ValueError` with what was expected."""

    name: str
    default: Any
    parse: Callable[[str], Any]


# What a value may be


def text(value: str) -> str:
    return value


def names(value: str) -> tuple[str, ...]:
    """Subjects, with commas between."""
    found = tuple(part.strip() for part in value.split(","))
    if not all(found) or any(re.search(r"\s", part) for part in found):
        raise ValueError("a subject or pattern, or several with commas between")
    return found


def names_or_none(value: str) -> tuple[str, ...]:
    """Names of columns, with commas between; none is none of them."""
    return () if value.strip() == "none" else tuple(part.strip() for part in value.split(","))


def whole(value: str) -> int:
    if not re.fullmatch(r"\d{1,18}", value.strip()):
        raise ValueError("a whole number")
    return int(value)


def positive(value: str) -> int:
    if not re.fullmatch(r"\d{1,18}", value.strip()) or int(value) == 0:
        raise ValueError("a whole number above 0")
    return int(value)


def seconds(value: str) -> float:
    """Seconds, or a time such as 500ms, 30s, 5m, 1h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", value.strip())
    if found is None:
        raise ValueError("seconds, or a time such as 500ms, 30s or 5m")
    return float(found[1]) * {"ms": 0.001, "m": 60.0, "h": 3600.0}.get(found[2] or "s", 1.0)


def switch(value: str) -> bool:
    word = value.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def one_of(*choices: str) -> Callable[[str], str]:
    def choice(value: str) -> str:
        if value not in choices:
            raise ValueError(" or ".join(choices) + nearest(value, choices))
        return value

    return choice


def servers(value: str) -> tuple[str, ...]:
    found = tuple(part.strip().rstrip("/") for part in value.split(",") if part.strip())
    for server in found:
        try:
            parts = urlsplit(server)
            well = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            well = False
        if not well or parts.path or parts.query:
            raise ValueError("the broker's HTTP door, such as http://127.0.0.1:8080")
    if not found:
        raise ValueError("the broker's HTTP door, such as http://127.0.0.1:8080")
    return found


def position(value: str) -> str | int | float:
    """A word, a number of a message, or a time, as seconds since 1970."""
    value = value.strip()
    if value in ("earliest", "latest"):
        return value
    if re.fullmatch(r"\d{1,18}", value):
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(
            "earliest, latest, a sequence number, or a time such as 2030-01-01T00:00:00Z"
            + nearest(value, ("earliest", "latest"))
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


# The options

COMMON = (
    Option("servers", ("http://127.0.0.1:8080",), servers),
    Option("apiKey", "", text),
    Option("user", "", text),
    Option("password", "", text),
    Option("token", "", text),
    Option("caFile", "", text),
    Option("certFile", "", text),
    Option("keyFile", "", text),
    Option("retries", 10, whole),
    Option("timeout", 30.0, seconds),
)
SOURCE = (
    *COMMON,
    Option("subject", (">",), names),
    Option("startingPosition", "earliest", position),
    Option("endingPosition", "latest", position),
    Option("maxMessagesPerTrigger", 100_000, positive),
    Option("maxBytesPerTrigger", None, positive),
    Option("minMessagesPerTrigger", 1, positive),
    Option("maxTriggerDelay", 900.0, seconds),
    Option("minPartitions", 1, positive),
    Option("onDataLoss", "fail", one_of("fail", "skip", "record")),
    Option("onEpochChange", "fail", one_of("fail", "earliest")),
    Option("consumer", "", text),
    Option("leaseTtl", 60.0, seconds),
    Option("longPollMs", 500, whole),
    Option("includeHeaders", True, switch),
    Option("payload", "", one_of("binary", "text", "json", "msgpack")),
    Option("schema", "", text),
    Option("inferMessages", 1000, positive),
    Option("metadata", None, names_or_none),
    Option("mode", "", one_of("permissive", "drop", "fail", "deadLetter")),
    Option("deadLetter", "", text),
)
SINK = (
    *COMMON,
    Option("subject", "", text),
    Option("idColumn", "", text),
    Option("payload", "", one_of("binary", "text", "json", "msgpack")),
    Option("mode", "", one_of("fail", "drop", "deadLetter")),
    Option("deadLetter", "", text),
    Option("maxInFlight", 8, positive),
)
#: Their values are shown to nobody.
_SECRETS = ("apiKey", "password", "token")


class SparkOptions(dict[str, Any]):
    """Values by name, checked; those not given have their defaults."""

    @property
    def access(self) -> BrokerLogin:
        """Where the broker is and how to get in."""
        return BrokerLogin(
            servers=self["servers"],
            api_key=self["apiKey"],
            user=self["user"],
            password=self["password"],
            token=self["token"],
            ca_file=self["caFile"],
            cert_file=self["certFile"],
            key_file=self["keyFile"],
            retries=self["retries"],
            timeout=self["timeout"],
        )


def read(given: Mapping[str, str], known: tuple[Option, ...]) -> SparkOptions:
    """The options as they are used, or an `OptionError`."""
    by_key = {option.name.lower(): option for option in known}
    found = SparkOptions({option.name: option.default for option in known})
    for key, value in given.items():
        option = by_key.get(key.lower())
        if option is None:
            if key.lower() in _SPARKS_OWN:
                continue
            near = nearest(key.lower(), by_key, {k: o.name for k, o in by_key.items()})
            listed = ", ".join(o.name for o in known)
            raise OptionError(f"rtmb has no option {key}{near or f'; there are {listed}'}")
        try:
            found[option.name] = option.parse(str(value))
        except ValueError as error:
            shown = "" if option.name in _SECRETS else f", not {value!r}"
            raise OptionError(f"option {option.name}: expected {error}{shown}") from None
    _check(found)
    return found


def _check(found: SparkOptions) -> None:
    """What no single value shows."""
    _check_mode(found)
    if bool(found["certFile"]) != bool(found["keyFile"]):
        raise OptionError("options certFile and keyFile go together")
    if found["password"] and not found["user"]:
        raise OptionError("option password needs user")
    if found.get("minMessagesPerTrigger", 0) > found.get("maxMessagesPerTrigger", 0):
        raise OptionError("minMessagesPerTrigger is more than maxMessagesPerTrigger")


def _check_mode(found: SparkOptions) -> None:
    """What becomes of what is wrong; who names a subject for dead letters wants them."""
    subject, mode = found["deadLetter"], found["mode"]
    if subject and mode not in ("", "deadLetter"):
        raise OptionError(f"option deadLetter is for the mode deadLetter, not for {mode}")
    if mode == "deadLetter" and not subject:
        raise OptionError("mode deadLetter needs the option deadLetter: a subject")
    if subject and not is_subject(subject):
        raise OptionError(f"option deadLetter: not a subject to publish on: {subject!r}")
    is_source = "startingPosition" in found
    if subject and is_source and any(hears(pattern, subject) for pattern in found["subject"]):
        raise OptionError(f"option deadLetter: the source would read {subject} itself")
    if not mode:
        found["mode"] = "deadLetter" if subject else "permissive" if is_source else "fail"


def nearest(word: str, words: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    near = difflib.get_close_matches(word, list(words), 1)
    return f"; did you mean {(shown or {}).get(near[0], near[0])}?" if near else ""
