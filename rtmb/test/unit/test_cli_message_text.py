"""Tests for `rtmb.cli.message_text`."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rtmb.cli.message_text import LineError, parse_line, printable


class LineTests(SynchronousTestCase):
    def test_bad_lines(self) -> None:
        for line in (
            b"", b"[]", b"{", b"\xff", b"{}", b'{"t": true, "subject": "a", "payload": ""}',
            b'{"t": 0, "payload": ""}', b'{"t": 0, "subject": "a"}',
            b'{"t": 0, "subject": "a", "payload_base64": "?"}',
            b'{"t": 0, "subject": "a", "payload": "", "headers": {"A": "1"}}',
            b'{"t": 0, "subject": "a", "payload": "", "reply": "b c"}',
        ):  # fmt: skip
            self.assertRaises(LineError, parse_line, line)

    def test_plain(self) -> None:
        self.assertEqual(printable("tab\tline\nend\r\n"), "tab\tline\nend\n")
        self.assertEqual(printable("\x1b[0m\r\udcff"), "\\x1b[0m\\x0d\\xff")
