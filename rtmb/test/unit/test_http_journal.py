"""Tests for `rtmb.doors.http.journal` and its neighbours: the journal's resources."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from rtmb.auth import ANYONE, Rule, User
from rtmb.config import SettingsError
from rtmb.core.message import Message
from rtmb.core.segments import Segment, Selection
from rtmb.doors.http import journal_wait
from rtmb.test.support.journal import Http, JournalCase, batch, rows_of


class HttpTests(JournalCase):
    """The calls."""

    def test_every_door_and_path(self) -> None:
        """What is published at the text door is there, many at a time too, in order."""
        peer = self.http.memory.connect()
        peer.send(b"".join(b"PUB a 2\r\n%02d\r\n" % i for i in range(50)))
        peer.send(b"PUB b 1\r\nx\r\nHPUB c r 12 13\r\nNATS/1.0\r\n\r\ny\r\n")
        peer.send(b"".join(b"PUB a 2\r\n%02d\r\n" % i for i in range(50, 99)))
        rows = rows_of(self.http.get("/journal"))
        self.assertEqual([row["seq"] for row in rows], list(range(1, 102)))
        self.assertEqual(
            [int(row["data"]) for row in rows if row["subject"] == "a"], list(range(99))
        )
        self.assertEqual([rows[50]["data"], rows[51]["reply"]], [b"x", "r"])
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
        self.http.get("/journal?from=5&to=8&limit=2")
        wanted = {
            "rtmb-epoch": self.journal.epoch, "rtmb-first": "1", "rtmb-next": "21",
            "rtmb-from": "5", "rtmb-to": "8", "content-type": "application/vnd.apache.arrow.stream",
        }  # fmt: skip
        self.assertEqual({name: self.http.told[name] for name in wanted}, wanted)
        self.assertNotIn("rtmb-lost", self.http.told)

    def test_json_lines(self) -> None:
        """By what the caller accepts, or an option; a line for each message."""
        self.http.publish("a", b'{"n": 1.50}', b"text", b"\xff", b"")
        block = b"NATS/1.0\r\nA: b\r\n\r\n"
        self.http.hub.publish(Message("b", b"7", reply="r", headers=block, door="nats"))
        for target, more in (
            ("/journal?format=json", ""),
            ("/journal", "Accept: application/x-ndjson\r\n"),
            ("/journal", "Accept: application/json\r\n"),
        ):
            status, said = self.http.call("GET", target, b"", more)
            self.assertEqual(
                (status, self.http.told["content-type"]), (200, "application/x-ndjson")
            )
            self.assertIn(b'"data":{"n": 1.50}', said, "as it came")
            rows = [json.loads(line) for line in said.splitlines()]
            moment = rows[0].pop("timestamp")
            self.assertRegex(moment, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
            self.assertEqual(
                rows[0], {"seq": 1, "subject": "a", "door": "test", "data": {"n": 1.5}}
            )
            self.assertEqual([row["data"] for row in rows[1:4]], ["text", "/w==", ""])
            self.assertEqual([row.get("encoding") for row in rows[1:3]], [None, "base64"])
            self.assertEqual(
                (rows[4]["data"], rows[4]["reply"], rows[4]["headers"]), (7, "r", {"A": "b"})
            )
        self.assertNotIn(b"headers", self.http.get("/journal?format=json&headers=0"))
        for more in ("", "Accept: */*\r\n"):
            _, said = self.http.call("GET", "/journal", b"", more)
            self.assertEqual(len(rows_of(said)), 5, "Arrow is what one gets unasked")

    def test_loss_is_told(self) -> None:
        self.http.publish("a", *[b"x"] * 400)
        first = self.journal.first
        self.assertGreater(first, 200)
        self.http.get("/journal?from=7")
        self.assertEqual(self.http.told["rtmb-lost"], f"7-{first - 1}")
        rows = rows_of(self.http.get("/journal?from=7&to=20"))
        self.assertEqual((self.http.told["rtmb-lost"], rows), ("7-19", []))

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
            ("/journal?partition=%C2%B2/3", "i/n"),
            ("/journal?partition=1/2/3", "i/n"),
            ("/journal?format=xml", "arrow or json"),
            (f"/journal?{'&'.join(['subject=a'] * 65)}", "at most 64 subjects"),
            (f"/journal?subject={'a' * 1025}", "at most 1024 letters"),
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
        self.http.clock.advance(0.01)
        self.assertIsNone(self.http.answer(), "that was not asked for")
        self.http.publish("a", b"4", b"5")
        self.assertIsNone(self.http.answer(), "not in the middle of a delivery")
        self.http.clock.advance(0.01)
        found = self.http.answer()
        assert found is not None
        said = json.loads(found[1])
        self.assertEqual((said["to"], said["messages"], said["enough"]), (6, 2, True))
        self.http.send("GET", "/journal/wait?from=6&timeout=5")
        self.http.clock.advance(4.9)
        self.assertIsNone(self.http.answer())
        self.http.clock.pump([0.2, 0.01])
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

    def test_waiting_costs_what_is_new(self) -> None:
        """However many messages there are, and however many calls wait for more of them."""
        self.http = Http(journal=(">",))
        journal = self.http.memory.broker.journal
        assert journal is not None
        for _ in range(20_000):
            journal.append("a", 1.0, "test", b"x")
        looked: list[int] = []
        rows = Segment.rows

        def counted(segment: Segment, start: int, end: int, wanted: Selection) -> Any:
            looked.append(min(end, segment.end) - max(start, segment.first))
            return rows(segment, start, end, wanted)

        self.patch(Segment, "rows", counted)
        self.http.send("GET", "/journal/wait?from=1&timeout=50&least=30000")
        self.http.clock.pump([0.01] * 10)
        self.assertEqual(sum(looked), 20_000)
        for _ in range(50):
            self.http.publish("a", b"x")
            self.http.clock.advance(0.1)
        self.assertEqual(sum(looked), 20_050)
        self.assertLessEqual(len(looked), 60)

    def test_many_may_wait(self) -> None:
        self.patch(journal_wait, "MOST_WAITS", 1)
        self.http.send("GET", "/journal/wait?from=1&timeout=5")
        first = self.http.channel, self.http.transport
        self.http.connect()
        self.refused(429, "wait already", "GET", "/journal/wait?from=1&timeout=5")
        self.http.channel, self.http.transport = first
        self.http.clock.pump([5, 0.01])
        found = self.http.answer()
        assert found is not None
        self.assertEqual(json.loads(found[1])["messages"], 0)

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

    def test_how_far_behind_a_position_is(self) -> None:
        for _ in range(5):
            self.http.publish("a", b"x")
            self.http.clock.advance(1)
        said = self.http.get("/journal/position?at=latest&behind=3")
        self.assertEqual((said["seq"], said["lag"], said["lag_seconds"]), (6, 3, 3.0))
        said = self.http.get("/journal/position?at=latest&behind=6")
        self.assertEqual((said["lag"], said["lag_seconds"]), (0, 0.0))

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
        self.assertEqual(heard[0]["lag"], heard[0]["next"] - 1)
        self.assertIn("time_left", heard[0])

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
        target = "/journal/publish?source=q&first=0"
        self.refused(403, "bob may not publish to b", "POST", target, mixed)
        self.assertEqual(self.journal.next, 4, "nothing of it was published")

    def test_leases_belong_to_their_user(self) -> None:
        """Nobody renews, releases or, when restricted, sees another's."""
        body = b'{"position": 1, "ttl": 60, "subjects": ["a"]}'
        ann, bob = (User(name, subscribe=Rule(("a",))) for name in ("ann", "bob"))
        self.http.user = ann
        self.http.call("PUT", "/journal/leases/q", body)
        self.http.user = bob
        self.assertEqual(self.http.call("DELETE", "/journal/leases/q"), (200, {"released": False}))
        self.assertEqual(self.http.get("/journal/leases"), {"leases": []})
        self.assertEqual(self.http.get("/journalz")["journal"]["leases"], [])
        self.http.call("PUT", "/journal/leases/q", body.replace(b"1", b"9", 1))
        self.http.user = ANYONE
        leases = self.http.get("/journal/leases")["leases"]
        self.assertEqual([(x["user"], x["position"]) for x in leases], [("ann", 1), ("bob", 9)])

    # Publishing

    def test_without_a_journal(self) -> None:
        """Publishing works; reading says what is missing."""
        http = Http()
        self.assertEqual(http.get("/journalz"), {"journal": None})
        status, said = http.call("GET", "/journal")
        self.assertEqual(status, 404)
        self.assertIn("--journal", said["error"]["message"])
        status, said = http.call("POST", "/journal/publish?source=q&first=0", batch(["o"], [b"1"]))
        self.assertEqual((status, said["published"]), (200, 1))

    def test_a_pattern_that_is_none(self) -> None:
        self.assertRaises(SettingsError, Http, journal=("a..b",))

    def test_calls_one_after_another(self) -> None:
        """Several calls may be under way; they are answered in their order."""
        for i in range(3):
            target = f"/journal/publish?source=q&first={i}"
            self.http.send("POST", target, batch(["o"], [b"%d" % i]))
        for _ in range(3):
            found = self.http.answer()
            assert found is not None
            self.assertEqual(json.loads(found[1])["published"], 1)
        rows = rows_of(self.http.get("/journal"))
        self.assertEqual([row["data"] for row in rows], [b"0", b"1", b"2"])
