"""Tests for `rtmb.codecs.columns`."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rtmb.codecs import columns as frames


class FramesTests(SynchronousTestCase):
    def test_there_and_back(self) -> None:
        columns = [frames.numbers("q", [1, -2]), b"", b"abc"]
        body = b"".join(frames.encode({"a": "é"}, columns) + frames.encode({}))
        (first, found), (second, none) = frames.decode(body)
        self.assertEqual((first["a"], second["sizes"], none), ("é", [], []))
        self.assertEqual([bytes(c) for c in found], columns)
        self.assertEqual(list(frames.from_numbers("q", found[0])), [1, -2])
        self.assertEqual(len(body) % 8, 0)

    def test_what_is_no_frame(self) -> None:
        body = b"".join(frames.encode({"rows": 1}, [b"12345678", b"x"]))
        for bad in (body[:-8], body[:4], b"\xff" * 16, b"\2\0\0\0\0\0\0\0[]......", b"junk"):
            self.assertRaises(frames.FrameError, lambda bad=bad: list(frames.decode(bad)))
        for offsets in ([0, 5], [0, 2, 1, 3], [1, 2, 3, 3], [0, 1, 2, 9]):
            column = frames.numbers("i", offsets)
            self.assertRaises(frames.FrameError, frames.spans, column, b"abc", 3)
        self.assertRaises(frames.FrameError, frames.from_numbers, "i", b"123")
