"""Tests for `rtmb.doors.http.monitor`: what monitoring tools read, and closing a client."""

from __future__ import annotations

import base64
import unittest
import urllib.parse
import urllib.request
from itertools import pairwise

from twisted.logger import capturedLogs

from rtmb.auth import AuthTable
from rtmb.core.message import Message
from rtmb.doors.http.forms import LEAF, duration, uptime
from rtmb.doors.http.topicz import PREVIEW
from rtmb.pulse import BEAT, PAST
from rtmb.test.support.monitoring import MonitorCase, Plain


class FormTests(unittest.TestCase):
    def test_uptime(self) -> None:
        cases = {0: "0s", 61: "1m1s", 3600: "1h0m0s", 93784.9: "1d2h3m4s", -1: "0s"}
        self.assertEqual({s: uptime(s) for s in cases}, cases)

    def test_duration(self) -> None:
        cases = {0.000968: "968µs", 0.0012345: "1.2345ms", 1.5: "1.5s"}
        self.assertEqual({s: duration(s) for s in cases}, cases)


class VarzTests(MonitorCase):
    def test_counts(self) -> None:
        """Of the walk, too."""
        reader, writer = self.memory.connect(b"SUB a.* 1\r\n"), self.memory.connect()
        self.pub(writer, "a.b", b"12345", times=10)
        found = self.get("/varz")
        self.assertEqual((found["in_msgs"], found["out_msgs"]), (10, 10))
        self.pub(writer, "a.b", b"12345", times=10)
        first, second = self.get("/connz")["connections"]
        self.assertEqual((first["out_msgs"], second["in_bytes"]), (20, 100))
        found = self.get("/varz")
        self.assertEqual(
            (found["in_msgs"], found["in_bytes"], found["out_msgs"], found["out_bytes"]),
            (20, 100, 20, 100),
        )
        self.assertEqual((found["connections"], found["total_connections"]), (2, 2))
        self.assertEqual((found["subscriptions"], found["topics"]), (1, 1))
        reader.leave()
        found = self.get("/varz")
        self.assertEqual((found["connections"], found["total_connections"]), (1, 2))

    def test_time(self) -> None:
        self.memory.clock.advance(3723)
        found = self.get("/varz")
        self.assertEqual(found["uptime"], "1h2m3s")
        self.assertEqual(found["start"], "1970-01-12T13:46:40.000000Z")
        self.assertEqual(found["now"], "1970-01-12T14:48:43.000000Z")

    def test_trouble_is_counted(self) -> None:
        system, client = self.memory.broker.announcements, self.memory.connect().protocol
        system.slow(client, "close", "a", 1)
        system.dropped(client, 7, ["a"])
        found = self.get("/varz")
        self.assertEqual((found["slow_consumers"], found["drops"]), (1, 7))

    def test_nothing_below(self) -> None:
        answer = self.ask("/varz/x")
        self.assertEqual((answer.status, answer.body[-1:]), (404, b"\n"))


class ConnzTests(MonitorCase):
    def test_a_text_client(self) -> None:
        peer = self.memory.library(name="me", version="1.2")
        peer.send(b"SUB a.b 1\r\nSUB a.* q 2\r\nUNSUB 2 9\r\nPUB a.b 2\r\nhi\r\n")
        self.memory.clock.advance(5)
        found = self.get("/connz?subs=1")
        self.assertEqual((found["num_connections"], found["total"]), (1, 1))
        (one,) = found["connections"]
        self.assertEqual((one["cid"], one["kind"], one["type"]), (1, "Client", "nats"))
        self.assertEqual((one["name"], one["lang"], one["version"]), ("me", "test", "1.2"))
        self.assertEqual((one["in_msgs"], one["out_msgs"], one["in_bytes"]), (1, 2, 2))
        self.assertEqual((one["uptime"], one["idle"], one["pending_bytes"]), ("5s", "5s", 0))
        self.assertEqual(one["subscriptions"], 2)
        self.assertEqual(one["subscriptions_list"], ["a.b", "a.*"])
        (one,) = self.get("/connz?subs=detail")["connections"]
        self.assertEqual(
            one["subscriptions_list_detail"],
            [
                {"subject": "a.b", "sid": "1", "msgs": 1, "cid": 1},
                {"subject": "a.*", "qgroup": "q", "sid": "2", "msgs": 1, "max": 9, "cid": 1},
            ],
        )

    def test_round_trip_time(self) -> None:
        peer = self.memory.connect(b"CONNECT {}\r\n")
        self.assertNotIn("rtt", self.get("/connz")["connections"][0])
        self.memory.clock.advance(0.0125)
        peer.send(b"PONG\r\n")
        self.assertEqual(self.get("/connz")["connections"][0]["rtt"], "12.5ms")

    def test_pending(self) -> None:
        reader = self.memory.connect(b"SUB a 1\r\n")
        reader.transport.stuck = True
        self.pub(self.memory.connect(), "a", b"x" * 5000)
        first, second = self.get("/connz?sort=pending")["connections"]
        self.assertEqual((first["cid"], second["pending_bytes"]), (1, 0))
        self.assertGreater(first["pending_bytes"], 5000)

    def test_any_door(self) -> None:
        """A client that has little more than what every session has."""
        client = Plain(self.broker)
        self.memory.clock.advance(7)
        client.join()
        (found,) = self.get("/connz?subs=1")["connections"]
        self.assertEqual((found["cid"], found["type"]), (client.number, "odd"))
        self.assertEqual((found["name"], found["uptime"]), ("odd one", "7s"))
        self.assertEqual((found["subscriptions_list"], found["pending_bytes"]), ([], 0))

    def test_what_is_no_utf_8(self) -> None:
        peer = self.memory.connect(b"SUB a\xff 1\r\nPUB a\xff 1\r\n\xff\r\n")
        (found,) = self.get("/connz?subs=1")["connections"]
        self.assertEqual(found["subscriptions_list"], ["a\ufffd"])
        self.assertEqual(self.get("/topicz")["topics"][0]["name"], "a\ufffd")
        self.assertEqual(self.get("/subsz?subs=1")["subscriptions_list"][0]["subject"], "a\ufffd")
        peer.leave()

    def test_pages(self) -> None:
        for _ in range(5):
            self.memory.connect()
        found = self.get("/connz?limit=2&offset=3")
        self.assertEqual([c["cid"] for c in found["connections"]], [4, 5])
        self.assertEqual(
            (found["offset"], found["limit"], found["total"], found["num_connections"]),
            (3, 2, 5, 2),
        )
        self.assertEqual(self.get("/connz?offset=9")["connections"], [])
        self.assertEqual(self.get("/connz?limit=-1&offset=-1")["limit"], 1024)

    def test_one(self) -> None:
        self.memory.connect()
        self.memory.connect()
        self.assertEqual([c["cid"] for c in self.get("/connz?cid=2")["connections"]], [2])
        self.assertEqual(self.get("/connz?cid=99")["connections"], [])

    def test_states(self) -> None:
        self.memory.connect()
        for state, count in {"open": 1, "all": 1, "any": 1, "closed": 0}.items():
            self.assertEqual(self.get(f"/connz?state={state}")["num_connections"], count, state)

    def test_every_order(self) -> None:
        """Three clients, each ahead of the others in something."""
        clients = [self.memory.connect()]
        self.memory.clock.advance(10)
        clients.append(self.memory.connect(b"SUB a 1\r\nSUB b 2\r\n"))
        self.memory.clock.advance(10)
        clients.append(self.memory.connect(b"SUB a 1\r\n"))
        self.pub(clients[1], "a", b"12")
        self.pub(clients[1], "a", b"12")
        self.pub(clients[1], "b", b"x" * 9)
        self.pub(clients[2], "none", b"x" * 100)
        self.memory.clock.advance(10)
        clients[0].send(b"PUB none 1\r\nx\r\n")
        clients[0].protocol.rtt, clients[2].protocol.rtt = 0.2, 0.1
        for client in (clients[2], clients[0]):
            client.transport.stuck = True
        clients[0].send(b"SUB c 1\r\n")
        self.pub(clients[1], "c", b"x" * 50)
        self.memory.clock.advance(10)
        self.pub(clients[1], "a", b"y")
        wanted = {
            "cid": [1, 2, 3],
            "start": [1, 2, 3],
            "subs": [2, 1, 3],
            "pending": [1, 3, 2],
            "msgs_to": [2, 3, 1],
            "msgs_from": [2, 1, 3],
            "bytes_to": [1, 2, 3],
            "bytes_from": [3, 2, 1],
            "last": [2, 1, 3],
            "idle": [3, 1, 2],
            "uptime": [3, 2, 1],
            "rtt": [1, 3, 2],
        }
        found = {
            sort: [c["cid"] for c in self.get(f"/connz?sort={sort}")["connections"]]
            for sort in wanted
        }
        self.assertEqual(found, wanted)

    def test_bad_questions(self) -> None:
        self.assertIn("invalid sorting option: nope", self.refused("/connz?sort=nope"))
        self.assertIn("state", self.refused("/connz?state=maybe"))
        for name in ("limit", "offset", "cid"):
            for value in ("x", "1e3", "٣", "9" * 30):
                query = urllib.parse.urlencode({name: value})
                self.assertIn(f"{name} must be", self.refused(f"/connz?{query}"))
        self.refused("/subsz?test=a..b")
        self.refused("/subsz?test=a.*")
        self.refused("/topicz?sort=colour")

    def test_leaf_links(self) -> None:
        self.assertEqual(self.get("/leafz")["leafs"], [])
        link = Plain(self.broker)
        link.kind = LEAF
        link.join()
        found = self.get("/leafz")
        self.assertEqual((found["leafnodes"], len(found["leafs"])), (1, 1))
        self.assertEqual(self.get("/connz")["connections"][0]["kind"], "Leafnode")
        self.assertEqual(self.get("/varz")["leafnodes"], 1)


class SubszTests(MonitorCase):
    def test_who_would_receive_it(self) -> None:
        self.memory.connect(b"SUB a.b 1\r\nSUB a.c 2\r\n")
        self.memory.connect(b"SUB a.* q 7\r\n")
        found = self.get("/subsz?test=a.b")
        self.assertEqual((found["total"], found["num_subscriptions"]), (2, 3))
        self.assertEqual(
            [(s["cid"], s["subject"], s.get("qgroup"), s["sid"], s["door"])
             for s in found["subscriptions_list"]],
            [(1, "a.b", None, "1", "nats"), (2, "a.*", "q", "7", "nats")],
        )  # fmt: skip
        self.assertEqual(self.get("/subsz?test=x")["total"], 0)

    def test_list(self) -> None:
        self.memory.connect(b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\n")
        self.assertNotIn("subscriptions_list", self.get("/subsz"))
        found = self.get("/subsz?subs=1&limit=2")
        self.assertEqual((found["total"], len(found["subscriptions_list"])), (3, 2))
        rest = self.get("/subsz?subs=1&limit=2&offset=2")
        names = [s["subject"] for s in found["subscriptions_list"] + rest["subscriptions_list"]]
        self.assertEqual(sorted(names), ["a", "b", "c"])

    def test_the_others(self) -> None:
        self.assertEqual(self.get("/routez")["routes"], [])
        self.assertEqual(self.get("/healthz"), {"status": "ok"})


class TopiczTests(MonitorCase):
    def test_rates(self) -> None:
        peer = self.memory.connect(b"SUB fast 1\r\n")
        self.pub(peer, "slow", b"1")
        self.get("/topicz")
        self.pub(peer, "fast", b'{"n": 1}', times=30)
        self.pub(peer, "slow", b"2", times=2)
        self.memory.clock.advance(2)
        fast, slow = self.get("/topicz?limit=2")["topics"]
        self.assertEqual((fast["name"], fast["rate"], fast["subscribers"]), ("fast", 15.0, 1))
        self.assertEqual((slow["rate"], slow["messages"], slow["last"]), (1.0, 3, "2"))
        self.assertEqual((fast["last"], fast["last_size"], fast["kept"]), ('{"n": 1}', 8, 30))
        self.assertEqual(self.get("/topicz")["topics"][0]["rate"], 15.0, "asked again at once")

    def test_order_filter_and_page(self) -> None:
        peer = self.memory.connect()
        self.pub(peer, "b.x", b"1" * 9)
        self.memory.clock.advance(1)
        self.pub(peer, "a.x", b"1", times=3)
        self.memory.clock.advance(1)
        self.pub(peer, "c", b"1")

        def names(query: str) -> list[str]:
            return [t["name"] for t in self.get("/topicz?" + query)["topics"]]

        self.assertEqual(names("sort=name"), ["a.x", "b.x", "c"])
        self.assertEqual(names("sort=messages"), ["a.x", "b.x", "c"])
        self.assertEqual(names("sort=bytes"), ["b.x", "a.x", "c"])
        self.assertEqual(names("sort=last"), ["c", "a.x", "b.x"])
        self.assertEqual(names("sort=name&filter=x&limit=1&offset=1"), ["b.x"])
        found = self.get("/topicz?filter=x&limit=1")
        self.assertEqual((found["total"], found["matching"]), (3, 2))

    def test_what_someone_may_not_read_is_not_shown(self) -> None:
        permissions = {"subscribe": {"allow": ["open.>"]}}
        users = [
            {"user": "a", "password": "b", "permissions": permissions},
            {"user": "c", "password": "d"},
        ]
        self.start(auth=AuthTable.from_table({"users": users}))
        for subject in ("secret", "open.a"):
            self.hub.publish(Message(subject, b"x"))
        said = base64.b64encode(b"a:b").decode()
        answer = self.ask("/topicz", headers=f"Authorization: Basic {said}\r\n")
        self.assertEqual([t["name"] for t in answer.json()["topics"]], ["open.a"])
        self.assertEqual(self.ask("/topicz").status, 401)
        self.assertEqual(self.ask("/healthz").status, 200)

    def test_a_long_value_is_cut(self) -> None:
        self.pub(self.memory.connect(), "a", "é".encode() * 5000)
        self.assertEqual(self.get("/topicz")["topics"][0]["last"], "é" * PREVIEW)

    def test_totals_of_the_last_minutes(self) -> None:
        peer = self.memory.connect()
        for _ in range(PAST + 20):
            self.pub(peer, "a")
            self.memory.clock.pump([BEAT] * 2)
        found = self.get("/ratez")
        totals = [row[1] for row in found["totals"]]
        self.assertEqual(found["columns"][1], "in_msgs")
        self.assertEqual(len(totals), PAST + 1)
        self.assertEqual({b - a for a, b in pairwise(totals)}, {1})


class KickTests(MonitorCase):
    def test_kick(self) -> None:
        peer, other = self.memory.connect(b"SUB a 1\r\n"), self.memory.connect()
        with capturedLogs() as events:
            answer = self.ask("/connections/1", "DELETE")
        self.assertEqual((answer.status, answer.json()), (200, {"status": "closed", "cid": 1}))
        self.assertTrue(peer.closed)
        self.assertFalse(other.closed)
        self.assertEqual([client.number for client in self.clients], [2])
        reasons = [e["reason"] for e in events if "disconnected" in (e["log_format"] or "")]
        self.assertEqual(len(reasons), 1)
        self.assertIn("kicked by", reasons[0])

    def test_unknown(self) -> None:
        self.memory.connect()
        for path in ("/connections/9", "/connections/x", "/connections/", "/connections/1/2"):
            answer = self.ask(path, "DELETE")
            self.assertEqual((answer.status, answer.body[-1:]), (404, b"\n"), path)
        self.assertEqual(len(self.clients), 1)

    def test_only_by_delete(self) -> None:
        self.memory.connect()
        self.assertEqual(self.ask("/connections/1").status, 405)
        self.assertEqual(self.ask("/connections/1", "POST").status, 405)
        self.assertEqual(len(self.clients), 1)

    def test_any_door(self) -> None:
        client = Plain(self.broker)
        client.join()
        self.assertEqual(self.ask("/connections/1", "DELETE").status, 200)
        self.assertIn("kicked by", client.closed)
