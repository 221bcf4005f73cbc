"""What the calls to the journal have in common: who asks, for which subjects, and of which epoch.

Whoever asks has been let in already: the user is `request.rtmb_user`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from twisted.web.resource import Resource
from twisted.web.server import Request

from rtmb.auth import ANYONE, User
from rtmb.core.journal import Journal
from rtmb.core.segments import Selection
from rtmb.doors.http.kit import RefusedError, answer, argument, bad, error_body, pattern_of, refuse

if TYPE_CHECKING:
    from rtmb.broker import Broker

#: Patterns in one call, and how long each may be.
MOST_PATTERNS = 64
LONGEST_PATTERN = 1024


class EpochError(RefusedError):
    """The caller speaks of the journal of an earlier life of the broker."""

    def __init__(self, epoch: str, journal: Journal) -> None:
        text = f"the broker was restarted: its journal is no longer {epoch}"
        super().__init__(409, "EPOCH_CHANGED", text)
        self.journal = journal


def forbidden(user: User, what: str) -> RefusedError:
    return RefusedError(403, "FORBIDDEN", f"{user.name or 'this user'} may not {what}")


def whole(request: Request, name: str, default: int | None = None) -> int | None:
    """A whole number among the arguments of a call."""
    found = argument(request, name)
    return default if found is None else digits(found, f"{name} must be a whole number")


def digits(text: str, wanted: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise bad(wanted)
    return int(text)


def duration(request: Request, name: str, default: float) -> float:
    """Seconds among the arguments of a call."""
    found = argument(request, name)
    try:
        value = float(found) if found is not None else default
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise bad(f"{name} must be a number of seconds")
    return value


def user_of(request: Request) -> User:
    user: User = getattr(request, "rtmb_user", ANYONE)
    return user


def selected(user: User, patterns: list[str]) -> Selection:
    """A selection of what this user may subscribe to."""
    if len(patterns) > MOST_PATTERNS:
        raise bad(f"at most {MOST_PATTERNS} subjects in one call")
    deny: list[str] = []
    for pattern in patterns:
        if len(pattern) > LONGEST_PATTERN:
            raise bad(f"a subject has at most {LONGEST_PATTERN} letters")
        if not user.subscribe.may_subscribe(pattern_of(pattern)):
            raise forbidden(user, f"subscribe to {pattern}")
        deny += user.subscribe.hidden(pattern)
    return Selection(patterns, deny)


def selection(request: Request) -> Selection:
    given = [raw.decode("utf-8", "replace") for raw in request.args.get(b"subject", [b">"])]
    return selected(user_of(request), given)


def bounds(journal: Journal) -> dict[str, Any]:
    return {"epoch": journal.epoch, "first": journal.first, "next": journal.next}


def finish(request: Request, found: dict[str, Any]) -> None:
    """Answer a call that had to wait."""
    request.write(answer(request, found))
    request.finish()


class Call(Resource):
    """A resource whose answer is bytes, a dictionary for JSON, or a `RefusedError`."""

    isLeaf = True

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker

    @property
    def journal(self) -> Journal:
        journal: Journal | None = self.broker.journal
        if journal is None:
            raise RefusedError(
                404, "NO_JOURNAL", "there is no journal: start the broker with --journal PATTERN"
            )
        return journal

    def same_epoch(self, request: Request) -> Journal:
        """The journal, if it is the one that the caller means."""
        journal, epoch = self.journal, argument(request, "epoch")
        if epoch is not None and epoch != journal.epoch:
            raise EpochError(epoch, journal)
        return journal

    def render(self, request: Request) -> bytes | int:
        no_delay = getattr(request.transport, "setTcpNoDelay", None)
        if no_delay is not None:
            no_delay(True)
        try:
            found = super().render(request)
        except EpochError as error:
            now = bounds(error.journal)
            return answer(request, {**error_body(error.code, str(error)), **now}, error.status)
        except RefusedError as error:
            return refuse(request, error.status, error.code, str(error))
        return answer(request, found) if isinstance(found, dict) else found
