"""Who may use the HTTP door: the API key, the broker's users, and the sites whose pages may.

One question is asked for each request, in one place (`HttpRequest.process`): who is it? The answer
is a `User`, whose permissions the endpoints keep to.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
from twisted.internet.defer import Deferred, succeed
from twisted.web.server import Request

from rtmb.auth import ANYONE, Credentials, User
from rtmb.config import Settings
from rtmb.doors.http.kit import Code, Endpoint, RefusedError, header, user_of
from rtmb.doors.http.operations import operation
from rtmb.doors.session import Roster, Session
from rtmb.interfaces import IAuthenticator

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: Credentials that were found right are known again, so that a password hash made to be slow is
#: worked out once and not with each request.
_MOST_KNOWN = 1024
#: Not for long: other authenticators may change their mind. In seconds.
_KNOWN_FOR = 30.0
#: Tickets that may be unused at once, and how long one is good for, in seconds.
_MOST_TICKETS = 10_000
TICKET_FOR = 30.0


@dataclass(frozen=True)
class KeyHolder(User):
    """Whoever gave the API key, which is in `token`: someone who may do everything."""


def same(one: str, other: str) -> bool:
    """Whether two secrets are equal, in a time that does not tell."""
    return hmac.compare_digest(one.encode(), other.encode())


class Gate(Protocol):
    """Who knows the `Access` of this moment."""

    access: Access


S = TypeVar("S", bound=Session)


class DoorRoster(Roster[S]):
    """Clients that `Access` let in."""

    def __init__(self, broker: Broker, gate: Gate) -> None:
        super().__init__(broker)
        self._gate = gate

    def recheck(self, user: User | None) -> User | None:
        return self._gate.access.recheck(user)


class Access:
    """Decides from the settings and the broker's authenticator."""

    def __init__(self, settings: Settings, authenticator: IAuthenticator) -> None:
        self._key = settings.api_key
        self._origins = settings.cors_origin
        self._authenticator = authenticator
        self._salt = os.urandom(16)
        self._known: dict[bytes, tuple[User, float]] = {}
        self._tickets: dict[str, tuple[User, float]] = {}

    # Who

    def admit(self, request: Request) -> Deferred[User | None]:
        """Who this request comes from; None: nobody who may come in."""
        ticket = request.args.get(b"ticket")
        if ticket:
            return succeed(self._redeem(ticket[-1].decode("utf-8", "replace")))
        key = header(request, b"x-api-key")
        if key is None and request.args.get(b"api_key"):
            # Browsers cannot set a header on a WebSocket or an EventSource.
            key = request.args[b"api_key"][-1].decode("utf-8", "replace")
        if key is not None and self._key and same(key, self._key):
            return succeed(KeyHolder("api key", token=key))
        said = _credentials(request)
        if said is None or (said.given and key is not None):
            return succeed(None)
        if key is not None:
            said = Credentials(token=key)
        if not self._authenticator.required:
            return succeed(None if self._key else ANYONE)
        return self._authenticate(said)

    def ticket_for(self, user: User) -> str:
        """What lets someone in once more, soon: browsers can set no header on a WebSocket."""
        now = time.monotonic()
        if len(self._tickets) >= _MOST_TICKETS:
            self._tickets = {t: (u, end) for t, (u, end) in self._tickets.items() if end > now}
        if len(self._tickets) >= _MOST_TICKETS:
            raise RefusedError(Code.OVERLOADED, f"{_MOST_TICKETS} tickets are not used yet")
        ticket = secrets.token_urlsafe(32)
        self._tickets[ticket] = user, now + TICKET_FOR
        return ticket

    def _redeem(self, ticket: str) -> User | None:
        user, end = self._tickets.pop(ticket, (None, 0.0))
        return user if time.monotonic() < end else None

    def _authenticate(self, said: Credentials) -> Deferred[User | None]:
        secret = "\0".join((said.user, said.password, said.token)).encode("utf-8", "replace")
        digest = hashlib.blake2b(secret, key=self._salt).digest()
        known = self._known.get(digest)
        if known is not None and time.monotonic() < known[1]:
            return succeed(known[0])

        def found(user: User | None) -> User | None:
            if user is not None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[digest] = user, time.monotonic() + _KNOWN_FOR
            return user

        return self._authenticator.authenticate(said).addCallback(found)

    @property
    def connect_decides(self) -> bool:
        """Whether NATS clients must say in CONNECT who they are: then that decides, not the key."""
        return bool(self._authenticator.required)

    def recheck(self, user: User | None) -> User | None:
        """Who someone, let in by an earlier `Access`, is now; None: nobody any more."""
        if isinstance(user, KeyHolder):
            return user if self._key and same(self._key, user.token) else None
        if not self._authenticator.required:
            return None if self._key else ANYONE
        return self._authenticator.recheck(user)

    # From where

    def allows_origin(self, origin: str) -> bool:
        """Whether pages of this site may use the door."""
        return "*" in self._origins or origin in self._origins

    def is_foreign(self, request: Request) -> bool:
        """Whether a page of some other site sends this, which may not."""
        origin = header(request, b"origin")
        if origin is None or self.allows_origin(origin):
            return False
        try:
            return urlsplit(origin).netloc.lower() != (header(request, b"host") or "").lower()
        except ValueError:
            return True


def _credentials(request: Request) -> Credentials | None:
    """What the Authorization header says; None when that makes no sense."""
    given = header(request, b"authorization")
    if given is None:
        return Credentials()
    scheme, _, rest = given.strip().partition(" ")
    if scheme.lower() == "bearer" and rest.strip():
        return Credentials(token=rest.strip())
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(rest.strip(), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeError, ValueError):
        return None
    user, colon, password = decoded.partition(":")
    return Credentials(user=user, password=password) if colon and user else None


class Ticket(msgspec.Struct):
    """``?ticket=`` with this lets its holder in, once."""

    ticket: str
    expires_in: float


class Tickets(Endpoint):
    """``/ticket``."""

    def __init__(self, broker: Broker, gate: Gate) -> None:
        super().__init__(broker)
        self._gate = gate

    @operation(
        "Get a ticket: browsers can set no header on a WebSocket or an EventSource",
        answer=Ticket,
        errors=(Code.OVERLOADED,),
    )
    def render_POST(self, request: Request) -> Any:
        return Ticket(self._gate.access.ticket_for(user_of(request)), TICKET_FOR)
