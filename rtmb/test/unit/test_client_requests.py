"""Tests for `rtmb.client.requests` and `.service`: asking and answering."""

from __future__ import annotations

from rtmb.client import (
    Message,
    NoResponders,
    RequestTimeout,
)
from rtmb.test.support.client import MemoryTests


class AskingTests(MemoryTests):
    def test_request(self) -> None:
        """Many at once, each gets its own answer, over one subscription."""
        client, server = self.connect(), self.connect()
        server.subscribe("double", callback=lambda m: m.respond(str(2 * int(m.text))))
        self.memory.advance()
        answers = [client.request("double", str(i)) for i in range(20)]
        self.memory.advance()
        self.assertEqual(
            [self.successResultOf(answer).text for answer in answers],
            [str(2 * i) for i in range(20)],
        )
        self.assertEqual(len(self.memory.hub.routing), 2)
        self.assertEqual(len(client._requests), 0)

    def test_nobody(self) -> None:
        client = self.connect()
        asked = client.request("nobody.here")
        self.memory.advance()
        error = self.failureResultOf(asked, NoResponders).value
        self.assertIn("nobody.here", str(error))

    def test_too_late(self) -> None:
        """A request fails in time, and a late answer is nothing."""
        client = self.connect()
        questions: list[Message] = []
        client.subscribe("slow", callback=questions.append)
        asked = client.request("slow", timeout=2)
        self.memory.advance(1.9)
        self.assertNoResult(asked)
        self.memory.advance(0.2)
        self.failureResultOf(asked, RequestTimeout)
        questions[0].respond(b"late")
        self.memory.advance()
        self.assertEqual(len(client._requests), 0)

    def test_cancel(self) -> None:
        client = self.connect()
        client.subscribe("slow")
        asked = client.request("slow")
        asked.addErrback(lambda failure: None)
        asked.cancel()
        self.assertEqual(len(client._requests), 0)
