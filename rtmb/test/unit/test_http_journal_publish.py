"""Tests for `rtmb.doors.http.journal_publish`: messages with ids, each published once."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmb.auth import User
from rtmb.codecs.arrow_reader import ArrowError, read_rows
from rtmb.test.support.journal import JournalCase, arrow_stream, batch, rows_of


class PublishTests(JournalCase):
    """Publishing."""

    def post(self, body: bytes, source: str = "q/0/0", first: int = 0) -> tuple[int, Any]:
        return self.http.call("POST", f"/journal/publish?source={source}&first={first}", body)

    def test_publish_once(self) -> None:
        peer = self.http.memory.library(verbose=False)
        peer.send(b"SUB out.* 1\r\n")
        body = batch(["out.a", "out.b", "out.a"], [b"1", b"2", b"3"])
        self.assertEqual(
            self.post(body),
            (200, {"published": 3, "duplicates": 0}),
        )
        heard = peer.heard()
        self.assertIn(b"HMSG out.a 1 34 35\r\nNATS/1.0\r\nNats-Msg-Id: q/0/0/0\r\n\r\n1\r\n", heard)
        self.assertEqual(heard.count(b"HMSG "), 3)
        longer = batch(["out.a"] * 2, [b"3", b"4"])
        self.assertEqual(
            self.post(longer, first=2),
            (200, {"published": 1, "duplicates": 1}),
        )
        self.assertEqual(peer.heard().count(b"HMSG "), 1)
        self.http.clock.advance(25)
        status, said = self.post(body)
        self.assertEqual((status, said["published"]), (200, 3), "the window is over")

    def test_ids_belong_to_their_user(self) -> None:
        """Another user's ids make nothing of yours a duplicate."""
        body = batch(["o"], [b"1"], id=["k"])
        for name, published in (("eve", 1), ("ann", 1), ("eve", 0), ("ann", 0)):
            self.http.user = User(name)
            _, said = self.http.call("POST", "/journal/publish", body)
            self.assertEqual(said["published"], published, name)

    def test_publish_with_ids_and_headers(self) -> None:
        body = batch(
            ["o"] * 4, [b"1", b"2", b"3", b"1"], id=["k1", "k2", "k3", "k1"],
            headers=[None, [("A", "b"), ("C", "d\r\nE: f")], [("nats-msg-id", "mine")], None],
            reply=[None, "r", None, None],
        )  # fmt: skip
        status, said = self.http.call("POST", "/journal/publish", body)
        self.assertEqual((status, said), (200, {"published": 3, "duplicates": 1}))
        rows = rows_of(self.http.get("/journal?subject=o"))
        self.assertEqual(
            [row["headers"] for row in rows],
            [
                {"Nats-Msg-Id": "k1"},
                {"Nats-Msg-Id": "k2", "A": "b", "C": "d E: f"},
                {"nats-msg-id": "mine"},
            ],
        )
        self.assertEqual([row["reply"] for row in rows], [None, "r", None])
        self.assertEqual({row["door"] for row in rows}, {"spark"})

    def test_what_is_read_can_be_published(self) -> None:
        """An answer of the journal is a body to publish, dictionaries and all."""
        self.http.publish("a.b", b"1", b"\xff")
        body = self.http.get("/journal")
        self.assertEqual(self.post(body), (200, {"published": 2, "duplicates": 0}))
        rows = rows_of(self.http.get("/journal?from=3"))
        self.assertEqual([row["data"] for row in rows], [b"1", b"\xff"])
        self.assertEqual(rows[1]["headers"], {"Nats-Msg-Id": "q/0/0/1"})

    def test_kinds_of_columns(self) -> None:
        for text, data in (
            (pa.string(), pa.string()),
            (pa.large_string(), pa.large_binary()),
            (pa.dictionary(pa.int8(), pa.string()), pa.large_string()),
            (pa.string_view(), pa.binary_view()),
            (pa.dictionary(pa.int64(), pa.large_string()), pa.binary()),
        ):
            columns = {
                "subject": pa.array(["a", "é.b", "a"]).cast(text),
                "data": pa.array([b"\xc3\xa9", b"", None]).cast(data),
            }
            status, said = self.post(arrow_stream(columns), source=f"{text}".replace(" ", ""))
            self.assertEqual((status, said), (200, {"published": 3, "duplicates": 0}))
            rows = rows_of(self.http.get(f"/journal?from={self.journal.next - 3}"))
            self.assertEqual([row["data"] for row in rows], ["é".encode(), b"", b""])
            self.assertEqual([row["subject"] for row in rows], ["a", "é.b", "a"])

    def test_bad_bodies(self) -> None:
        """Each is refused whole, and the broker stands."""
        good = batch(["o"] * 2, [b"1", b"2"])
        text = {"subject": pa.array(["o"] * 9), "data": pa.array(["x" * 999] * 9)}
        for body, pattern in (
            (b"", "not a body"),
            (b"junk", "not a body"),
            (good[: len(good) // 2], "cut off"),
            (good + good, "behind the end"),
            (batch(["o", "bad subject"], [b"1", b"2"]), "not a subject"),
            (batch(["o.*"], [b"1"]), "not a subject"),
            (batch(["o"], [b"1"], reply=["a b"]), "not a subject"),
            (batch(["o", None], [b"1", b"2"]), "no subject"),
            (batch(["o"] * 2, [b"1", b"2"], id=["x", None]), "no id"),
            (batch(["o"], [b"1"], id=["i" * 1025]), "at most 1024"),
            (batch(["o"] * 2, [b"1", b"2"], id=["fine", "not\r\nfine"]), "line end"),
            (batch([7], [b"1"]), "column subject is not text"),
            (batch(["o"], [7]), "column data is not bytes or text"),
            (arrow_stream({"subject": pa.array(["o"])}), "no column data"),
            (arrow_stream({"data": pa.array([b"x"])}), "no column subject"),
            (arrow_stream(text | {"headers": text["data"]}), "headers is not a map"),
            (arrow_stream(text, compression="zstd"), "without compression"),
            (arrow_stream(text, compression="lz4"), "without compression"),
            (batch(["o"] * 10_000, [b""] * 10_000), "at most 8192 messages"),
        ):
            status, said = self.post(body)
            self.assertEqual(status, 400, said)
            self.assertRegex(said["error"]["message"], pattern)
        self.refused(400, "source and first", "POST", "/journal/publish", good)
        self.refused(400, "first must be", "POST", "/journal/publish?source=q&first=x", good)
        limits = self.http.get("/journal/publish")
        most = limits["max_payload"]
        self.assertEqual(most, self.http.memory.broker.settings.max_payload)
        status, said = self.post(batch(["o", "big"], [b"", bytes(most)]))
        self.assertEqual(status, 413)
        self.assertRegex(said["error"]["message"], rf"message q/0/0/1 on big has \d+ bytes.*{most}")
        columns = {
            "subject": pa.array(["o"] * 40),
            "data": pa.array([bytes(most - 2000)] * 40).dictionary_encode(),
        }
        status, said = self.post(arrow_stream(columns))
        self.assertEqual((status, self.journal.next), (413, 1), said)

    @given(st.data())
    @settings(max_examples=300, deadline=None)
    def test_damaged_bodies(self, data: st.DataObject) -> None:
        """Whatever a byte becomes, the body is read or refused."""
        body = bytearray(
            batch(["a", "b"], [b"1", b"22"], headers=[None, [("A", "b")]], id=["x", "y"])
        )
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(body) - 1))
            body[place] = data.draw(st.integers(0, 255))
        with contextlib.suppress(ArrowError):
            found = read_rows(bytes(body), 100)
            self.assertEqual(len(found.subjects), len(found.payloads))
