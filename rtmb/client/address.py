"""Where a server is and who the client is there: URLs, credentials, trust."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator

if TYPE_CHECKING:
    from rtmb.client.options import ClientOptions

#: How to do TLS: True for the system's trusted authorities, a path for those in a PEM file, or
#: Twisted's own options for all else, such as a client's certificate.
Tls: TypeAlias = bool | str | Path | IOpenSSLClientConnectionCreator | None

_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_SEED, _USER = 18 << 3, 20 << 3  # what nkeys begin with: S for a seed, U for a user


@dataclass(frozen=True)
class ServerAddress:
    """One server."""

    scheme: str
    host: str
    port: int
    path: str = "/"
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Without secrets, for people to read."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = self.path if self.websocket and self.path != "/" else ""
        return f"{self.scheme}://{host}:{self.port}{path}"

    @property
    def websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    @property
    def secure(self) -> bool:
        return self.scheme in ("tls", "wss")


def parse_url(url: str, like: ServerAddress | None = None) -> ServerAddress:
    """An address such as ``nats://user:password@host:4222``; ``host`` or ``host:port`` will do.

    What it leaves out is as in `like`: servers name each other by host and port alone."""
    scheme = like.scheme if like is not None else "nats"
    try:
        parts = urlsplit(url if "://" in url else f"{scheme}://{url}")
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a server's URL: {_shown(url)}: {error}") from None
    if parts.scheme not in _PORTS:
        raise ValueError(
            f"not a server's URL: {_shown(url)}: the scheme may be {', '.join(_PORTS)}"
        )
    if not parts.hostname:
        raise ValueError(f"not a server's URL: {_shown(url)}: it has no host")
    user, password = _login(parts)
    if like is not None and user is None:
        user, password = like.user, like.password
    path = parts.path or "/"
    if parts.query:
        path += "?" + parts.query
    return ServerAddress(
        parts.scheme,
        parts.hostname,
        port if port is not None else _PORTS[parts.scheme],
        path,
        user,
        password,
    )


def _login(parts: SplitResult) -> tuple[str | None, str | None]:
    user, password = parts.username, parts.password
    return (
        unquote(user) if user else None,
        unquote(password) if password is not None else None,
    )


def _shown(url: str) -> str:
    """A URL fit for an error's text: what may be a password is left out."""
    before, at, after = url.rpartition("@")
    return repr(f"{before.partition('://')[0]}://…@{after}" if at else url)


class Nkey:
    """A user's key: who it is and how it signs."""

    def __init__(self, seed: str) -> None:
        try:
            raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
        except (binascii.Error, ValueError):
            raise ValueError("not an nkey seed") from None
        # The seed's own mark takes five bits, the kind of key the next eight.
        if (
            len(raw) != 36
            or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little")
            or raw[0] & 0xF8 != _SEED
            or (raw[0] & 7) << 5 | raw[1] >> 3 != _USER
        ):
            raise ValueError("not the seed of a user's nkey (they begin with SU), or mistyped")
        self._key = Ed25519PrivateKey.from_private_bytes(raw[2:-2])
        public = bytes([_USER]) + self._key.public_key().public_bytes(
            Encoding.Raw, PublicFormat.Raw
        )
        check = binascii.crc_hqx(public, 0).to_bytes(2, "little")
        self.public = base64.b32encode(public + check).decode().rstrip("=")

    def sign(self, nonce: str) -> str:
        return base64.urlsafe_b64encode(self._key.sign(nonce.encode())).decode().rstrip("=")


@dataclass(frozen=True)
class Login:
    """What the client says of itself; what stands in a server's URL goes before."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey: Nkey | None = None

    @classmethod
    def from_options(cls, options: ClientOptions) -> Login:
        seed = options["nkey_seed"]
        nkey = Nkey(seed) if seed else None
        return cls(options["user"], options["password"], options["token"], nkey)

    def fields(self, address: ServerAddress, info: Mapping[str, Any]) -> dict[str, str]:
        """The part of CONNECT that says who this is."""
        if address.user is not None and address.password is None:
            return {"auth_token": address.user}
        if address.user is not None:
            return {"user": address.user, "pass": address.password or ""}
        if self.nkey is not None and info.get("nonce"):
            return {"nkey": self.nkey.public, "sig": self.nkey.sign(str(info["nonce"]))}
        if self.token is not None:
            return {"auth_token": self.token}
        if self.user is not None:
            return {"user": self.user, "pass": self.password or ""}
        return {}


def tls_options(tls: Tls, host: str) -> Any:
    """What Twisted needs to speak TLS with `host`."""
    # Not at the top: it takes a tenth of a second, and most clients need none of it.
    from OpenSSL.SSL import Error as SSLError
    from twisted.internet.ssl import Certificate, optionsForClientTLS, trustRootFromCertificates

    if isinstance(tls, (str, Path)):
        pem = Path(tls).read_bytes()
        end = b"-----END CERTIFICATE-----"
        blocks = [block + end for block in pem.split(end)[:-1]]
        if not blocks:
            raise ValueError(f"no certificate in {tls}")
        try:
            trust = trustRootFromCertificates([Certificate.loadPEM(block) for block in blocks])
        except SSLError:
            raise ValueError(f"a broken certificate in {tls}") from None
        return optionsForClientTLS(host, trust)
    if tls is None or isinstance(tls, bool):
        return optionsForClientTLS(host)
    return tls
