"""Tests for `rtmb.codecs.json_message`."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from rtmb.codecs.json_message import encode_given_headers, event_json, message_id
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

    def test_headers_and_reply(self) -> None:
        block = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nHue: red\r\nHue: blue\r\n\r\n"
        message = Message("a", b"1", headers=block, reply="back", time=1.0)
        body = json.loads(event_json(message))["message"]
        self.assertEqual(body["headers"], {"Hue": ["red", "blue"]})
        self.assertEqual((body["id"], body["reply"]), ("7", "back"))
        given: dict[str, str | list[str]]
        given = {"Hue": ["red", "blue"], "nats-msg-id": "other"}
        self.assertEqual(encode_given_headers(given, "7"), block)
        self.assertIsNone(encode_given_headers({}, None))
        for name in ("", "a b", "a:", "a\r\nb", "é"):
            with self.assertRaisesRegex(ValueError, "not a name"):
                encode_given_headers({name: "x"}, None)

    def test_no_number_loses_a_digit(self) -> None:
        message = Message("a", b'{"n": 1.10, "big": 12345678901234567890123}')
        self.assertIn(b'"payload":{"n": 1.10, "big": 12345678901234567890123}', event_json(message))

    def test_nested_without_end(self) -> None:
        message = Message("a", b"[" * 100_000)
        self.assertEqual(json.loads(event_json(message))["message"]["payload"], "[" * 100_000)
