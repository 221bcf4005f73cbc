"""Event streams (SSE) over real sockets."""

from __future__ import annotations

import http.client
import re

from rtmb.test.support.http import Events, HttpTests
from rtmb.test.support.processes import PATIENCE, BrokerProcess, RawClient


class EventTests(HttpTests):
    """Server-Sent Events."""

    options = ("--history", "10")

    def publish(self, subject: str, *payloads: str) -> None:
        client = self.nats()
        for payload in payloads:
            client.publish(subject, payload.encode())

    def test_events(self) -> None:
        stream = self.events("/events/sse.*")
        self.assertEqual(stream.answer.headers["content-type"], "text/event-stream; charset=utf-8")
        self.assertIn("retry", stream.block())
        self.publish("sse.a", '{\n "pretty": 1\n}', "text", "two\nlines")
        kind, name, data = stream.next()
        self.assertEqual((kind, data["topic"]), ("message", "sse.a"))
        self.assertEqual(data["message"]["payload"], {"pretty": 1})
        self.assertRegex(name, r"^\d+-\d+$")
        self.assertEqual(stream.payloads(2), ["text", "two\nlines"])

    def test_headers_and_reply(self) -> None:
        stream = self.events("/events/sse.whole")
        stream.block()
        self.ask("POST", "/publish/sse.whole?reply=back", b"1", X_Message_Hue="b")
        message = stream.next()[2]["message"]
        self.assertEqual((message["headers"], message["reply"]), ({"Hue": ["b"]}, "back"))

    def test_last_n(self) -> None:
        self.publish("sse.past", "1", "2", "3")
        stream = self.events("/events/sse.past?last_n=2")
        self.publish("sse.past", "4")
        self.assertEqual(stream.payloads(3), [2, 3, 4])

    def test_resuming(self) -> None:
        stream = self.events("/events/res.one")
        stream.block()
        self.publish("res.one", "1", "2", "3")
        ids = [stream.next()[1] for _ in range(3)]
        stream.close()
        self.publish("res.one", "4", "5")
        last, first = (self.events("/events/res.one", Last_Event_ID=ids[i]) for i in (2, 0))
        self.publish("res.one", "6")
        self.assertEqual(last.payloads(3), [4, 5, 6])
        self.assertEqual(first.payloads(5), [2, 3, 4, 5, 6])

    def test_resuming_in_the_middle_of_one_moment(self) -> None:
        """Messages of one chunk have one time: their ids tell them apart all the same."""
        stream = self.events("/events/burst")
        stream.block()
        client = self.nats()
        client.send(b"".join(b"PUB burst 1\r\n%d\r\n" % i for i in range(8)))
        client.settle()
        found = [stream.next() for _ in range(8)]
        for i, (_, name, _) in enumerate(found):
            again = self.events("/events/burst", Last_Event_ID=name)
            self.assertEqual(again.payloads(7 - i), list(range(i + 1, 8)))
            again.close()

    def test_resuming_many_subjects(self) -> None:
        stream = self.events("/events/many.>")
        stream.block()
        for i in range(6):
            self.publish(f"many.{i % 3}", str(i))
        found = [stream.next() for _ in range(6)]
        again = self.events("/events/many.>", Last_Event_ID=found[2][1])
        self.assertEqual(again.payloads(3), [3, 4, 5])

    def test_a_gap_is_told(self) -> None:
        stream = self.events("/events/gap")
        stream.block()
        self.publish("gap", "0")
        name = stream.next()[1]
        stream.close()
        self.publish("gap", *map(str, range(1, 9)))
        whole = self.events("/events/gap", Last_Event_ID=name)
        self.assertEqual(whole.payloads(8), list(range(1, 9)))  # no gap so far
        self.publish("gap", *map(str, range(9, 30)))
        lost = self.events("/events/gap", Last_Event_ID=name)
        kind, _, data = lost.next()
        self.assertEqual((kind, data["since"]), ("gap", name))
        self.assertEqual(lost.payloads(10), list(range(20, 30)))

    def test_an_id_from_before_this_broker(self) -> None:
        stream = self.events("/events/before", Last_Event_ID="1000-1")
        self.assertEqual(stream.next()[0], "gap")
        self.assertEqual(self.ask("GET", "/events/before", Last_Event_ID="abc").status, 400)

    def test_bad_patterns(self) -> None:
        for path in ("/events", "/events/", "/events/a..b", "/events/>.a", "/events/%FF"):
            self.assertEqual(self.ask("GET", path).status, 400, path)

    def test_system_events(self) -> None:
        stream = self.events("/events/!system/events/connect")
        stream.block()
        self.nats()
        doors = [stream.next()[2]["message"]["payload"]["door"] for _ in range(2)]
        self.assertEqual(doors, ["sse", "nats"])  # itself first

    def test_a_deleted_topic_ends_the_stream(self) -> None:
        stream = self.events("/events/mortal")
        stream.block()
        self.ask("DELETE", "/topics/mortal")
        self.assertEqual(stream.next()[0], "info")
        self.assertEqual(stream.block(), {})

    def test_slow_readers(self) -> None:
        with BrokerProcess("--ws-queue", "5", "--ws-stuck", "60") as broker:
            with RawClient(broker.http_port, info=False, receive_buffer=4096) as reader:
                reader.send(b"GET /events/slow HTTP/1.1\r\nHost: x\r\n\r\n")
                reader.read_until(b"retry: 1000\n\n")
                with RawClient(broker.port) as client:
                    for i in range(400):
                        payload = b"%03d" % i + b"x" * 20_000
                        client.send(b"PUB slow %d\r\n%b\r\n" % (len(payload), payload))
                    client.settle()
                    data = reader.read_until(b'"payload":"399')
            dropped = sum(map(int, re.findall(rb'event: dropped\ndata: {"count":(\d+)', data)))
            self.assertGreater(dropped, 0)
            self.assertEqual(data.count(b"\nid: ") + data.startswith(b"id: ") + dropped, 400)

    def test_stopping(self) -> None:
        with BrokerProcess() as broker:
            stream = Events(broker.http_port, "/events/a")
            idle = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=PATIENCE)
            idle.request("GET", "/health")
            idle.getresponse().read()
            broker.signal(15)
            self.assertEqual(stream.next()[2], {"msg": "the broker is stopping"})
            self.assertEqual(stream.block(), {})
            stream.close()
            broker.wait()
            idle.close()
