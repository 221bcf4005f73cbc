"""Who may come in and what they may do: users, passwords, tokens, nkeys, permissions.

Secrets are compared in constant time and never shown: no `repr` and no error here holds one.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import bcrypt
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from twisted.internet.defer import Deferred, succeed
from twisted.internet.threads import deferToThread
from zope.interface import implementer

from rtmb.core.subjects import has_wildcard, is_pattern, matches, overlap
from rtmb.interfaces import IAuthenticator

_BCRYPT = ("$2a$", "$2b$", "$2x$", "$2y$")
_USER_NKEY = 20 << 3  # the first byte of a public user key; in base32 it begins with U


class AuthTableError(Exception):
    """The `[auth]` table is wrong; the text says what and where."""


# Permissions


@dataclass(frozen=True)
class Rule:
    """An allow and a deny list for one direction. No allow list: all is allowed."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()

    def may_publish(self, subject: str) -> bool:
        return self._allows(subject) and not any(matches(p, subject) for p in self.deny)

    def may_subscribe(self, pattern: str, queue: str | None = None) -> bool:
        """Whether a subscription may be made. An entry ``pattern queue`` applies to members of that
        queue group only."""
        if self.allow is None and not self.deny:
            return True
        return self._allows(pattern, queue) and not any(
            matches(p, pattern) for p in _patterns_for(self.deny, queue)
        )

    def hidden(self, pattern: str, queue: str | None = None) -> tuple[str, ...]:
        """What a subscription that may be made must not see: the deny list where it overlaps."""
        if not self.deny or not has_wildcard(pattern):
            return ()
        return tuple(p for p in _patterns_for(self.deny, queue) if overlap(p, pattern))

    def _allows(self, subject: str, queue: str | None = None) -> bool:
        if self.allow is None:
            return True
        return any(matches(p, subject) for p in _patterns_for(self.allow, queue))


def _patterns_for(entries: tuple[str, ...], queue: str | None) -> list[str]:
    """The patterns of the entries that apply to a subscription in `queue`."""
    patterns = []
    for entry in entries:
        pattern, _, group = entry.partition(" ")
        if not group or (queue is not None and matches(group, queue)):
            patterns.append(pattern)
    return patterns


@dataclass(frozen=True)
class User:
    """Someone who may come in."""

    name: str = ""
    password: str | None = field(default=None, repr=False)
    nkey: str | None = None
    #: What let in a client that has no name.
    token: str = field(default="", repr=False)
    publish: Rule = Rule()
    subscribe: Rule = Rule()
    expires: datetime | None = None

    @property
    def restricted(self) -> bool:
        return self.publish != Rule() or self.subscribe != Rule()

    def expired(self, now: float) -> bool:
        return self.expires is not None and self.expires.timestamp() <= now


#: Who everyone is while no users are set.
ANYONE = User()


@dataclass(frozen=True)
class AuthTable:
    """The `[auth]` table of the configuration."""

    users: tuple[User, ...] = ()
    token: str = field(default="", repr=False)
    no_auth_user: str = ""

    @classmethod
    def from_table(cls, table: Any) -> AuthTable:
        _check_keys(table, "auth", ("users", "token", "no_auth_user"))
        entries = table.get("users", [])
        if not isinstance(entries, list):
            raise AuthTableError("auth.users must be tables written [[auth.users]]")
        users = tuple(_user(entry, f"auth.users[{i}]") for i, entry in enumerate(entries))
        names = [u.name or u.nkey for u in users]
        for name in names:
            if names.count(name) > 1:
                raise AuthTableError(f"auth.users: {name} is there twice")
        guest = _text(table, "auth", "no_auth_user")
        if guest and guest not in [u.name for u in users if u.nkey is None]:
            raise AuthTableError(f"auth.no_auth_user: no user with a password is named {guest}")
        return cls(users, _text(table, "auth", "token"), guest)


def _check_keys(table: Any, where: str, keys: tuple[str, ...]) -> None:
    if not isinstance(table, Mapping):
        raise AuthTableError(f"{where} must be a table")
    for key in table:
        if key not in keys:
            raise AuthTableError(f"{where}: unknown key {key}; there are {', '.join(keys)}")


def _text(table: Mapping[str, Any], where: str, key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise AuthTableError(f"{where}.{key} must be text in quotes")
    return value


def _user(table: Any, where: str) -> User:
    _check_keys(table, where, ("user", "password", "nkey", "permissions", "expires"))
    name, nkey = _text(table, where, "user"), _text(table, where, "nkey")
    if bool(name) == bool(nkey):
        raise AuthTableError(f"{where} needs user and password, or nkey")
    if name and "password" not in table:
        raise AuthTableError(f"{where} needs a password")
    if nkey:
        if "password" in table:
            raise AuthTableError(f"{where} has an nkey, so it can have no password")
        try:
            decode_nkey(nkey)
        except ValueError as error:
            raise AuthTableError(f"{where}.nkey: {error}") from None
    expires = table.get("expires")
    if expires is not None and not isinstance(expires, datetime):
        raise AuthTableError(f"{where}.expires must be a time such as 2030-01-01T00:00:00Z")
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    permissions = table.get("permissions", {})
    _check_keys(permissions, f"{where}.permissions", ("publish", "subscribe"))
    return User(
        name=name or nkey,
        password=_text(table, where, "password") if name else None,
        nkey=nkey or None,
        publish=_rule(permissions, f"{where}.permissions", "publish"),
        subscribe=_rule(permissions, f"{where}.permissions", "subscribe"),
        expires=expires,
    )


def _rule(permissions: Mapping[str, Any], where: str, direction: str) -> Rule:
    table = permissions.get(direction, {})
    where = f"{where}.{direction}"
    _check_keys(table, where, ("allow", "deny"))
    lists: dict[str, tuple[str, ...]] = {}
    for key, entries in table.items():
        if not isinstance(entries, list) or not all(isinstance(e, str) for e in entries):
            raise AuthTableError(f"{where}.{key} must be a list of patterns")
        for entry in entries:
            pattern, _, queue = entry.partition(" ")
            valid = is_pattern(pattern) and (not queue or is_pattern(queue))
            if not valid or (queue and direction == "publish"):
                raise AuthTableError(f"{where}.{key}: not a pattern: {entry!r}")
        lists[key] = tuple(entries)
    return Rule(**lists)


# Nkeys


def decode_nkey(key: str) -> bytes:
    """The 32 bytes of a public user nkey."""
    try:
        raw = base64.b32decode(key + "=" * (-len(key) % 8))
    except (binascii.Error, ValueError):
        raise ValueError("not an nkey") from None
    if len(raw) != 35 or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise ValueError("not an nkey, or mistyped")
    if raw[0] != _USER_NKEY:
        raise ValueError("not a public user nkey (they begin with U)")
    return raw[1:-2]


def _signed(nkey: str, signature: str, nonce: str) -> bool:
    try:
        raw = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
        Ed25519PublicKey.from_public_bytes(decode_nkey(nkey)).verify(raw, nonce.encode())
    except (ValueError, binascii.Error, InvalidSignature):
        return False
    return True


# Deciding


@dataclass(frozen=True)
class Credentials:
    """What a client said of itself."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey: str = ""
    signature: str = field(default="", repr=False)
    nonce: str = field(default="", repr=False)

    @property
    def given(self) -> bool:
        return bool(self.user or self.password or self.token or self.nkey)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


@implementer(IAuthenticator)
class Authenticator:
    """Decides from the settings."""

    def __init__(self, table: AuthTable, *, user: str = "", password: str = "", token: str = ""):
        users = list(table.users)
        if user:
            users.append(User(name=user, password=password))
        self._named = {u.name: u for u in users if u.nkey is None}
        self._keyed = {u.nkey: u for u in users if u.nkey is not None}
        self._token = token or table.token
        self.required = bool(users or self._token)
        self.guest = self._named.get(table.no_auth_user) if self.required else ANYONE
        self.nonce_needed = bool(self._keyed)

    def authenticate(self, credentials: Credentials) -> Deferred[User | None]:
        if not self.required or not credentials.given:
            return succeed(self.guest)
        if credentials.nkey:
            keyed = self._keyed.get(credentials.nkey)
            signed = keyed is not None and _signed(
                credentials.nkey, credentials.signature, credentials.nonce
            )
            return succeed(keyed if signed else None)
        # Some clients give a token as the user of the URL.
        token = credentials.token or (credentials.user if not credentials.password else "")
        if self._token and token:
            return succeed(User(token=token) if _same(token, self._token) else None)
        named = self._named.get(credentials.user)
        secret = named.password or "" if named is not None else ""
        if secret.startswith(_BCRYPT):
            # Slow by design, so not in the reactor's thread.
            return deferToThread(_check_hash, credentials.password, secret, named)
        right = _same(credentials.password, secret) and named is not None
        return succeed(named if right else None)

    def recheck(self, user: User | None) -> User | None:
        if not self.required:
            return ANYONE
        if user is None:
            return None
        if user.name == "":  # came in with a token, or when nothing was asked
            return user if self._token and user.token == self._token else None
        now = self._keyed.get(user.nkey) if user.nkey else self._named.get(user.name)
        return now if now is not None and now.password == user.password else None


def _check_hash(password: str, secret: str, user: User | None) -> User | None:
    try:
        # bcrypt looks at 72 bytes; longer ones were cut when the hash was made.
        return user if bcrypt.checkpw(password.encode()[:72], secret.encode()) else None
    except ValueError:
        return None
