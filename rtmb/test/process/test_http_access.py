"""Who may use the HTTP door: keys, users, a reload, TLS."""

from __future__ import annotations

import base64
import json
import ssl
import unittest
from pathlib import Path

import bcrypt

from rtmb.test.support.certificates import Authority
from rtmb.test.support.http import Events, HttpTests, ask, basic
from rtmb.test.support.processes import BrokerProcess
from rtmb.test.support.sockets import HandshakeError, WebSocket


class KeyTests(HttpTests):
    """An API key, and no users."""

    options = ("--api-key", "s3cret")

    def test_without(self) -> None:
        for method, path in (
            ("GET", "/topics"), ("POST", "/publish/a"), ("GET", "/events/a"), ("GET", "/varz"),
            ("GET", "/metrics"), ("DELETE", "/connections/1"), ("GET", "/journalz"),
            ("GET", "/stats"), ("POST", "/request/a"), ("GET", "/nothing"), ("GET", "/health/x"),
        ):  # fmt: skip
            for headers in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": ""}, basic("a", "s3cret")):
                said = ask(self.port, method, path, None, headers)
                self.assertEqual((said.status, said.code), (401, "UNAUTHORIZED"), (path, headers))
        for path in ("/ws", "/nats", "/", "/ws?api_key=wrong", "/nats?api_key="):
            with self.assertRaises(HandshakeError) as caught:
                WebSocket(self.port, path)
            self.assertEqual(caught.exception.status, 401)

    def test_what_stays_open(self) -> None:
        for path in ("/", "/health", "/healthz"):
            self.assertEqual(self.ask("GET", path).status, 200)

    def test_with(self) -> None:
        self.assertEqual(self.ask("GET", "/topics", X_API_Key="s3cret").status, 200)
        self.assertEqual(self.ask("GET", "/varz?api_key=s3cret").status, 200)
        WebSocket(self.port, headers={"X-API-Key": "s3cret"}).close()
        for path in ("/ws", "/nats", "/"):
            WebSocket(self.port, f"{path}?api_key=s3cret").close()
        self.events("/events/a?api_key=s3cret")

    def test_from_the_environment(self) -> None:
        with BrokerProcess(env={"API_KEY": "other"}) as broker:
            self.assertEqual(ask(broker.http_port, "GET", "/topics").status, 401)
            headers = {"X-API-Key": "other"}
            self.assertEqual(ask(broker.http_port, "GET", "/topics", headers=headers).status, 200)


HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
USERS = f"""
api_key = "key"
[auth]
no_auth_user = "guest"
[[auth.users]]
user = "alice"
password = "{HASH}"
[[auth.users]]
user = "bob"
password = "builder"
permissions.publish.allow = ["bob.>"]
permissions.subscribe.allow = ["bob.>", "news.*"]
permissions.subscribe.deny = ["news.secret"]
[[auth.users]]
user = "guest"
password = ""
permissions.publish.deny = [">"]
permissions.subscribe.allow = ["public.>"]
[[auth.users]]
user = "gone"
password = "gone"
expires = 2020-01-01T00:00:00Z
"""


class UserTests(HttpTests):
    """The broker's users: the HTTP door is no way around them."""

    config = USERS
    bob = basic("bob", "builder")

    def asked(self, who: dict[str, str], method: str, path: str, body: bytes = b"") -> int:
        return ask(self.port, method, path, body, who).status

    def test_who_may_come_in(self) -> None:
        alice, key = basic("alice", "secret"), {"X-API-Key": "key"}
        for who, status in (
            (alice, 200), (self.bob, 200), (key, 200), ({}, 200),
            (basic("alice", "wrong"), 401), (basic("nobody", "secret"), 401),
            (basic("gone", "gone"), 401), ({"X-API-Key": "wrong"}, 401),
            ({"Authorization": "Basic !"}, 401), ({"Authorization": "Basic"}, 401),
            ({"Authorization": "Digest x"}, 401), ({"Authorization": "Bearer x"}, 401),
            ({"Authorization": "Basic " + base64.b64encode(b"\xff:").decode()}, 401),
        ):  # fmt: skip
            for _ in range(2):  # what is known is answered from memory the second time
                self.assertEqual(self.asked(who, "GET", "/topics"), status, who)

    def test_permissions(self) -> None:
        guest: dict[str, str] = {}
        self.asked({"X-API-Key": "key"}, "POST", "/publish/other.b")
        for who, method, path, status in (
            (self.bob, "POST", "/publish/bob.a", 200),
            (self.bob, "POST", "/publish/other.a", 403),
            (self.bob, "POST", "/request/other.a", 403),
            (self.bob, "GET", "/topics/bob.a/messages", 200),
            (self.bob, "GET", "/topics/other.b/messages", 403),
            (self.bob, "GET", "/events/news.secret", 403),
            (self.bob, "GET", "/events/>", 403),
            (self.bob, "DELETE", "/topics/other.b", 403),
            (self.bob, "DELETE", "/connections/1", 403),
            (self.bob, "DELETE", "/%63onnections/1", 403),
            (guest, "POST", "/publish/public.a", 403),
            (guest, "GET", "/events/bob.a", 403),
            (basic("alice", "secret"), "POST", "/publish/any", 200),
        ):
            self.assertEqual(self.asked(who, method, path), status, (method, path))
        said = ask(self.port, "POST", "/topics", b'{"name":"mine"}', self.bob)
        self.assertEqual((said.status, said.code), (403, "FORBIDDEN"))
        names = [t["name"] for t in ask(self.port, "GET", "/topics", None, self.bob).json["topics"]]
        self.assertIn("bob.a", names)
        self.assertNotIn("other.b", names)
        self.assertNotIn("other.b", ask(self.port, "GET", "/stats", None, self.bob).json["topics"])

    def test_sockets(self) -> None:
        with WebSocket(self.port, headers=self.bob) as socket:
            for command, code in (
                ({"type": "subscribe", "topic": "other", "client_id": "a"}, "UNAUTHORIZED"),
                ({"type": "publish", "topic": "other", "message": {"payload": 1}}, "UNAUTHORIZED"),
            ):
                self.assertEqual(socket.ask(**command)["error"]["code"], code)
            # What a wider subscription may not see is left out of it.
            self.assertEqual(socket.subscribe("news.*", last_n=5)["type"], "ack")
            key = {"X-API-Key": "key"}
            self.asked(key, "POST", "/publish/news.secret", b"1")
            self.asked(key, "POST", "/publish/news.open", b"2")
            self.assertEqual(socket.hear()["topic"], "news.open")
        with WebSocket(self.port) as socket:
            self.assertIn("error", socket.subscribe("bob.a"))
            self.assertEqual(socket.subscribe("public.a")["type"], "ack")
        with self.assertRaises(HandshakeError):
            WebSocket(self.port, headers=basic("bob", "wrong"))

    def test_nats_over_websocket_asks_for_itself(self) -> None:
        with WebSocket(self.port, "/nats", headers=self.bob) as socket:
            info = socket.read_frame()[1]
            self.assertTrue(json.loads(info[5:])["auth_required"])

    def test_streams(self) -> None:
        stream = Events(self.port, "/events/news.*", self.bob)
        self.addCleanup(stream.close)
        stream.block()
        key = {"X-API-Key": "key"}
        self.asked(key, "POST", "/publish/news.secret", b"1")
        self.asked(key, "POST", "/publish/news.open", b"2")
        self.assertEqual(stream.next()[2]["topic"], "news.open")

    def test_a_token(self) -> None:
        with BrokerProcess("--token", "t0k") as broker:
            port = broker.http_port
            for headers, status in (
                ({}, 401), ({"Authorization": "Bearer t0k"}, 200),
                ({"Authorization": "Bearer no"}, 401), ({"X-API-Key": "t0k"}, 200),
            ):  # fmt: skip
                self.assertEqual(ask(port, "GET", "/topics", None, headers).status, status)


class ReloadTests(unittest.TestCase):
    def test_a_new_key_and_other_users(self) -> None:
        with BrokerProcess(config=USERS) as broker:
            port = broker.http_port
            bob, keeper = basic("bob", "builder"), {"X-API-Key": "key"}
            with (
                WebSocket(port, headers=bob) as socket,
                WebSocket(port, headers=keeper) as other,
                WebSocket(port, headers=basic("alice", "secret")) as third,
            ):
                socket.subscribe("bob.a")
                socket.subscribe("news.a")
                changed = USERS.replace('"key"', '"new"').replace('"news.*"', '"olds.*"')
                changed = changed.replace('user = "alice"', 'user = "carol"')
                broker.config.write_text(changed)
                broker.signal(1)
                broker.expect_log("settings reloaded")
                said = socket.hear()
                self.assertEqual((said["topic"], said["error"]["code"]), ("news.a", "UNAUTHORIZED"))
                self.assertEqual(socket.ask(type="ping")["type"], "pong")
                for gone in (other, third):
                    self.assertEqual(gone.hear()["error"]["code"], "UNAUTHORIZED")
                    self.assertEqual(gone.closed_with(), 1008)
            self.assertEqual(ask(port, "GET", "/varz", None, keeper).status, 401)
            self.assertEqual(ask(port, "GET", "/varz", None, {"X-API-Key": "new"}).status, 200)
            self.assertEqual(ask(port, "GET", "/varz", None, bob).status, 200)


class TlsTests(unittest.TestCase):
    def test_everything_over_tls(self) -> None:
        authority = Authority()
        certificate, key = authority.issue("127.0.0.1")
        context = ssl.create_default_context(cadata=authority.pem.decode())
        with BrokerProcess() as place:
            files = {"cert.pem": certificate, "key.pem": key}
            for name, data in files.items():
                Path(place.directory, name).write_bytes(data)
            paths = [str(place.directory / name) for name in files]
            with BrokerProcess("--tls-cert", paths[0], "--tls-key", paths[1]) as broker:
                port = broker.http_port
                self.assertIn("https://", broker.log())
                said = ask(port, "POST", "/publish/tls", b"x", tls=context)
                self.assertEqual(said.status, 200)
                with WebSocket(port, tls=context) as socket:
                    socket.subscribe("tls", last_n=1)
                    self.assertEqual(socket.hear()["message"]["payload"], "x")
                    for i in range(300):  # more than may wait, and none is dropped
                        socket.say(type="publish", topic="tls", message={"payload": i})
                    found = [socket.hear() for _ in range(600)]
                    payloads = [s["message"]["payload"] for s in found if s["type"] == "event"]
                    self.assertEqual(payloads, list(range(300)))
                with WebSocket(port, "/nats", tls=context) as socket:
                    info = json.loads(socket.read_frame()[1][5:])
                    self.assertNotIn("tls_required", info)
