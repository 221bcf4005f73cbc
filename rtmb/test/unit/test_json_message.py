"""Tests for `rtmb.codecs.json_message`."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from rtmb.codecs.json_message import event_json, message_id
from rtmb.core.message import Message


class EventJsonTests(SynchronousTestCase):
    """How a message is shown."""

    def test_the_subject_may_be_any_bytes(self) -> None:
        message = Message("a\udcff", b"1", time=1.0)
        self.assertEqual(json.loads(event_json(message))["topic"], "a\ufffd")

    def test_ids(self) -> None:
        first = Message("a", b"1", time=1.0)
        self.assertEqual(message_id(first), message_id(Message("a", b"1", time=1.0)))
        for other in (Message("b", b"1", time=1.0), Message("a", b"2", time=1.0),
                      Message("a", b"1", time=1.000001)):  # fmt: skip
            self.assertNotEqual(message_id(first), message_id(other))
        named = Message("a", b"", headers=b"NATS/1.0\r\nNats-Msg-Id: me \r\n\r\n")
        self.assertEqual(message_id(named), "me")

    def test_no_number_loses_a_digit(self) -> None:
        message = Message("a", b'{"n": 1.10, "big": 12345678901234567890123}')
        self.assertIn(b'"payload":{"n": 1.10, "big": 12345678901234567890123}', event_json(message))

    def test_nested_without_end(self) -> None:
        message = Message("a", b"[" * 100_000)
        self.assertEqual(json.loads(event_json(message))["message"]["payload"], "[" * 100_000)
