"""Questions that wait for their answers, all behind one subscription."""

from __future__ import annotations

import itertools
import os

from twisted.internet.defer import Deferred

from rtmb.client.errors import ConnectionClosed, NoResponders
from rtmb.client.message import Message

#: How the subjects of answers begin.
INBOX = "_INBOX."


class Requests:
    """Each question has a subject of its own below `inbox`, for its answer."""

    def __init__(self) -> None:
        self.inbox = f"{INBOX}{os.urandom(12).hex()}."
        self._tokens = itertools.count(1)
        self._waiting: dict[str, Deferred[Message]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self) -> tuple[str, Deferred[Message]]:
        """Where the answer to a new question should go, and what fires with it."""
        reply = self.inbox + str(next(self._tokens))

        def forget(answer: Deferred[Message]) -> None:
            self._waiting.pop(reply, None)

        answer: Deferred[Message] = Deferred(forget)
        self._waiting[reply] = answer
        return reply, answer

    def discard(self, reply: str) -> None:
        """The question was not asked after all."""
        del self._waiting[reply]

    def answered(self, message: Message) -> None:
        answer = self._waiting.pop(message.subject, None)
        if answer is None:
            return  # it came too late, or twice
        if message.status == "503":
            subject = message.headers.get("Nats-Subject", "the subject")
            answer.errback(NoResponders(f"nobody answers on {subject}"))
        else:
            answer.callback(message)

    def fail(self, why: ConnectionClosed) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.errback(why)
