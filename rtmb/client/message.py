"""A message as a client gets it, and its headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from rtmb.client.errors import ClientError
from rtmb.codecs import nats as wire

if TYPE_CHECKING:
    from rtmb.client.client import Client

#: What `publish` takes as headers: a value for each name, or several.
HeadersLike: TypeAlias = Mapping[str, str | Sequence[str]]


class Headers(Mapping[str, str]):
    """The headers of a message: a mapping of each name, as written, to its first value."""

    __slots__ = ("_values",)

    def __init__(self, pairs: Sequence[tuple[str, str]] = ()) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> str:
        return self._values[name][0]

    def all(self, name: str) -> list[str]:
        """Every value of a name, in order; none: an empty list."""
        return list(self._values.get(name, ()))

    def lists(self) -> dict[str, list[str]]:
        """All of it, fit to be published again."""
        return {name: list(values) for name, values in self._values.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({self._values!r})"


def header_block(headers: HeadersLike) -> bytes:
    """Headers as they stand on the wire. A name that would break the block is refused."""
    pairs: list[tuple[str, str]] = []
    for name, value in headers.items():
        if not name.isascii() or not name.isprintable() or ":" in name or name != name.strip():
            raise ValueError(f"not a header's name: {name!r}")
        if not name:
            raise ValueError("a header needs a name")
        values = [value] if isinstance(value, str) else value
        pairs += [(name, one) for one in values]
    return wire.encode_headers(pairs)


class Message:
    """A message that was received."""

    __slots__ = ("_block", "_client", "_headers", "payload", "reply", "subject")

    def __init__(
        self,
        client: Client,
        subject: str,
        payload: bytes,
        reply: str | None = None,
        block: bytes | None = None,
    ) -> None:
        self._client = client
        self.subject = subject
        self.payload = payload
        #: Where an answer is expected, or None.
        self.reply = reply
        self._block = block
        self._headers: Headers | None = None

    @property
    def headers(self) -> Headers:
        """Read from the wire when first asked for."""
        if self._headers is None:
            self._headers = Headers(wire.decode_headers(self._block) if self._block else ())
        return self._headers

    @property
    def status(self) -> str:
        """What a server says in place of headers, such as ``503``; mostly empty."""
        return wire.header_status(self._block) if self._block else ""

    @property
    def text(self) -> str:
        """The payload as text; bytes that are no UTF-8 become U+FFFD."""
        return self.payload.decode("utf-8", "replace")

    def json(self) -> Any:
        """The payload as JSON; ValueError when it is none."""
        return msgspec.json.decode(self.payload)

    def respond(self, payload: bytes | str = b"", headers: HeadersLike | None = None) -> None:
        """Answer a request."""
        if self.reply is None:
            raise ClientError(f"the message on {self.subject} asks for no answer")
        self._client.publish(self.reply, payload, headers=headers)

    def __repr__(self) -> str:
        return f"<Message {self.subject} {self.payload[:40]!r}>"
