"""Tests for `rtmb.core.journal`, `rtmb.codecs.columns` and `rtmb.doors.http.journal`."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import Request, Site

from rtmb.auth import ANYONE, Rule, User
from rtmb.codecs import columns as frames
from rtmb.config import SettingsError
from rtmb.core.journal import MOST_LEASES, Journal, LeaseError, Repeats
from rtmb.core.message import Message
from rtmb.core.segments import TAIL_COST, Selection
from rtmb.core.subjects import hears
from rtmb.doors.http.journal import journaling
from rtmb.test.memory import MemoryBroker

EVERYTHING = Selection()


def rows_of(body: bytes | list[frames.Buffer]) -> list[dict[str, Any]]:
    """The messages of frames, one by one."""
    whole = body if isinstance(body, bytes) else b"".join(body)
    found = []
    for described, columns in frames.decode(whole):
        n = described.get("rows")
        if n is None:
            continue
        texts = columns[4:]
        data, replies, headers = (
            frames.spans(texts[i], texts[i + 1], n) if len(texts[i]) else [b""] * n
            for i in (0, 2, 4)
        )
        numbers = [frames.from_numbers(c, v) for c, v in zip("qqii", columns[:4], strict=True)]
        for i in range(n):
            found.append(
                {
                    "seq": numbers[0][i],
                    "time": numbers[1][i] / 1e6,
                    "subject": described["subjects"][numbers[2][i]],
                    "door": described["doors"][numbers[3][i]],
                    "data": data[i],
                    "reply": replies[i],
                    "headers": headers[i],
                }
            )
    return found


class JournalTests(SynchronousTestCase):
    """The ring."""

    def setUp(self) -> None:
        self.now = 100.0

    def journal(self, *patterns: str, **limits: int) -> Journal:
        return Journal(patterns or (">",), lambda: self.now, **limits)

    def fill(self, journal: Journal, count: int, subject: str = "a", size: int = 1) -> None:
        for _ in range(count):
            data = str(journal.next).encode().rjust(size)
            journal.append(Message(subject, data, time=self.now, door="nats"))

    def seqs(self, journal: Journal, start: int, end: int, wanted: Selection = EVERYTHING) -> Any:
        return [row["seq"] for row in rows_of(journal.read(start, end, wanted)[1])]

    def test_numbers_begin_with_1(self) -> None:
        journal = self.journal()
        self.assertEqual((journal.first, journal.next, len(journal)), (1, 1, 0))
        self.fill(journal, 3)
        self.assertEqual((journal.first, journal.next, len(journal)), (1, 4, 3))
        self.assertEqual(self.seqs(journal, 1, 4), [1, 2, 3])
        self.assertEqual(self.seqs(journal, 2, 3), [2])
        self.assertEqual(self.seqs(journal, 4, 9), [])

    def test_an_epoch_for_each_life(self) -> None:
        self.assertNotEqual(self.journal().epoch, self.journal().epoch)

    def test_wants(self) -> None:
        """As subscriptions do: the broker's own subjects by name only."""
        journal = self.journal("a.*", "!system/events/drop")
        for subject, wanted in (
            ("a.b", True),
            ("a", False),
            ("a.b.c", False),
            ("!system/events/drop", True),
            ("!system/events/connect", False),
        ):
            self.assertEqual(journal.wants(subject), wanted, subject)
        self.assertFalse(self.journal(">").wants("!system/events/drop"))

    def test_a_message_whole(self) -> None:
        """All that was published comes out, from a `Message` and from the text door's bytes."""
        block = b"NATS/1.0\r\nA: b\r\n\r\n"
        journal = self.journal()
        journal.append(
            Message("a.b", b"\x00\r\n", reply="r.1", headers=block, time=5.25, door="msgpack")
        )
        journal.append(Message("v", value={"x": 1}, time=6.0, door="ws"))
        journal.extend(["t", "u"], 7.5, "nats", [b"2\r\nhi\r\n", b"r.2 5\r\na\r\nb \r\n"])
        first, second, third, fourth = rows_of(journal.read(1, 9, EVERYTHING)[1])
        self.assertEqual(
            first,
            {
                "seq": 1, "time": 5.25, "subject": "a.b", "door": "msgpack",
                "data": b"\x00\r\n", "reply": b"r.1", "headers": block,
            },
        )  # fmt: skip
        self.assertEqual((second["data"], second["reply"], second["door"]), (b'{"x":1}', b"", "ws"))
        self.assertEqual((third["subject"], third["data"], third["reply"]), ("t", b"hi", b""))
        self.assertEqual((fourth["subject"], fourth["data"]), ("u", b"a\r\nb "))
        self.assertEqual((fourth["reply"], fourth["time"]), (b"r.2", 7.5))

    def test_without_headers(self) -> None:
        journal = self.journal()
        journal.append(Message("a", b"x", headers=b"NATS/1.0\r\nA: b\r\n\r\n"))
        (row,) = rows_of(journal.read(1, 2, EVERYTHING, headers=False)[1])
        self.assertEqual(row["headers"], b"")

    def test_subjects_that_are_no_utf8(self) -> None:
        journal = self.journal()
        journal.append(Message(b"a.\xff".decode("utf-8", "surrogateescape"), b"x"))
        (row,) = rows_of(journal.read(1, 2, EVERYTHING)[1])
        self.assertEqual(row["subject"], "a.\ufffd")

    def test_bounded_by_messages(self) -> None:
        journal = self.journal(messages=100)
        for _ in range(40):
            self.fill(journal, 7)
            self.assertLessEqual(len(journal), 100)
        self.assertGreaterEqual(len(journal), 90)
        self.assertEqual(journal.next, 281)
        self.assertEqual(self.seqs(journal, 1, 281), list(range(journal.first, 281)))

    def test_bounded_by_bytes(self) -> None:
        """However messages come: one by one, or many at a time."""
        journal = self.journal(budget=100_000)
        for _ in range(50):
            self.fill(journal, 10, size=200)
            journal.extend(["a"] * 50, 1.0, "nats", [b"200\r\n" + bytes(200) + b"\r\n"] * 50)
            self.assertLessEqual(journal.held, 100_000)
        self.assertGreater(journal.held, 80_000)
        self.assertEqual(self.seqs(journal, 1, journal.next)[0], journal.first)
        journal.read(1, journal.next, EVERYTHING)  # full segments become smaller when read
        self.assertLess(journal.held, 80_000)

    def test_a_chunk_larger_than_all(self) -> None:
        """What fits of it is kept."""
        journal = self.journal(budget=64_000)
        journal.extend(["a"] * 5000, 1.0, "nats", [b"1\r\nx\r\n"] * 5000)
        self.assertEqual(journal.next, 5001)
        self.assertLessEqual(journal.held, 64_000)
        self.assertGreater(len(journal), 64_000 // (TAIL_COST + 6) * 9 // 10)

    def test_a_message_larger_than_all(self) -> None:
        """It is not kept, and neither hidden: its number is missing."""
        journal = self.journal(budget=1000)
        self.fill(journal, 1, size=5000)
        self.assertEqual((journal.first, journal.next, journal.held), (2, 2, 0))

    def test_at_time(self) -> None:
        journal = self.journal(messages=64)
        for self.now in range(100, 200):
            self.fill(journal, 1)
        self.assertEqual(journal.at_time(150), 51)
        self.assertEqual(journal.at_time(149.5), 51)
        self.assertEqual(journal.at_time(0), journal.first)
        self.assertEqual(journal.at_time(1000), journal.next)
        journal.read(1, 101, EVERYTHING)
        self.assertEqual(journal.at_time(150), 51, "after it became columns")

    def test_read_in_parts(self) -> None:
        """`limit` counts what is wanted; where to go on is always told."""
        journal = self.journal(messages=1600)
        for _ in range(300):
            self.fill(journal, 1, "a")
            self.fill(journal, 2, "b")
        wanted, position, found = Selection(["a"]), 1, []
        while position < journal.next:
            then, pieces = journal.read(position, journal.next, wanted, limit=7)
            got = [row["seq"] for row in rows_of(pieces)]
            self.assertLessEqual(len(got), 7)
            self.assertGreater(then, position)
            found += got
            position = then
        self.assertEqual(found, list(range(1, 901, 3)))
        then, pieces = journal.read(1, 901, EVERYTHING, size=100)
        self.assertLess(then, 901, "an answer does not become too large")
        self.assertEqual(len(rows_of(pieces)), then - 1)

    def test_measure(self) -> None:
        journal = self.journal(messages=320)
        for _ in range(100):
            self.fill(journal, 1, "a", size=10)
            self.fill(journal, 2, "b", size=10)
        a = Selection(["a"])
        self.assertEqual(journal.measure(1, EVERYTHING), (301, 300))
        self.assertEqual(journal.measure(1, a), (301, 100))
        self.assertEqual(journal.measure(1, a, 10), (31, 10))
        self.assertEqual(journal.measure(31, a, 10), (61, 10))
        self.assertEqual(journal.measure(1, EVERYTHING, 300), (301, 300))
        self.assertEqual(journal.measure(1, EVERYTHING, None, 100), (11, 10))
        self.assertEqual(journal.measure(1, a, 5, 1000), (16, 5))
        self.assertEqual(journal.measure(1, a, 500, 1), (4, 1), "one at least")
        self.assertEqual(journal.measure(301, a, 10), (301, 0))
        journal.read(1, 301, EVERYTHING)
        self.assertEqual(journal.measure(1, EVERYTHING, None, 100), (11, 10), "as columns too")

    def test_news(self) -> None:
        """Told once for each time that someone asked."""
        journal, told = self.journal(), []
        journal.on_news(lambda: told.append(journal.next))
        self.fill(journal, 3)
        self.assertEqual(told, [2])
        journal.on_news(lambda: told.append(journal.next))
        journal.extend(["a"] * 5, 1.0, "nats", [b"1\r\nx\r\n"] * 5)
        self.assertEqual(told, [2, 9])

    @given(
        st.lists(
            st.tuples(st.sampled_from(["a", "a.b", "a.c", "b"]), st.integers(1, 40)), max_size=40
        ),
        st.sampled_from([">", "a.*", "a", "b", "nothing"]),
        st.integers(1, 400),
        st.integers(1, 400),
        st.booleans(),
    )
    @settings(max_examples=80, deadline=None)
    def test_like_a_list(
        self, steps: list[tuple[str, int]], pattern: str, start: int, end: int, early: bool
    ) -> None:
        """Whatever came how, a range read is what a plain list would give."""
        journal = Journal([">"], lambda: 1.0, messages=200)
        model: list[tuple[int, str, bytes]] = []
        for i, (subject, count) in enumerate(steps):
            payloads = [b"%d" % n for n in range(journal.next, journal.next + count)]
            model += [(int(p), subject, p) for p in payloads]
            if i % 2:
                tails = [b"%d\r\n%b\r\n" % (len(p), p) for p in payloads]
                journal.extend([subject] * count, 1.0, "nats", tails)
            else:
                for payload in payloads:
                    journal.append(Message(subject, payload))
            if early:
                journal.read(1, journal.next, EVERYTHING)
        _, pieces = journal.read(start, end, Selection([pattern]))
        got = [(row["seq"], row["subject"], row["data"]) for row in rows_of(pieces)]
        kept = [m for m in model if m[0] >= journal.first]
        self.assertEqual(got, [m for m in kept if start <= m[0] < end and hears(pattern, m[1])])
        wanted = [m for m in kept if m[0] >= start and hears(pattern, m[1])]
        self.assertEqual(journal.measure(start, Selection([pattern])).messages, len(wanted))

    # Leases

    def test_a_lease_ends_by_itself(self) -> None:
        journal = self.journal()
        journal.lease("q", 1, 10.0)
        self.now += 9
        journal.renew("q")
        self.now += 9
        self.assertIn("q", journal.leases)
        self.now += 1
        self.assertEqual(journal.leases, {})
        journal.renew("q")
        self.assertEqual(journal.leases, {}, "what has ended is not renewed")
        journal.lease("q", 1, 10.0)
        self.assertTrue(journal.release("q"))
        self.assertFalse(journal.release("q"))

    def test_leases_are_bounded(self) -> None:
        journal = self.journal()
        for i in range(MOST_LEASES):
            journal.lease(str(i), 1, 10.0)
        self.assertRaises(LeaseError, journal.lease, "one more", 1, 10.0)
        journal.lease("5", 2, 10.0)
        self.now += 10
        journal.lease("one more", 1, 10.0)

    def test_told_before_it_is_too_late(self) -> None:
        """Once, while the position is still there; again after it had recovered."""
        journal = self.journal(messages=160)
        told: list[tuple[int, int]] = []
        journal.alarm = lambda lease: told.append((lease.position, journal.first))
        journal.lease("q", 1, 1e6)
        self.fill(journal, 120)
        self.assertEqual(told, [])
        self.fill(journal, 39)
        self.assertEqual(told, [(1, 1)], "nothing is lost yet")
        self.fill(journal, 500)
        self.assertEqual(len(told), 1, "once")
        journal.lease("q", journal.next, 1e6)
        self.fill(journal, 150)
        self.assertEqual(len(told), 2)
        self.assertGreaterEqual(told[1][0], told[1][1], "nothing is lost yet")

    def test_lag(self) -> None:
        journal = self.journal(messages=100)
        journal.lease("q", 11, 60.0, ("a.*",))
        self.fill(journal, 50)
        (lease,) = journal.stats()["leases"]
        self.assertEqual((lease["lag"], lease["lost"], lease["subjects"]), (40, 0, ["a.*"]))
        self.fill(journal, 150)
        stats = journal.stats()
        (lease,) = stats["leases"]
        self.assertEqual(lease["lag"], stats["messages"])
        self.assertEqual(lease["lost"], journal.first - 11)
        self.assertEqual((stats["consumers"], stats["largest_lag"]), (1, lease["lag"]))
        self.assertEqual(stats["overwritten"], journal.first - 1)


class RepeatsTests(SynchronousTestCase):
    """Ids that were seen."""

    def setUp(self) -> None:
        self.now = 0.0

    def repeats(self, most: int = 1000) -> Repeats:
        return Repeats(10.0, lambda: self.now, most)

    def test_rows(self) -> None:
        repeats = self.repeats()
        self.assertEqual([repeats.fresh(b"q", i) for i in (0, 1, 2)], [True] * 3)
        self.assertEqual([repeats.fresh(b"q", i) for i in (0, 2, 3)], [False, False, True])
        self.assertTrue(repeats.fresh(b"other", 0))
        self.assertEqual(len(repeats), 2, "a row is one entry")

    def test_window(self) -> None:
        """Known for the window at least, for twice as long at most."""
        repeats = self.repeats()
        self.now = 9.0
        self.assertTrue(repeats.fresh(b"id"))
        for self.now in (10.0, 15.0, 19.0):
            repeats.tick()
            self.assertFalse(repeats.fresh(b"id"), str(self.now))
        self.now = 29.0
        repeats.tick()
        self.assertTrue(repeats.fresh(b"id"))
        self.now = 100.0
        repeats.tick()
        self.assertEqual(len(repeats), 0, "after a long silence nothing is left")

    def test_bounded(self) -> None:
        repeats = self.repeats(most=100)
        for i in range(1000):
            repeats.fresh(b"%d" % i)
            self.assertLessEqual(len(repeats), 100)
        self.assertFalse(repeats.fresh(b"999"))
        self.assertGreater(repeats.forgotten, 0)


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


class Http:
    """The journal's resources on a broker without sockets; calls come by one connection."""

    def __init__(self, **settings: Any) -> None:
        self.memory = MemoryBroker(no_http=True, no_msgpack=True, **settings)
        self.hub, self.clock = self.memory.hub, self.memory.clock
        self.user = ANYONE
        root = Resource()
        for name, resource in journaling(self.memory.broker).items():
            root.putChild(name, resource)
        self._site = Site(root, reactor=self.clock, timeout=None)
        self._site.requestFactory = self._request  # type: ignore[assignment]
        self.connect()

    def connect(self) -> None:
        self.transport = StringTransport()
        self.channel = self._site.buildProtocol(None)
        self.channel.makeConnection(self.transport)

    def _request(self, *args: Any, **kwargs: Any) -> Request:
        request = Request(*args, **kwargs)
        request.rtmb_user = self.user  # type: ignore[attr-defined]
        return request

    def send(self, method: str, target: str, body: bytes = b"") -> None:
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.channel.dataReceived(head.encode() + body)

    def answer(self) -> tuple[int, bytes] | None:
        """The status and body of the next answer, if it is there."""
        said = self.transport.value()
        head, found, rest = said.partition(b"\r\n\r\n")
        if not found:
            return None
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if b"content-length" in fields:
            length = int(fields[b"content-length"])
            body, rest = rest[:length], rest[length:]
        else:
            body = b""
            while (size := int(rest.split(b"\r\n", 1)[0], 16)) > 0:
                start = rest.index(b"\r\n") + 2
                body, rest = body + rest[start : start + size], rest[start + size + 2 :]
            rest = rest[5:]
        self.transport.clear()
        self.transport.write(rest)
        return int(head.split()[1]), body

    def call(self, method: str, target: str, body: bytes = b"") -> tuple[int, Any]:
        self.send(method, target, body)
        found = self.answer()
        assert found is not None, "no answer"
        status, said = found
        return status, json.loads(said) if said[:1] == b"{" else said

    def get(self, target: str) -> Any:
        status, said = self.call("GET", target)
        assert status == 200, said
        return said

    def publish(self, subject: str, *payloads: bytes) -> None:
        for payload in payloads:
            self.hub.publish(Message(subject, payload, door="test"))


def batch(
    on: list[str], payloads: list[bytes], *, source: str = "q/0/0", first: float = 0,
    ids: list[bytes] | None = None, headers: list[bytes] | None = None, **more: Any,
) -> bytes:  # fmt: skip
    """A body for ``/journal/publish``."""

    def texts(values: list[bytes] | None) -> list[frames.Buffer]:
        if values is None:
            return [b"", b""]
        ends = [sum(map(len, values[:i])) for i in range(len(values) + 1)]
        return [frames.numbers("i", ends), b"".join(values)]

    names = list(dict.fromkeys(on))
    described = {
        "rows": len(on), "subjects": names, "source": source, "first": first, **more,
    }  # fmt: skip
    which = frames.numbers("i", [names.index(s) for s in on])
    columns = [which, *texts(payloads), *texts(headers), *texts(ids)]
    return b"".join(frames.encode(described, columns))


class HttpTests(SynchronousTestCase):
    """The calls."""

    def setUp(self) -> None:
        self.http = Http(journal=(">",), journal_messages=160, dedup_window=10.0)
        journal = self.http.memory.broker.journal
        assert journal is not None
        self.journal = journal

    def refused(
        self, status: int, pattern: str, method: str, target: str, body: bytes = b""
    ) -> Any:
        found, said = self.http.call(method, target, body)
        self.assertEqual(found, status, said)
        self.assertRegex(said["error"]["message"], pattern)
        return said

    def test_every_door_and_path(self) -> None:
        """What is published at the text door is there, by its bulk walk too, in order."""
        peer = self.http.memory.connect()
        peer.send(b"".join(b"PUB a 2\r\n%02d\r\n" % i for i in range(50)))
        peer.send(b"PUB b 1\r\nx\r\nHPUB c r 12 13\r\nNATS/1.0\r\n\r\ny\r\n")
        peer.send(b"".join(b"PUB a 2\r\n%02d\r\n" % i for i in range(50, 99)))
        rows = rows_of(self.http.get("/journal"))
        self.assertEqual([row["seq"] for row in rows], list(range(1, 102)))
        self.assertEqual(
            [int(row["data"]) for row in rows if row["subject"] == "a"], list(range(99))
        )
        self.assertEqual([rows[50]["data"], rows[51]["reply"]], [b"x", b"r"])
        self.assertEqual({row["door"] for row in rows}, {"nats"})

    def test_range(self) -> None:
        self.http.publish("a", *[b"%d" % i for i in range(1, 11)])
        self.http.publish("b", *[b"%d" % i for i in range(11, 21)])

        def read(query: str) -> list[int]:
            return [row["seq"] for row in rows_of(self.http.get(f"/journal?{query}"))]

        self.assertEqual(read("from=5&to=8"), [5, 6, 7])
        self.assertEqual(read("subject=b&limit=3"), [11, 12, 13])
        self.assertEqual(read("subject=a&subject=b"), list(range(1, 21)))
        parts = [read(f"from=3&to=18&partition={i}/4") for i in range(4)]
        self.assertEqual([seq for part in parts for seq in part], list(range(3, 18)))
        self.assertTrue(all(parts))
        (told, _), *_ = frames.decode(self.http.get("/journal?from=5&to=8&limit=2"))
        wanted = {
            "epoch": self.journal.epoch, "first": 1, "next": 21, "from": 5, "to": 8, "then": 7,
            "lost": None, "sizes": [],
        }  # fmt: skip
        self.assertEqual(told, wanted)

    def test_loss_is_told(self) -> None:
        self.http.publish("a", *[b"x"] * 400)
        first = self.journal.first
        self.assertGreater(first, 200)
        (told, _), *_ = frames.decode(self.http.get("/journal?from=7"))
        self.assertEqual(told["lost"], [7, first])
        (told, _), *batches = frames.decode(self.http.get("/journal?from=7&to=20"))
        self.assertEqual((told["lost"], told["then"], batches), ([7, 20], 20, []))

    def test_another_epoch(self) -> None:
        for target in ("/journal?epoch=old", "/journal/wait?epoch=old"):
            said = self.refused(409, "restarted", "GET", target)
            self.assertEqual((said["epoch"], said["next"]), (self.journal.epoch, 1))
        self.http.get(f"/journal?epoch={self.journal.epoch}")

    def test_position(self) -> None:
        self.http.publish("a", b"1", b"2")
        self.http.clock.advance(100)
        self.http.publish("a", b"3")
        now = self.http.clock.seconds()
        for query, seq in (
            ("at=earliest", 1),
            ("at=latest", 4),
            (f"time={now - 50}", 3),
            (f"time={now + 50}", 4),
        ):
            self.assertEqual(self.http.get(f"/journal/position?{query}")["seq"], seq, query)
        self.refused(400, "at=earliest", "GET", "/journal/position?at=first")
        self.refused(400, "seconds", "GET", "/journal/position?time=noon")

    def test_wrong_arguments(self) -> None:
        for target, pattern in (
            ("/journal?from=x", "from must be a whole number"),
            ("/journal?limit=-1", "limit"),
            ("/journal?subject=a..b", "not a subject"),
            ("/journal?partition=4/4", "i/n"),
            ("/journal?partition=4", "i/n"),
            ("/journal/wait?timeout=soon", "timeout"),
            ("/journal/wait?timeout=nan", "timeout"),
        ):
            self.refused(400, pattern, "GET", target)

    def test_wait(self) -> None:
        """Answers at once when there is something, or when it comes, or when time is up."""
        self.http.publish("a", b"1", b"2")
        self.assertEqual(self.http.get("/journal/wait?from=1&timeout=5")["messages"], 2)
        self.http.send("GET", "/journal/wait?from=3&timeout=5&subject=a")
        self.http.publish("b", b"3")
        self.http.clock.advance(0)
        self.assertIsNone(self.http.answer(), "that was not asked for")
        self.http.publish("a", b"4", b"5")
        self.assertIsNone(self.http.answer(), "not in the middle of a delivery")
        self.http.clock.advance(0)
        found = self.http.answer()
        assert found is not None
        said = json.loads(found[1])
        self.assertEqual((said["to"], said["messages"], said["enough"]), (6, 2, True))
        self.http.send("GET", "/journal/wait?from=6&timeout=5")
        self.http.clock.advance(4.9)
        self.assertIsNone(self.http.answer())
        self.http.clock.advance(0.2)
        found = self.http.answer()
        assert found is not None
        said = json.loads(found[1])
        self.assertEqual((said["to"], said["messages"], said["enough"]), (6, 0, False))

    def test_wait_for_many(self) -> None:
        self.http.send("GET", "/journal/wait?from=1&timeout=5&least=3&messages=10")
        for i in range(2):
            self.http.publish("a", b"x")
            self.http.clock.advance(1)
            self.assertIsNone(self.http.answer(), str(i))
        self.http.publish("a", b"x")
        self.http.clock.advance(1)
        found = self.http.answer()
        assert found is not None
        self.assertEqual(json.loads(found[1])["messages"], 3)

    def test_who_waits_may_leave(self) -> None:
        self.http.send("GET", "/journal/wait?from=1&timeout=5")
        self.http.channel.connectionLost(Failure(ConnectionDone()))
        self.http.connect()
        self.http.publish("a", b"x")
        self.http.clock.advance(10)
        self.assertEqual(self.http.get("/journal/wait?from=1&timeout=5")["messages"], 1)

    def test_limits(self) -> None:
        """How far a reader may go within messages and bytes of what it wants."""
        for _ in range(10):
            self.http.publish("a", b"12345")
            self.http.publish("b", b"12345", b"12345")
        for query, to in (("messages=2", 3), ("messages=2&subject=a", 7), ("bytes=20", 5)):
            self.assertEqual(self.http.get(f"/journal/wait?from=1&{query}")["to"], to, query)

    def test_lease(self) -> None:
        self.http.publish("a", *[b"x"] * 20)
        body = json.dumps({"position": 5, "ttl": 60, "subjects": ["a.*"]}).encode()
        status, said = self.http.call("PUT", "/journal/leases/my%20query/1", body)
        self.assertEqual((status, said["lag"], said["lost"]), (200, 16, 0))
        (lease,) = self.http.get("/journalz")["journal"]["leases"]
        self.assertEqual((lease["consumer"], lease["position"]), ("my query/1", 5))
        self.http.clock.advance(50)
        self.http.get("/journal?consumer=my%20query/1")
        self.http.clock.advance(50)
        self.assertEqual(len(self.http.get("/journal/leases")["leases"]), 1, "reading renewed it")
        self.http.clock.advance(10)
        self.assertEqual(self.http.get("/journal/leases")["leases"], [])
        self.http.call("POST", "/journal/leases/q", body)
        self.assertEqual(self.http.call("DELETE", "/journal/leases/q"), (200, {"released": True}))
        for bad in (b"", b"[]", b'{"position": "5", "ttl": 1}', b'{"position": 5, "ttl": 0}'):
            self.refused(400, "a lease is", "PUT", "/journal/leases/q", bad)
        self.refused(400, "consumer", "PUT", "/journal/leases/", body)
        self.refused(409, "restarted", "PUT", "/journal/leases/q?epoch=old", body)

    def test_a_consumer_that_falls_behind_is_told_of(self) -> None:
        heard: list[dict[str, Any]] = []
        peer = self.http.memory.connect(b"SUB !system/events/journal_lag 1\r\n")
        self.http.call("PUT", "/journal/leases/slow", b'{"position": 1, "ttl": 1000}')
        for _ in range(30):
            self.http.publish("a", *[b"x"] * 10)
            self.http.clock.advance(0)
            said = peer.heard()
            if said:
                heard.append(json.loads(said.split(b"\r\n")[1]))
                self.assertEqual(self.journal.first, 1, "nothing is lost yet")
        self.assertEqual([h["consumer"] for h in heard], ["slow"])
        self.assertEqual((heard[0]["position"], heard[0]["lost"]), (1, 0))

    def test_permissions(self) -> None:
        """Reading needs the right to subscribe; what is denied is left out."""
        self.http.publish("a.x", b"1")
        self.http.publish("a.secret", b"2")
        self.http.publish("b", b"3")
        self.http.user = User(
            "bob", subscribe=Rule(("a.*",), ("a.secret",)), publish=Rule(("out",))
        )
        for target in ("/journal", "/journal?subject=b", "/journal/wait?subject=b"):
            self.refused(403, "bob may not subscribe", "GET", target)
        rows = rows_of(self.http.get("/journal?subject=a.*"))
        self.assertEqual([row["subject"] for row in rows], ["a.x"])
        self.assertEqual(self.http.get("/journal/wait?from=1&subject=a.*")["messages"], 1)
        body = json.dumps({"position": 1, "ttl": 1, "subjects": ["b"]}).encode()
        self.refused(403, "bob may not subscribe to b", "PUT", "/journal/leases/q", body)
        mixed = batch(["out", "b"], [b"1", b"2"])
        self.refused(403, "bob may not publish to b", "POST", "/journal/publish", mixed)
        self.assertEqual(self.journal.next, 4, "nothing of it was published")

    # Publishing

    def test_publish_once(self) -> None:
        peer = self.http.memory.library(verbose=False)
        peer.send(b"SUB out.* 1\r\n")
        body = batch(["out.a", "out.b", "out.a"], [b"1", b"2", b"3"])
        self.assertEqual(
            self.http.call("POST", "/journal/publish", body),
            (200, {"published": 3, "duplicates": 0}),
        )
        heard = peer.heard()
        self.assertIn(b"HMSG out.a 1 34 35\r\nNATS/1.0\r\nNats-Msg-Id: q/0/0/0\r\n\r\n1\r\n", heard)
        self.assertEqual(heard.count(b"HMSG "), 3)
        longer = batch(["out.a"] * 2, [b"3", b"4"], first=2)
        self.assertEqual(
            self.http.call("POST", "/journal/publish", longer),
            (200, {"published": 1, "duplicates": 1}),
        )
        self.assertEqual(peer.heard().count(b"HMSG "), 1)
        self.http.clock.advance(25)
        status, said = self.http.call("POST", "/journal/publish", body)
        self.assertEqual((status, said["published"]), (200, 3), "the window is over")

    def test_publish_with_ids_and_headers(self) -> None:
        mine = b"NATS/1.0\r\nNats-Msg-Id: mine\r\n\r\n"
        body = batch(
            ["o"] * 4, [b"1", b"2", b"3", b"1"], ids=[b"k1", b"k2", b"k3", b"k1"],
            headers=[b"", b"NATS/1.0\r\nA: b\r\n\r\n", mine, b""],
        )  # fmt: skip
        status, said = self.http.call("POST", "/journal/publish", body)
        self.assertEqual((status, said), (200, {"published": 3, "duplicates": 1}))
        rows = rows_of(self.http.get("/journal?subject=o"))
        self.assertEqual(
            [row["headers"] for row in rows],
            [
                b"NATS/1.0\r\nNats-Msg-Id: k1\r\n\r\n",
                b"NATS/1.0\r\nNats-Msg-Id: k2\r\nA: b\r\n\r\n",
                mine,
            ],
        )
        self.assertEqual({row["door"] for row in rows}, {"spark"})

    def test_bad_bodies(self) -> None:
        """Each is refused whole, and the broker stands."""
        good = batch(["o"] * 2, [b"1", b"2"])
        for body, pattern in (
            (b"", "not a body"),
            (b"junk", "not a body"),
            (good[:-4], "cut off"),
            (good + good, "not a body"),
            (batch(["o", "bad subject"], [b"1", b"2"]), "not a subject"),
            (batch(["o.*"], [b"1"]), "not a subject"),
            (batch(["o"], [b"1"], rows=2), "do not agree"),
            (batch(["o"], [b"1"], rows="x"), "do not agree"),
            (batch(["o"], [b"1"], first=-1.5), "source and first"),
            (batch(["o"], [b"1"], subjects=["\ud800"]), "not a body"),
            (batch(["o"], [b"1"], subjects=7), "not a body"),
            (batch(["o"], [b"1"], subjects=[]), "do not agree"),
            (batch(["o"] * 2, [b"1", b"2"], ids=[b"fine", b"not\r\nfine"]), "line end"),
            (batch(["o"], [b"1"], headers=[b"A: b\r\n\r\n"]), "NATS/1.0"),
        ):
            self.refused(400, pattern, "POST", "/journal/publish", body)
        huge = bytes(self.http.memory.broker.settings.max_payload)
        self.refused(413, "allowed", "POST", "/journal/publish", batch(["o"], [huge]))
        self.assertEqual(self.journal.next, 1)

    def test_without_a_journal(self) -> None:
        """Publishing works; reading says what is missing."""
        http = Http()
        self.assertEqual(http.get("/journalz"), {"journal": None})
        status, said = http.call("GET", "/journal")
        self.assertEqual(status, 404)
        self.assertIn("--journal", said["error"]["message"])
        status, said = http.call("POST", "/journal/publish", batch(["o"], [b"1"]))
        self.assertEqual((status, said["published"]), (200, 1))

    def test_a_pattern_that_is_none(self) -> None:
        self.assertRaises(SettingsError, Http, journal=("a..b",))

    def test_calls_one_after_another(self) -> None:
        """Several calls may be under way; they are answered in their order."""
        for i in range(3):
            self.http.send("POST", "/journal/publish", batch(["o"], [b"%d" % i], first=i))
        for _ in range(3):
            found = self.http.answer()
            assert found is not None
            self.assertEqual(json.loads(found[1])["published"], 1)
        rows = rows_of(self.http.get("/journal"))
        self.assertEqual([row["data"] for row in rows], [b"0", b"1", b"2"])
