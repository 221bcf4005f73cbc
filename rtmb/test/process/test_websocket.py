"""The WebSocket door: what is said over it, well and badly."""

from __future__ import annotations

import json
import time
import unittest
import uuid
from contextlib import suppress
from typing import Any, ClassVar

from rtmb.test.support.processes import BrokerProcess, RawClient
from rtmb.test.support.sockets import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    DoorTests,
    HandshakeError,
    WebSocket,
    masked,
)

ID = "550e8400-e29b-41d4-a716-446655440000"


class JsonTests(DoorTests):
    """`/ws` as its wire says."""

    def test_ping(self) -> None:
        said = self.connect().ask(type="ping", request_id="r1")
        self.assertEqual((said["type"], said["request_id"]), ("pong", "r1"))
        self.assertRegex(said["ts"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z$")

    def test_subscribe_publish_event(self) -> None:
        listener, speaker = self.connect(), self.connect()
        said = listener.subscribe("orders", request_id="r2")
        said.pop("ts")
        self.assertEqual(
            said, {"type": "ack", "request_id": "r2", "topic": "orders", "status": "ok"}
        )
        payload = {"order_id": "ORD-123", "amount": "99.5", "n": [1, 2.5, None, True]}
        said = speaker.ask(type="publish", topic="orders", message={"id": ID, "payload": payload})
        self.assertEqual((said["type"], said["status"], said["topic"]), ("ack", "ok", "orders"))
        event = listener.hear()
        self.assertEqual((event["type"], event["topic"]), ("event", "orders"))
        self.assertEqual(event["message"], {"id": ID, "payload": payload})
        self.assertIn("ts", event)

    def test_payloads_pass_as_they_are(self) -> None:
        socket = self.connect()
        socket.subscribe("exact")
        payloads: tuple[Any, ...] = (
            "text",
            "5",
            "",
            "{}",
            5,
            0.1,
            10**25,
            None,
            [],
            {"a": {"b": "\u2028é"}},
        )
        for payload in payloads:
            socket.ask(type="publish", topic="exact", message={"payload": payload})
            self.assertEqual(socket.hear()["message"]["payload"], payload)

    def test_ids_are_made_and_the_same_for_all(self) -> None:
        one, other = self.connect(), self.connect()
        one.subscribe("ids")
        other.subscribe("ids")
        self.nats().publish("ids", b"x")
        made = one.hear()["message"]["id"]
        self.assertEqual(other.hear()["message"]["id"], made)
        self.assertEqual(str(uuid.UUID(made)), made)
        late = self.connect()
        late.subscribe("ids", last_n=1)
        self.assertEqual(late.hear()["message"]["id"], made)

    def test_the_id_is_a_header_for_nats(self) -> None:
        client = self.nats()
        client.connect(headers=True)
        client.subscribe("headed", "1")
        self.connect().ask(type="publish", topic="headed", message={"id": ID, "payload": {"a": 1}})
        found = client.read_until(b'{"a":1}\r\n')
        self.assertIn(b"Nats-Msg-Id: " + ID.encode() + b"\r\n", found)

    def test_headers_and_reply(self) -> None:
        """They pass both ways: over /ws, and between it and NATS clients."""
        socket, client = self.connect(), self.nats()
        socket.subscribe("whole")
        body = {"id": ID, "payload": 1, "headers": {"Hue": "red", "N": ["1", "2"]}, "reply": "back"}
        socket.ask(type="publish", topic="whole", message=body)
        wanted = {**body, "headers": {"Hue": ["red"], "N": ["1", "2"]}}
        self.assertEqual(socket.hear()["message"], wanted)
        client.connect(headers=True)
        client.send(b"HPUB whole answer.me 22 23\r\nNATS/1.0\r\nHue: sea\r\n\r\n5\r\n")
        message = socket.hear()["message"]
        self.assertEqual((message["headers"], message["reply"]), ({"Hue": ["sea"]}, "answer.me"))
        wrong: dict[str, Any]
        for wrong in ({"headers": {"a b": "x"}}, {"headers": {"a": 1}}, {"headers": []},
                      {"reply": "a b"}, {"reply": "a.*"}, {"reply": "$LAST.a"}):  # fmt: skip
            said = socket.ask(type="publish", topic="whole", message={"payload": 1, **wrong})
            self.assertEqual(said["error"]["code"], "BAD_REQUEST", wrong)

    def test_bytes_that_are_no_text(self) -> None:
        socket, client = self.connect(), self.nats()
        socket.subscribe("raw")
        client.publish("raw", b"\xff\x00")
        message = socket.hear()["message"]
        self.assertEqual((message["payload"], message["encoding"]), ("/wA=", "base64"))
        client.subscribe("back", "1")
        body = {"payload": "/wA=", "encoding": "base64"}
        socket.ask(type="publish", topic="back", message=body)
        client.read_until(b"\xff\x00\r\n")

    def test_patterns(self) -> None:
        socket = self.connect()
        socket.subscribe("pat.*")
        client = self.nats()
        client.publish("pat.a.b", b"no")
        client.publish("pat.a", b"1")
        event = socket.hear()
        self.assertEqual((event["topic"], event["message"]["payload"]), ("pat.a", 1))

    def test_last_n_comes_first_and_oldest_first(self) -> None:
        client = self.nats()
        for i in range(5):
            client.publish("past", b"%d" % i)
        socket = self.connect()
        self.assertEqual(socket.subscribe("past", last_n=3)["type"], "ack")
        client.publish("past", b'"live"')
        found = [socket.hear()["message"]["payload"] for _ in range(4)]
        self.assertEqual(found, [2, 3, 4, "live"])

    def test_unsubscribe(self) -> None:
        socket = self.connect()
        socket.subscribe("leave")
        said = socket.ask(type="unsubscribe", topic="leave", client_id="test", request_id=7)
        self.assertEqual((said["type"], said["request_id"]), ("ack", 7))
        self.nats().publish("leave", b"x")
        self.assertEqual(socket.ask(type="ping")["type"], "pong")

    def test_subscribing_again_is_no_second_copy(self) -> None:
        socket = self.connect()
        socket.subscribe("twice")
        socket.subscribe("twice")
        self.nats().publish("twice", b"1")
        self.assertEqual(socket.hear()["type"], "event")
        self.assertEqual(socket.ask(type="ping")["type"], "pong")

    def test_mistakes_are_told_and_the_connection_lives(self) -> None:
        socket = self.connect()
        message = {"payload": 1}
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "BAD_REQUEST"),
            ({"type": "shout"}, "BAD_REQUEST"),
            ({"type": 5}, "BAD_REQUEST"),
            ({"type": "subscribe", "client_id": "a"}, "BAD_REQUEST"),
            ({"type": "subscribe", "topic": "a"}, "BAD_REQUEST"),
            ({"type": "subscribe", "topic": "a..b", "client_id": "a"}, "BAD_REQUEST"),
            ({"type": "subscribe", "topic": "", "client_id": "a"}, "BAD_REQUEST"),
            ({"type": "subscribe", "topic": "a", "client_id": "a", "last_n": -1}, "BAD_REQUEST"),
            ({"type": "subscribe", "topic": "a", "client_id": "a", "last_n": "x"}, "BAD_REQUEST"),
            ({"type": "subscribe", "topic": "a", "client_id": "a", "max_rate": 0}, "BAD_REQUEST"),
            ({"type": "unsubscribe", "topic": "a"}, "BAD_REQUEST"),
            ({"type": "unsubscribe", "topic": "never", "client_id": "a"}, "TOPIC_NOT_FOUND"),
            ({"type": "publish", "topic": "a"}, "BAD_REQUEST"),
            ({"type": "publish", "message": message}, "BAD_REQUEST"),
            ({"type": "publish", "topic": "a", "message": {"id": ID}}, "BAD_REQUEST"),
            ({"type": "publish", "topic": "a.*", "message": message}, "BAD_REQUEST"),
            ({"type": "publish", "topic": "a", "message": {"id": "1", **message}}, "BAD_REQUEST"),
            ({"type": "publish", "topic": "a", "message": "text"}, "BAD_REQUEST"),
            ({"type": "publish", "topic": "a", "message": {"payload": "?", "encoding": "base64"}},
             "BAD_REQUEST"),
        ]  # fmt: skip
        for command, code in cases:
            said = socket.ask(request_id="r", **command)
            self.assertEqual((said["type"], said["error"]["code"]), ("error", code), command)
            self.assertEqual(said["request_id"], "r", command)
            self.assertTrue(said["error"]["message"])
        for text in (b"", b"{", b"[]", b"null", b"\x00", b"[" * 100_000, b'{"type":"ping"'):
            socket.send(masked(TEXT, text))
            self.assertEqual(socket.hear()["error"]["code"], "BAD_REQUEST", text[:20])
        self.assertEqual(socket.ask(type="ping")["type"], "pong")

    def test_a_deleted_topic_ends_its_subscriptions(self) -> None:
        socket = self.connect()
        socket.subscribe("doomed")
        with RawClient(self.port, info=False) as http:
            http.send(b"DELETE /topics/doomed HTTP/1.1\r\nHost: x\r\n\r\n")
            http.read_until(b'"deleted"')
        said = socket.hear()
        self.assertEqual((said["type"], said["topic"]), ("info", "doomed"))
        said = socket.ask(type="unsubscribe", topic="doomed", client_id="test")
        self.assertEqual(said["error"]["code"], "TOPIC_NOT_FOUND")

    def test_at_most_so_many_a_second(self) -> None:
        socket = self.connect()
        socket.subscribe("fast", max_rate=20)
        client = self.nats()
        client.send(b"".join(b"PUB fast 4\r\n%04d\r\n" % i for i in range(5000)))
        client.settle()
        events: list[dict[str, Any]] = []
        said = socket.hear()
        while said["type"] == "event":
            events.append(said)
            said = socket.hear()
        self.assertEqual((said["type"], said["topic"]), ("info", "fast"))
        self.assertEqual(said["sampled"], {"seen": 5000, "sent": len(events)})
        self.assertTrue(0 < len(events) <= 21, len(events))
        self.assertEqual(events[-1]["message"]["payload"], 4999)  # the newest is shown
        self.assertEqual(socket.hear()["sampled"], {"seen": 0, "sent": 0})  # it is over
        with RawClient(self.port, info=False) as http:  # what was left out has not been sent
            http.send(b"GET /connz?subs=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            body = http.read_to_end().partition(b"\r\n\r\n")[2]
        clients = json.loads(body)["connections"]
        (mine,) = (c for c in clients if c.get("subscriptions_list") == ["fast"])
        sizes = len(events) * 4
        self.assertEqual((mine["out_msgs"], mine["out_bytes"]), (len(events), sizes))
        client.publish("fast", b"slow")
        self.assertEqual(socket.hear()["message"]["payload"], "slow")

    def test_binary_frames_and_fragments(self) -> None:
        socket = self.connect()
        socket.send(masked(BINARY, b'{"type":"ping"}'))
        self.assertEqual(socket.hear()["type"], "pong")
        socket.send(masked(TEXT, b'{"type":', fin=False) + masked(PING, b"hi"))
        self.assertEqual(socket.read_frame(), (PONG, b"hi"))
        socket.send(masked(0, b"", fin=False) + masked(0, b'"ping"}'))
        self.assertEqual(socket.hear()["type"], "pong")

    def test_closing(self) -> None:
        socket = self.connect()
        socket.send(masked(CLOSE, (1000).to_bytes(2, "big")))
        self.assertEqual(socket.closed_with(), 1000)

    def test_monitoring_knows_it_and_can_close_it(self) -> None:
        socket = self.connect()
        socket.subscribe("watched.>")
        with RawClient(self.port, info=False) as http:
            http.send(b"GET /connz?subs=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            body = http.read_to_end().partition(b"\r\n\r\n")[2]
        found = [c for c in json.loads(body)["connections"] if c["type"] == "ws"]
        mine = next(c for c in found if c["subscriptions_list"] == ["watched.>"])
        with RawClient(self.port, info=False) as http:
            http.send(b"DELETE /connections/%d HTTP/1.1\r\nHost: x\r\n\r\n" % mine["cid"])
            http.read_until(b'"closed"')
        self.assertEqual(socket.hear()["type"], "info")
        self.assertEqual(socket.closed_with(), 1008)


class HostileTests(DoorTests):
    """Bad input closes its connection with the right code, and nobody else notices."""

    options = ("--max-payload", "100KiB", "--max-pending", "1MiB")

    #: What is sent, and the code that comes back.
    FRAMES: ClassVar[list[tuple[str, bytes, int]]] = [
        ("no mask", b"\x81\x02hi", 1002),
        ("first reserved bit", masked(TEXT, b"{}", reserved=0x40), 1002),
        ("last reserved bit", masked(TEXT, b"{}", reserved=0x10), 1002),
        ("an opcode that is none", masked(3, b"x"), 1002),
        ("a long ping", masked(PING, b"x" * 126), 1002),
        ("a ping in pieces", masked(PING, b"x", fin=False), 1002),
        ("top bit of a 64-bit length", b"\x81\xff" + b"\xff" * 8 + b"mask", 1002),
        ("a longer length than needed", b"\x81\xfe\x00\x05mask12345", 1002),
        ("a length of exabytes", b"\x81\xff\x7f" + b"\xff" * 7 + b"mask" + b"x" * 200_000, 1009),
        ("too large", masked(TEXT, b"x" * 110_000), 1009),
        ("too large, in binary", masked(BINARY, b"x" * 110_000), 1009),
        ("too large, in pieces", masked(TEXT, b"x", fin=False)
         + masked(0, b"x" * 1000, fin=False) * 110, 1009),
        ("no UTF-8", masked(TEXT, b"\xff\xfe"), 1007),
        ("UTF-8 that ends early", masked(TEXT, b"\xe2\x82"), 1007),
        ("a continuation of nothing", masked(0, b"x"), 1002),
        ("a message within a message", masked(TEXT, b"P", fin=False) + masked(TEXT, b"I"), 1002),
        ("a close of one byte", masked(CLOSE, b"x"), 1002),
        ("a close with a code of ours", masked(CLOSE, (1006).to_bytes(2, "big")), 1002),
        ("a close without a code, then more", masked(CLOSE, b"") + b"\xff" * 1000, 1005),
    ]  # fmt: skip

    def test_frames(self) -> None:
        witness = self.connect()
        for path in ("/ws", "/nats"):
            for name, data, code in self.FRAMES:
                if path == "/nats" and code == 1009:
                    continue  # there, frames are a stream of bytes
                socket = self.connect(path)
                socket.send(data)
                found = socket.closed_with()
                # What is not a code on the wire is a close frame without one.
                self.assertEqual(found, 0 if code == 1005 else code, f"{path}: {name}")
        self.assertEqual(witness.ask(type="ping")["type"], "pong")
        self.assertNotIn("Traceback", self.broker.log())

    def test_nats_limits_hold_in_frames(self) -> None:
        for data, error in (
            (b"PUB a 200000\r\n", b"Maximum Payload Violation"),
            (b"SUB " + b"a" * 5000, b"maximum control line exceeded"),
            (b"GET / HTTP/1.1\r\n", b"Unknown Protocol Operation"),
        ):
            socket = self.connect("/")
            self.assertTrue(socket.read_frame()[1].startswith(b"INFO "))
            socket.send(masked(BINARY, data))
            self.assertEqual(socket.read_frame(), (BINARY, b"-ERR '%b'\r\n" % error))
            self.assertEqual(socket.closed_with(), 1000)

    def flood(self, path: str, data: bytes, seconds: float = 1.5) -> int:
        """Send without reading, until nothing is taken or the time is over; the bytes sent."""
        socket = self.connect(path)
        socket.socket.settimeout(0.2)
        sent, end = 0, time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                sent += socket.socket.send(data)
        except OSError:
            pass
        return sent

    def test_memory_is_flat(self) -> None:
        ping = masked(TEXT, b'{"type":"ping"}')
        floods: list[tuple[str, str, bytes]] = [
            ("pieces without end", "/ws", masked(0, b"", fin=False) * 5000),
            ("pings whose pongs are not read", "/ws", masked(PING, b"x" * 125) * 500),
            ("commands whose answers are not read", "/ws", ping * 3000),
            ("pings to the text protocol", "/nats", masked(PING, b"x" * 125) * 500),
            ("a body without end", "/ws", masked(TEXT, b"x" * 50_000, fin=False)),
        ]
        for _, path, data in floods:
            self.flood(path, masked(TEXT, b"", fin=False) + data, 0.2)
        before = self.broker.rss()
        for name, path, data in floods:
            start = masked(TEXT, b"", fin=False) if name.startswith("pieces") else b""
            for _ in range(3):
                self.flood(path, start + data if start else data, 0.5)
            self.assertLess(self.broker.rss() - before, 48 << 20, name)
        self.assertEqual(self.connect().ask(type="ping")["type"], "pong")

    def test_requests_that_are_no_handshakes(self) -> None:
        for headers in ({"Sec-WebSocket-Version": "12"}, {"Host": "\xff"}, {"X-Bad": "a\x01"}):
            with suppress(HandshakeError, EOFError):
                self.connect(headers=headers).close()
        self.assertEqual(self.connect().ask(type="ping")["type"], "pong")

    def test_a_flood_before_authentication(self) -> None:
        with BrokerProcess("--user", "a", "--password", "b", "--api-key", "k") as broker:
            port = broker.http_port
            with self.assertRaises(HandshakeError) as caught:
                WebSocket(port)
            self.assertEqual(caught.exception.status, 401)
            before = broker.rss()
            with WebSocket(port, "/nats") as socket:  # CONNECT is where NATS clients say who
                socket.read_frame()
                try:
                    for _ in range(200):
                        socket.send(masked(BINARY, b"PUB a 60000\r\n" + b"x" * 60_000 + b"\r\n"))
                except OSError:
                    pass
                self.assertIn(socket.closed_with(), (1000, 0))
            self.assertLess(broker.rss() - before, 16 << 20)


class SlowTests(DoorTests):
    """Clients that do not keep up."""

    options = ("--ws-queue", "10", "--ws-stuck", "2")

    def fill(self, client: RawClient, topic: bytes) -> None:
        """400 messages, 8 MB: more than any socket takes of itself."""
        for i in range(400):
            payload = b"%d " % i + b"x" * 20_000
            client.send(b"PUB %b %d\r\n%b\r\n" % (topic, len(payload), payload))
        client.settle()

    def test_the_oldest_are_dropped_and_told(self) -> None:
        socket = self.connect(receive_buffer=4096)
        socket.subscribe("slow.one")
        client = self.nats()
        self.fill(client, b"slow.one")
        numbers: list[int] = []
        gaps: list[tuple[int, int]] = []
        while not numbers or numbers[-1] < 399:
            said = socket.hear()
            if said["type"] == "info":
                self.assertEqual(said["dropped"]["topics"], ["slow.one"])
                gaps.append((numbers[-1], said["dropped"]["count"]))
            else:
                numbers.append(int(said["message"]["payload"].split()[0]))
        self.assertTrue(gaps)
        self.assertEqual(len(numbers) + sum(count for _, count in gaps), 400)
        for before, count in gaps:  # it is told where it happened
            self.assertIn(before + count + 1, numbers)
            self.assertNotIn(before + 1, numbers)
        self.assertEqual(numbers[-10:], list(range(390, 400)))
        self.broker.expect_log(r"dropped \d+ messages for .*, on slow\.one")

    def test_stuck(self) -> None:
        socket, witness = self.connect(receive_buffer=4096), self.connect()
        socket.subscribe("stuck.one")
        witness.subscribe("!system/events/slow_consumer")
        self.fill(self.nats(), b"stuck.one")
        event = witness.hear()["message"]["payload"]
        self.assertEqual((event["door"], event["policy"]), ("ws", "close"))
        self.assertEqual(event["subject"], "stuck.one")
        said = socket.hear()
        while said["type"] in ("event", "info"):
            said = socket.hear()
        self.assertEqual(said["error"]["code"], "SLOW_CONSUMER")
        self.assertEqual(socket.closed_with(), 1008)

    def test_one_that_reads_gets_everything(self) -> None:
        socket, client = self.connect(), self.nats()
        socket.subscribe("busy")
        client.send(b"".join(b"PUB busy 5\r\n%05d\r\n" % i for i in range(20_000)))
        found = [socket.hear() for _ in range(20_000)]
        payloads = [said["message"]["payload"] for said in found]
        self.assertEqual([int(p) for p in payloads], list(range(20_000)))


class StoppingTests(unittest.TestCase):
    def test_clients_are_told_and_flushed(self) -> None:
        with BrokerProcess() as broker:
            port = broker.http_port
            with WebSocket(port) as socket, WebSocket(port, "/nats") as other:
                socket.subscribe("last")
                other.read_frame()
                broker.signal(15)
                self.assertEqual(socket.hear()["type"], "info")
                self.assertEqual(socket.closed_with(), 1001)
                self.assertEqual(other.closed_with(), 1001)
            broker.wait()
            self.assertNotIn("Traceback", broker.log())
