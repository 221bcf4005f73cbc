"""What the calls to the journal have in common: for which subjects they are, and of which epoch."""

from __future__ import annotations

from typing import Any

from twisted.web.server import Request

from rtmb.auth import User
from rtmb.core.journal import Journal
from rtmb.core.segments import Selection
from rtmb.doors.http.kit import (
    Code,
    Endpoint,
    RefusedError,
    answer,
    argument,
    bad,
    forbidden,
    pattern_of,
    user_of,
)
from rtmb.doors.http.operations import Number, Text

#: Patterns in one call, and how long each may be.
MOST_PATTERNS = 64
LONGEST_PATTERN = 1024


#: What may go wrong with most calls.
JOURNAL_ERRORS = (Code.BAD_REQUEST, Code.FORBIDDEN, Code.NO_JOURNAL, Code.EPOCH_CHANGED)
#: The parameters of several calls.
EPOCH = Text("epoch", "The journal that is meant: another is refused", "")
SUBJECT = Text("subject", "A pattern, several if given several times", ">")
FROM = Number("from", "The number of the first message; the oldest if left out", 1)


def may_not(user: User, what: str) -> RefusedError:
    return forbidden(f"{user.name or 'this user'} may not {what}")


def selected(user: User, patterns: list[str]) -> Selection:
    """A selection of what this user may subscribe to."""
    if len(patterns) > MOST_PATTERNS:
        raise bad(f"at most {MOST_PATTERNS} subjects in one call")
    deny: list[str] = []
    for pattern in patterns:
        if len(pattern) > LONGEST_PATTERN:
            raise bad(f"a subject has at most {LONGEST_PATTERN} letters")
        if not user.subscribe.may_subscribe(pattern_of(pattern)):
            raise may_not(user, f"subscribe to {pattern}")
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


class JournalEndpoint(Endpoint):
    """An endpoint that needs the journal."""

    @property
    def journal(self) -> Journal:
        journal: Journal | None = self.broker.journal
        if journal is None:
            text = "there is no journal: start the broker with --journal PATTERN"
            raise RefusedError(Code.NO_JOURNAL, text)
        return journal

    def same_epoch(self, request: Request) -> Journal:
        """The journal, if it is the one that the caller means."""
        journal, epoch = self.journal, argument(request, "epoch")
        if epoch is not None and epoch != journal.epoch:
            text = f"the broker was restarted: its journal is no longer {epoch}"
            raise RefusedError(Code.EPOCH_CHANGED, text, **bounds(journal))
        return journal
