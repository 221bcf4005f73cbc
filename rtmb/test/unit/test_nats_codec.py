"""Tests for `rtmb.codecs.nats`."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rtmb.codecs import nats as wire
from rtmb.codecs.nats import ProtocolError
from rtmb.core.subjects import from_raw, to_raw


class ParsingTests(SynchronousTestCase):
    def test_lines(self) -> None:
        """Any case, any blanks, with or without a carriage return."""
        self.assertEqual(wire.split_line(b"sUb\t a.b  7 \r"), (b"SUB", b"a.b  7"))
        self.assertEqual(wire.split_line(b"PING"), (b"PING", b""))
        self.assertEqual(wire.split_line(b" \r"), (b"", b""))

    def test_beginnings(self) -> None:
        """A line that cannot become an operation is known before it ends."""
        for start in (b"", b"P", b"pu", b"PUB", b"PUB foo", b" \tSUB a", b"CONNECT {", b"hpub x"):
            self.assertTrue(wire.may_become_operation(start), start)
        for start in (b"GET / HTTP/1.1", b"X", b"PUBX", b"PINGPONG", b"\x16\x03\x01"):
            self.assertFalse(wire.may_become_operation(start), start)

    def test_pub(self) -> None:
        self.assertEqual(wire.parse_pub(b"a 5"), (b"a", None, 0, 5, b""))
        self.assertEqual(wire.parse_pub(b"a r\t5"), (b"a", b"r", 0, 5, b""))
        self.assertEqual(wire.parse_hpub(b"a r 12 15"), (b"a", b"r", 12, 15, b""))
        for bad in (b"", b"a", b"a x", b"a -1", b"a 1 2 3", b"a 1e3", b"a 9999999999", b"a +5"):
            self.assertRaises(ProtocolError, wire.parse_pub, bad)
        for bad in (b"a 5", b"a 6 5", b"a x 5", b"a r s 1 2"):
            self.assertRaises(ProtocolError, wire.parse_hpub, bad)

    def test_msg(self) -> None:
        self.assertEqual(wire.parse_msg(b"a 1 5"), (b"a", None, 0, 5, b"1"))
        self.assertEqual(wire.parse_msg(b"a 1  r 5"), (b"a", b"r", 0, 5, b"1"))
        self.assertEqual(wire.parse_hmsg(b"a 1 12 15"), (b"a", None, 12, 15, b"1"))
        self.assertEqual(wire.parse_hmsg(b"a 1 r 12 15"), (b"a", b"r", 12, 15, b"1"))
        for bad in (b"", b"a", b"a 1", b"a 1 x", b"a 1 r s 5", b"a 1 -5"):
            self.assertRaises(ProtocolError, wire.parse_msg, bad)
        for bad in (b"a 1 5", b"a 1 6 5", b"a 1 r x 5", b"a 1 r s 1 2"):
            self.assertRaises(ProtocolError, wire.parse_hmsg, bad)

    def test_err(self) -> None:
        self.assertEqual(wire.parse_err(b"'Stale Connection'"), "Stale Connection")
        self.assertEqual(wire.parse_err(b"no quotes \xff"), "no quotes �")

    def test_sub_and_unsub(self) -> None:
        self.assertEqual(wire.parse_sub(b"a 1"), (b"a", None, b"1"))
        self.assertEqual(wire.parse_sub(b"a q 1"), (b"a", b"q", b"1"))
        self.assertEqual(wire.parse_unsub(b"1"), (b"1", None))
        self.assertEqual(wire.parse_unsub(b"1 5"), (b"1", 5))
        for bad in (b"", b"a", b"a b c d"):
            self.assertRaises(ProtocolError, wire.parse_sub, bad)
        for bad in (b"", b"1 x", b"1 2 3", b"1 -2"):
            self.assertRaises(ProtocolError, wire.parse_unsub, bad)

    def test_connect(self) -> None:
        self.assertEqual(wire.parse_json_object(b'{"a": 1}'), {"a": 1})
        for bad in (b"", b"[]", b"1", b"{", b"{}x", b"\xff"):
            self.assertRaises(ProtocolError, wire.parse_json_object, bad)


class WritingTests(SynchronousTestCase):
    def test_messages(self) -> None:
        self.assertEqual(wire.msg(b"a", b"1", None, b"hi"), b"MSG a 1 2\r\nhi\r\n")
        self.assertEqual(wire.msg(b"a", b"1", b"r", b""), b"MSG a 1 r 0\r\n\r\n")
        block = wire.encode_headers([("A", "b")])
        self.assertEqual(
            wire.hmsg(b"a", b"1", b"r", block, b"hi"),
            b"HMSG a 1 r 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\n",
        )

    def test_what_a_client_says(self) -> None:
        """The other direction reads it as it was meant."""
        self.assertEqual(wire.sub(b"a", None, b"1"), b"SUB a 1\r\n")
        self.assertEqual(wire.sub(b"a", b"q", b"1"), b"SUB a q 1\r\n")
        self.assertEqual(wire.unsub(b"1"), b"UNSUB 1\r\n")
        self.assertEqual(wire.unsub(b"1", 0), b"UNSUB 1 0\r\n")
        self.assertEqual(wire.connect({"a": 1}), b'CONNECT {"a":1}\r\n')
        self.assertEqual(wire.pub_start(b"a"), b"PUB a ")
        block = wire.encode_headers([("A", "b")])
        self.assertEqual(
            wire.hpub(b"a", b"r", block, b"hi"),
            b"HPUB a r 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\n",
        )
        line, _, _ = wire.hpub(b"a", None, block, b"hi").partition(b"\r\n")
        self.assertEqual(wire.parse_hpub(wire.split_line(line)[1]), (b"a", None, 18, 20, b""))

    def test_header_status(self) -> None:
        self.assertEqual(wire.header_status(wire.encode_headers([], "503")), "503")
        self.assertEqual(wire.header_status(wire.encode_headers([("A", "b")])), "")

    def test_errors_are_one_quoted_line(self) -> None:
        self.assertEqual(wire.err("it's\r\nbad"), b"-ERR 'it\"s bad'\r\n")

    def test_headers(self) -> None:
        """Names as written, repeats kept; a line break in a value cannot end the block."""
        pairs = [("A", "1"), ("a", "2"), ("A", "x\r\nEvil: 1"), ("Empty", "")]
        block = wire.encode_headers(pairs, "503")
        self.assertTrue(block.startswith(b"NATS/1.0 503\r\n"))
        self.assertEqual(
            wire.decode_headers(block), [("A", "1"), ("a", "2"), ("A", "x Evil: 1"), ("Empty", "")]
        )
        wire.check_headers(block)
        for bad in (b"", b"NATS/1.0\r\n", b"HTTP/1.0\r\n\r\n"):
            self.assertRaises(ProtocolError, wire.check_headers, bad)

    def test_subjects_pass_whatever_their_bytes(self) -> None:
        raw = b"caf\xc3\xa9.\xff"
        self.assertEqual(to_raw(from_raw(raw)), raw)
