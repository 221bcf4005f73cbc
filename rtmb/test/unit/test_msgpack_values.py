"""Tests for `rtmb.codecs.msgpack`: values go through as they are."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmb.codecs.msgpack import PackedMessage, unpack
from rtmb.core.message import MOST_NESTED, to_bytes
from rtmb.test.support.msgpack import InMemory, packed, publish, subscribe

#: Values as they may stand on the wire, among them some that Python has no object for.
RAW_VALUES = [
    *map(packed, [None, True, -1, 2**64 - 1, -(2**63), 1.5, "é😀", b"\x00\xff", [], {}]),
    packed({1: "int", None: "nil", b"b": "bin", 1.5: "float", False: [{"x": {}}]}),
    packed(msgpack.ExtType(5, b"data")),
    packed(msgpack.Timestamp(1, 5)),
    b"\xc7\x0c\xff" + b"\xff" * 12,  # a time beyond the calendar
    b"\xca\x3f\x80\x00\x00",  # a float of 32 bits
    b"\xd3\x00\x00\x00\x00\x00\x00\x00\x01",  # a small number in 64 bits
    b"\x82\xa1a\x01\xa1a\x02",  # a key twice
    b"\x81\x81\x01\x02\x03",  # a map as a key
    b"\x81\x92\x01\x02\x03",  # an array as a key
    b"\xa2\xff\xfe",  # text that is no UTF-8
    b"\xdc\x00\x01\xdd\x00\x00\x00\x00",
    b"\x91" * 500 + b"\xc0",
]


class ValueTests(InMemory):
    def test_exact_between_msgpack_clients(self) -> None:
        """A value comes out as the bytes that went in, live and retained, whatever else happens
        to it on its way to other doors."""
        library = self.memory.library()
        library.send(b"SUB t 1\r\n")
        client = self.client(subscribe("t"))
        for raw in RAW_VALUES:
            client.send(b"\x81\xa7Publish\x91")  # in two chunks
            client.protocol.dataReceived(b"\x92\xa1t" + raw)
            self.assertEqual(client.raw(), b"\x92\xa1t" + raw)
            late = self.client()
            late.protocol.dataReceived(subscribe("t"))
            self.assertEqual(late.raw(), b"\x92\xa1t" + raw)
            self.assertIn(b"MSG t 1 ", library.heard())

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
            | st.text() | st.binary(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
            max_leaves=20,
        )
    )  # fmt: skip
    @settings(max_examples=50, deadline=None)
    def test_any_value(self, value: Any) -> None:
        client = self.client(subscribe("only.this"))
        client.raw()
        client.protocol.dataReceived(publish("only.this", value))
        self.assertEqual(client.raw(), packed(["only.this", value]))
        client.transport.loseConnection()

    def test_to_a_byte_door(self) -> None:
        """Bytes are bytes, text is UTF-8, the rest is JSON."""
        library = self.memory.library()
        library.send(b"SUB t 1\r\n")
        client = self.client()
        for value, payload in (
            (b"\x00\xff", b"\x00\xff"),
            ("é", "é".encode()),
            ({"a": [1, None, b"x"]}, b'{"a":[1,null,"eA=="]}'),
            ({1: 2}, b'{"1":2}'),
            (msgpack.ExtType(5, b"x"), b'[5,"eA=="]'),
            (msgpack.Timestamp(0), b'"1970-01-01T00:00:00Z"'),
        ):
            client.send(publish("t", value))
            expected = b"MSG t 1 %d\r\n%b\r\n" % (len(payload), payload)
            self.assertEqual(library.heard(), expected)

    def test_from_a_byte_door(self) -> None:
        """JSON becomes its value, other text text, the rest bytes; live, in bulk and retained."""
        client = self.client(subscribe("t"))
        library = self.memory.library()
        for payload, value in (
            (b'{"a": [1, null]}', {"a": [1, None]}),
            (b"hello", "hello"),
            (b"\xff\x00", b"\xff\x00"),
            (b"", ""),
            (b"123456789012345678901234567890", "123456789012345678901234567890"),
            (b"[" * 400 + b"]" * 400, None),
            (b"[" * 5000 + b"]" * 5000, "[" * 5000 + "]" * 5000),
        ):
            line = b"PUB t %d\r\n%b\r\n" % (len(payload), payload)
            library.send(line + line)
            heard = client.heard()
            if value is not None:
                self.assertEqual(heard, [["t", value]] * 2)
            self.assertEqual(len(heard), 2)
            self.assertEqual(self.client().send(subscribe("t")), heard[:1])
        self.assertFalse(client.closed)

    def test_a_subject_that_is_no_utf_8(self) -> None:
        client = self.client(subscribe("x*"))
        self.memory.library().send(b"PUB x\xff 2\r\nhi\r\n")
        self.assertEqual(client.heard(), [["x�", "hi"]])

    def test_nested_too_deep_for_other_doors(self) -> None:
        """JSON of very deep values could not be read: other doors get the msgpack as it is."""
        for depth, expected in ((MOST_NESTED - 1, False), (MOST_NESTED + 1, True), (1000, True)):
            raw = b"\x91" * depth + b"\xc0"
            self.assertEqual(unpack(raw) == raw, expected, depth)
        wide = packed([[i] for i in range(1000)])
        self.assertEqual(unpack(wide), [[i] for i in range(1000)])

    def test_no_payload_for_nobody(self) -> None:
        """What nobody at a byte door hears is not converted; it is for who asks later."""
        made: list[bytes] = []

        def payload(message: PackedMessage) -> bytes:
            made.append(message.packed)
            return to_bytes(message.value)

        self.patch(PackedMessage, "payload", property(payload))
        client = self.client(subscribe("t"))
        self.assertEqual(
            client.send(publish("t", [1]), publish("t", [2])), [["t", [1]], ["t", [2]]]
        )
        self.assertEqual(self.client().send(subscribe("*")), [["t", [2]]])
        self.assertEqual(made, [])
        library = self.memory.library()
        self.assertIn(b"MSG t 1 3\r\n[2]\r\n", library.send(b"SUB $LAST.t 1\r\n"))
        client.send(publish("t", [3]))
        self.assertEqual(library.heard(), b"MSG t 1 3\r\n[3]\r\n")
        self.assertEqual(len(made), 2)

    def test_the_value_is_not_kept(self) -> None:
        """The history counts bytes: the objects that a value unpacks to must not stay in it."""
        message = PackedMessage("t", packed(["t", [[]] * 10]), len(b"\x92\xa1t"))
        self.assertEqual(message.value, [[]] * 10)
        self.assertIsNot(message.value, message.value)
        self.assertEqual(message.size, 11)
