"""Tests for `rtmb.core.message`."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rtmb.core.message import MOST_NESTED, Message, to_bytes, to_value

scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text()
    | st.floats(allow_nan=False)
)
anything: st.SearchStrategy[Any] = st.recursive(
    scalars | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(scalars | st.binary(), inner),
    max_leaves=8,
)


class ConversionTests(SynchronousTestCase):
    def test_to_bytes(self) -> None:
        """Bytes are bytes, text is UTF-8, anything else is JSON."""
        self.assertEqual(to_bytes(b"\xff"), b"\xff")
        self.assertEqual(to_bytes("é"), "é".encode())
        self.assertEqual(to_bytes({"a": [1, None]}), b'{"a":[1,null]}')
        self.assertEqual(to_bytes(None), b"null")

    def test_nested_without_end(self) -> None:
        """Values, keys and JSON of any depth become something, and never a `RecursionError`."""
        value: Any = None
        key: Any = ()
        for _ in range(100_000):
            value = [value]
        for _ in range(5000):
            key = (key,)
        made = json.loads(to_bytes({"a": value}))
        depth = 0
        while isinstance(made, (dict, list)):
            made = made[0] if isinstance(made, list) else made["a"]
            depth += 1
        self.assertEqual((made, depth), ("…", MOST_NESTED))
        # What the key becomes depends on how deep this Python can go; a text it is.
        self.assertEqual(list(json.loads(to_bytes({key: 1})).values()), [1])
        for text in (b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000):
            self.assertEqual(to_value(text), text.decode())

    def test_text_that_is_no_utf_8(self) -> None:
        self.assertEqual(to_bytes("\udcff"), b"\xff")
        self.assertEqual(to_bytes({"\udcff": ["\udcff"]}), b'{"?":["?"]}')

    def test_to_value(self) -> None:
        """JSON becomes its value, else text, else it stays binary."""
        self.assertEqual(to_value(b'{"a":1}'), {"a": 1})
        self.assertEqual(to_value(b"hello"), "hello")
        self.assertEqual(to_value(b""), "")
        self.assertEqual(to_value(b"\xff\xfe"), b"\xff\xfe")

    @given(anything)
    def test_any_value_becomes_bytes(self, value: Any) -> None:
        """Whatever a value door carries, a byte door gets something; never an exception."""
        made = to_bytes(value)
        self.assertIsInstance(made, bytes)
        if not isinstance(value, (bytes, str)):
            json.loads(made)

    @given(st.binary())
    def test_any_bytes_become_a_value(self, payload: bytes) -> None:
        to_value(payload)

    def test_both_forms_are_exact_within_their_kind(self) -> None:
        """A message keeps the form it came in, text that looks like a number among them."""
        for value in ({"deep": [{"n": None}]}, "12", "null", b"12", b"\xff", 12, "\udcff", ""):
            self.assertEqual(Message("a", value=value).value, value)
        self.assertEqual(Message("a", b"\x00\xff").payload, b"\x00\xff")
        self.assertEqual(Message("a").payload, b"")
        self.assertIsNone(Message("a", value=None).value)
