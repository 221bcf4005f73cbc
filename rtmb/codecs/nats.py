"""The NATS text protocol, in both directions: bytes to operations and back. No I/O, no state.

The parser's map, with the names that other NATS brokers give its states::

    OP_START ──letters──▶ OP_C, OP_CO, … OP_CONNECT ──space──▶ CONNECT_ARG ──\\n──▶ OP_START
             ──letters──▶ OP_P, OP_PI, OP_PIN, OP_PING ──\\n──▶ OP_START
             ──letters──▶ OP_P, OP_PU, OP_PUB ──space──▶ PUB_ARG ──\\n──▶ MSG_PAYLOAD
             ──letters──▶ OP_S, OP_SU, OP_SUB ──space──▶ SUB_ARG ──\\n──▶ OP_START
             …
    MSG_PAYLOAD ──as many bytes as PUB_ARG said──▶ MSG_END_R ──\\r──▶ MSG_END_N ──\\n──▶ OP_START

The letters are matched without regard to case, spaces and tabs separate, ``\\r`` before ``\\n`` may
be left out. All states up to the ``\\n`` are one line, so `split_line` does them in one step
(`LineReceiver`'s line mode); MSG_PAYLOAD and the two after it are raw mode. Of a line that has not
come to its end, `may_become_operation` says whether it still can be one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

CRLF = b"\r\n"

PING = b"PING\r\n"
PONG = b"PONG\r\n"
OK = b"+OK\r\n"

#: What a client may say to a server.
CLIENT_OPERATIONS = (b"CONNECT", b"PING", b"PONG", b"SUB", b"UNSUB", b"PUB", b"HPUB")
#: What a server may say to a client.
SERVER_OPERATIONS = (b"INFO", b"PING", b"PONG", b"MSG", b"HMSG", b"+OK", b"-ERR")

_HEADER_START = b"NATS/1.0"


class ProtocolError(Exception):
    """Something the other side said is wrong. `text` is what `-ERR` tells it."""

    def __init__(self, text: str, *, closes: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.closes = closes


def states(operations: Iterable[bytes]) -> frozenset[bytes]:
    """The keyword states of the map above: OP_C is ``b"C"``, OP_CO is ``b"CO"``, …"""
    return frozenset(op[:n] for op in operations for n in range(len(op) + 1))


_CLIENT_STATES = states(CLIENT_OPERATIONS)


def may_become_operation(start: bytes) -> bool:
    """Whether a line that begins with `start` can still be something a client may say."""
    words = start[:16].split(None, 1)
    if not words:
        return True  # OP_START: a blank so far
    word = words[0].upper()
    if len(words) == 1 and not start[:16][-1:].isspace():
        return word in _CLIENT_STATES
    return word in CLIENT_OPERATIONS


def split_line(line: bytes) -> tuple[bytes, bytes]:
    """A control line as its operation, in capitals, and its arguments.

    >>> split_line(b"sub  orders.*\\t1\\r")
    (b'SUB', b'orders.*\\t1')
    """
    parts = line.split(None, 1)
    if not parts:
        return b"", b""
    return parts[0].upper(), parts[1].rstrip() if len(parts) == 2 else b""


def parse_json_object(text: bytes) -> dict[str, Any]:
    """The argument of CONNECT or INFO."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        raise ProtocolError("CONNECT needs one JSON object")
    return found


class PublishArguments(NamedTuple):
    """The arguments of PUB and HPUB (and, with `sid`, of MSG and HMSG)."""

    subject: bytes
    reply: bytes | None
    header_size: int
    size: int  # headers included
    sid: bytes = b""


def _sizes(operation: str, *fields: bytes) -> tuple[int, ...]:
    # 9 digits: no int() of an endless line, and no size that a machine could hold is longer.
    if not all(field.isdigit() and len(field) <= 9 for field in fields):
        raise ProtocolError(f"{operation} has a bad or missing payload size")
    return tuple(map(int, fields))


def _publication(operation: str, lead: list[bytes], sizes: tuple[int, ...]) -> PublishArguments:
    header_size, size = (0, *sizes)[-2:]
    if header_size > size:
        raise ProtocolError(f"{operation} has a header size beyond its total size")
    return PublishArguments(lead[0], lead[1] if len(lead) == 2 else None, header_size, size)


def parse_pub(arguments: bytes) -> PublishArguments:
    """``PUB subject [reply] size``"""
    fields = arguments.split()
    if not 2 <= len(fields) <= 3:
        raise ProtocolError("PUB needs a subject, an optional reply and a size")
    return _publication("PUB", fields[:-1], _sizes("PUB", fields[-1]))


def parse_hpub(arguments: bytes) -> PublishArguments:
    """``HPUB subject [reply] header-size total-size``"""
    fields = arguments.split()
    if not 3 <= len(fields) <= 4:
        raise ProtocolError("HPUB needs a subject, an optional reply, a header size and a size")
    return _publication("HPUB", fields[:-2], _sizes("HPUB", *fields[-2:]))


def parse_msg(arguments: bytes) -> PublishArguments:
    """``MSG subject sid [reply] size``"""
    fields = arguments.split()
    if not 3 <= len(fields) <= 4:
        raise ProtocolError("MSG needs a subject, a sid, an optional reply and a size")
    sid = fields.pop(1)
    return _publication("MSG", fields[:-1], _sizes("MSG", fields[-1]))._replace(sid=sid)


def parse_hmsg(arguments: bytes) -> PublishArguments:
    """``HMSG subject sid [reply] header-size total-size``"""
    fields = arguments.split()
    if not 4 <= len(fields) <= 5:
        raise ProtocolError("HMSG needs a subject, a sid, an optional reply and two sizes")
    sid = fields.pop(1)
    return _publication("HMSG", fields[:-2], _sizes("HMSG", *fields[-2:]))._replace(sid=sid)


def parse_err(arguments: bytes) -> str:
    """``-ERR 'text'``"""
    return arguments.decode("utf-8", "replace").strip().strip("'")


class SubArguments(NamedTuple):
    subject: bytes
    queue: bytes | None
    sid: bytes


def parse_sub(arguments: bytes) -> SubArguments:
    """``SUB subject [queue] sid``"""
    fields = arguments.split()
    if len(fields) == 2:
        return SubArguments(fields[0], None, fields[1])
    if len(fields) == 3:
        return SubArguments(*fields)
    raise ProtocolError("SUB needs a subject, an optional queue and a sid")


def parse_unsub(arguments: bytes) -> tuple[bytes, int | None]:
    """``UNSUB sid [max]``"""
    fields = arguments.split()
    if len(fields) == 1:
        return fields[0], None
    if len(fields) == 2 and fields[1].isdigit() and len(fields[1]) <= 18:
        return fields[0], int(fields[1])
    raise ProtocolError("UNSUB needs a sid and an optional number of messages")


# Writing


def info(fields: Mapping[str, Any]) -> bytes:
    return b"INFO " + msgspec.json.encode(fields) + CRLF


def err(text: str) -> bytes:
    # Clients look for one line between single quotes.
    clean = " ".join(text.replace("'", '"').split())
    return b"-ERR '" + clean.encode("utf-8", "replace") + b"'\r\n"


def msg_start(subject: bytes, sid: bytes) -> bytes:
    """``MSG subject sid `` up to the reply or the size: the part that is the same each time."""
    return b"MSG %b %b " % (subject, sid)


def msg(subject: bytes, sid: bytes, reply: bytes | None, payload: bytes) -> bytes:
    if reply is None:
        return b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(payload), payload)
    return b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sid, reply, len(payload), payload)


def hmsg(subject: bytes, sid: bytes, reply: bytes | None, headers: bytes, payload: bytes) -> bytes:
    n = len(headers)
    lead = b"%b %b" % (subject, sid) if reply is None else b"%b %b %b" % (subject, sid, reply)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (lead, n, n + len(payload), headers, payload)


def connect(fields: Mapping[str, Any]) -> bytes:
    return b"CONNECT " + msgspec.json.encode(fields) + CRLF


def pub_start(subject: bytes) -> bytes:
    """``PUB subject `` up to the reply or the size: the part that is the same each time."""
    return b"PUB %b " % subject


def hpub(subject: bytes, reply: bytes | None, headers: bytes, payload: bytes) -> bytes:
    n = len(headers)
    lead = subject if reply is None else b"%b %b" % (subject, reply)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (lead, n, n + len(payload), headers, payload)


def sub(subject: bytes, queue: bytes | None, sid: bytes) -> bytes:
    if queue is None:
        return b"SUB %b %b\r\n" % (subject, sid)
    return b"SUB %b %b %b\r\n" % (subject, queue, sid)


def unsub(sid: bytes, maximum: int | None = None) -> bytes:
    return b"UNSUB %b\r\n" % sid if maximum is None else b"UNSUB %b %d\r\n" % (sid, maximum)


# Headers


def check_headers(block: bytes) -> None:
    """Raise when `block` cannot stand as the header part of HPUB."""
    if not block.startswith(_HEADER_START) or not block.endswith(CRLF + CRLF):
        raise ProtocolError("HPUB headers must begin with NATS/1.0 and end with an empty line")


def encode_headers(headers: Iterable[tuple[str, str]], status: str = "") -> bytes:
    """A header block. A value's line breaks would end it early, so they become spaces."""
    lines = [f"NATS/1.0 {status}".rstrip()]
    lines += [f"{name}: {' '.join(value.splitlines())}" for name, value in headers]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n"


def decode_headers(block: bytes) -> list[tuple[str, str]]:
    """The fields of a header block in their order, names as written, repeats kept."""
    lines = block.decode("utf-8", "surrogateescape").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def header_status(block: bytes) -> str:
    """What stands behind the version in a header block: ``503`` says that nobody answers."""
    return block.partition(CRLF)[0].removeprefix(_HEADER_START).strip().decode("ascii", "replace")
