"""SIGUSR2: the clients of the HTTP door are told, nobody new may stay, and the broker ends."""

from __future__ import annotations

import json
import signal

from rtmb.test.support.http import Events, ask
from rtmb.test.support.processes import BrokerProcess, RawClient, WithProcesses
from rtmb.test.support.sockets import HandshakeError, WebSocket


class LameDuckTests(WithProcesses):
    """Lame duck mode, as the clients of the HTTP door see it."""

    def socket(self, broker: BrokerProcess, path: str) -> WebSocket:
        socket = WebSocket(broker.http_port, path)
        self.addCleanup(socket.close)
        if path == "/nats":
            self.assertNotIn("ldm", self.info(socket))
        return socket

    def info(self, socket: WebSocket) -> dict[str, object]:
        found: dict[str, object] = json.loads(socket.read_frame()[1].removeprefix(b"INFO "))
        return found

    def stream(self, broker: BrokerProcess) -> Events:
        stream = Events(broker.http_port, "/events/a")
        self.addCleanup(stream.close)
        stream.block()
        return stream

    def retire(self, broker: BrokerProcess) -> None:
        broker.signal(signal.SIGUSR2)
        broker.expect_log("lame duck mode")

    def test_everyone_is_told_and_nobody_is_let_in(self) -> None:
        broker = self.start("--lame-duck", "3600")
        port = broker.http_port
        json_client, stream = self.socket(broker, "/ws"), self.stream(broker)
        nats_client = self.socket(broker, "/nats")
        nats_client.send(b"\x82\x99\0\0\0\0" + b'CONNECT {"protocol":1}\r\n\r\n')
        self.assertEqual(nats_client.read_frame()[1], b"PING\r\n")
        self.assertEqual(ask(port, "GET", "/healthz").status, 200)
        self.retire(broker)
        said = json_client.hear()
        self.assertEqual((said["type"], "about to stop" in said["msg"]), ("info", True))
        self.assertEqual(stream.next()[0], "info")
        self.assertIs(self.info(nats_client)["ldm"], True)
        healthz = ask(port, "GET", "/healthz")
        self.assertEqual((healthz.status, healthz.code), (503, "SHUTTING_DOWN"))
        self.assertEqual(healthz.json["status"], "unavailable")
        for path in ("/ws", "/nats", "/"):
            with self.assertRaises(HandshakeError) as caught:
                WebSocket(port, path)
            self.assertEqual(caught.exception.status, 503)
            self.assertIn(b"SHUTTING_DOWN", caught.exception.body)
        self.assertEqual(ask(port, "GET", "/events/a").status, 503)
        # What does not stay is answered to the end, and who is there is served.
        self.assertEqual(ask(port, "POST", "/publish/a", b"1").json["receivers"], 1)
        self.assertEqual(stream.next()[2]["message"]["payload"], 1)
        self.assertEqual(json_client.ask(type="ping")["type"], "pong")

    def test_they_are_closed_and_it_ends(self) -> None:
        broker = self.start("--lame-duck", "0.3")
        clients = [self.socket(broker, path) for path in ("/ws", "/ws", "/nats", "/nats")]
        stream = self.stream(broker)
        self.retire(broker)
        for client in clients:
            self.assertEqual(client.closed_with(), 1001)
        self.assertEqual([stream.next()[0], stream.next()[0]], ["info", "info"])
        self.assertEqual(stream.block(), {})
        self.assertEqual(broker.wait(), 0)
        self.assertNotIn("Traceback", broker.log())

    def test_with_a_nats_client_over_websocket_alone(self) -> None:
        broker = self.start("--lame-duck", "3600")
        client = self.socket(broker, "/nats")
        self.retire(broker)
        self.assertEqual(ask(broker.http_port, "GET", "/healthz").status, 503)
        client.close()
        self.assertEqual(broker.wait(), 0)

    def test_a_request_that_waits_is_answered(self) -> None:
        """Who asks and has no reply yet is told so when the broker stops."""
        broker = self.start()
        self.client(broker).subscribe("silent")
        with RawClient(broker.http_port, info=False) as asking:
            asking.send(b"POST /request/silent?timeout=60 HTTP/1.1\r\nHost: x\r\n\r\n")
            while b"_INBOX" not in ask(broker.http_port, "GET", "/connz?subs=1").body:
                pass
            broker.signal(signal.SIGTERM)
            self.assertIn(b"SHUTTING_DOWN", asking.read_to_end())
