"""How people at a terminal and NATS libraries want to be treated differently: all of it, in one
table. docs/protocol.md tells the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """All that differs between a person (or a small script) and a NATS library."""

    #: Seconds from CONNECT to the first PING.
    first_ping: float
    #: Whether the maximum of UNSUB counts from now or from SUB.
    maximum_from_now: bool
    #: What to answer to a SUB whose sid is taken, and an UNSUB whose sid is not; None: nothing.
    sid_taken: str | None
    sid_unknown: str | None


BARE = Dialect(0.0, True, "Subscription ID already exists", "Subscription ID does not exist")
LIBRARY = Dialect(2.0, False, None, None)
