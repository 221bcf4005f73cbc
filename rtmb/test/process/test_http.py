"""Tests for the HTTP door: requests, access, limits, event streams, the end."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import shutil
import ssl
import subprocess
import threading
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bcrypt
from twisted.internet.defer import Deferred, fail
from twisted.internet.testing import MemoryReactorClock, StringTransportWithDisconnection
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rtmb.auth import Credentials, User
from rtmb.broker import Broker
from rtmb.codecs.json_message import event_json, message_id
from rtmb.config import Settings
from rtmb.core.message import Message
from rtmb.doors import http as door
from rtmb.doors.http.site import HttpService
from rtmb.interfaces import IAuthenticator
from rtmb.test.process.test_tls import Authority
from rtmb.test.processes import PATIENCE, BrokerProcess, RawClient, need
from rtmb.test.sockets import DoorTests, HandshakeError, WebSocket


class Answer:
    """What came back."""

    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json["error"]["code"]
        return code


def ask(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=tls)
    )
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class Events:
    """A stream of Server-Sent Events."""

    def __init__(self, port: int, path: str, headers: dict[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._connection.request("GET", path, headers=headers or {})
        self.answer = self._connection.getresponse()
        assert self.answer.status == 200, self.answer.read()

    def close(self) -> None:
        self.answer.close()
        self._connection.close()

    def block(self) -> dict[str, str]:
        """The fields of the next event or comment; empty at the end."""
        found: dict[str, str] = {}
        while line := self.answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            found[name] = value
        return found

    def next(self) -> tuple[str, str, Any]:
        """The kind, the id and the data of the next event."""
        block = self.block()
        while "data" not in block:
            assert block, "the stream ended"
            block = self.block()
        return block.get("event", "message"), block.get("id", ""), json.loads(block["data"])

    def payloads(self, count: int) -> list[Any]:
        return [self.next()[2]["message"]["payload"] for _ in range(count)]


class HttpTests(DoorTests):
    """Tests that share one broker, with what they ask of it."""

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(self.port, method, path, body, named)

    def events(self, path: str, **headers: str) -> Events:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        found = Events(self.port, path, named)
        self.addCleanup(found.close)
        return found

    @contextmanager
    def responder(self, subject: str, reply: bytes) -> Iterator[None]:
        """Someone who answers one request; `reply` has `INBOX` where the subject goes."""
        client = self.nats()
        client.connect(headers=True)
        client.subscribe(subject, "1")

        def work() -> None:
            found = client.read_until(b"\r\n", PATIENCE)
            while not found.startswith((b"MSG", b"HMSG")):
                found = client.read_until(b"\r\n", PATIENCE)
            client.send(reply.replace(b"INBOX", found.split()[3]))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            thread.join(PATIENCE)


class RestTests(HttpTests):
    """Topics, publishing, asking."""

    def test_topics(self) -> None:
        made = self.ask("POST", "/topics", b'{"name":"made"}')
        self.assertEqual((made.status, made.json), (201, {"status": "created", "topic": "made"}))
        again = self.ask("POST", "/topics", b'{"name":"made"}')
        self.assertEqual((again.status, again.code), (409, "CONFLICT"))
        listed = self.ask("GET", "/topics").json["topics"]
        self.assertIn({"name": "made", "subscribers": 0}, listed)
        self.nats().subscribe("made")
        one = self.ask("GET", "/topics/made").json
        self.assertEqual(one["subscribers"], 1)
        gone = self.ask("DELETE", "/topics/made")
        self.assertEqual((gone.status, gone.json), (200, {"status": "deleted", "topic": "made"}))
        self.assertEqual(self.ask("DELETE", "/topics/made").status, 404)
        self.assertEqual(self.ask("GET", "/topics/made").code, "TOPIC_NOT_FOUND")

    def test_bad_topics(self) -> None:
        for body in (b"", b"{", b"[]", b'{"name":5}', b'{"name":""}', b'{"name":"a b"}',
                     b'{"name":"a.*"}', b"[" * 100_000, b"\xff"):  # fmt: skip
            said = self.ask("POST", "/topics", body)
            self.assertEqual((said.status, said.code), (400, "BAD_REQUEST"), body[:20])

    def test_health_and_stats(self) -> None:
        self.ask("POST", "/publish/counted", b"1")
        health = self.ask("GET", "/health").json
        self.assertEqual(set(health), {"uptime_sec", "topics", "subscribers"})
        self.assertGreaterEqual(health["topics"], 1)
        stats = self.ask("GET", "/stats").json["topics"]
        self.assertEqual(stats["counted"], {"messages": 1, "subscribers": 0})

    def test_publish(self) -> None:
        client = self.nats()
        client.connect(headers=True)
        client.subscribe("pub.>")
        said = self.ask("POST", "/publish/pub.a%20b".replace("%20", "%C3%A9"), b"\x00\xff")
        self.assertEqual(said.json, {"status": "published", "topic": "pub.aéb", "receivers": 1})
        client.read_until("MSG pub.aéb 1 2\r\n".encode() + b"\x00\xff\r\n")
        self.ask("POST", "/publish/pub.b?reply=back.to", b"", Nats_Msg_Id="7", X_Message_Hue="b")
        found = client.read_until(b"\r\n\r\n\r\n")
        self.assertIn(b"HMSG pub.b 1 back.to ", found)
        self.assertIn(b"Nats-Msg-Id: 7\r\n", found)
        self.assertIn(b"Hue: b\r\n", found)

    def test_bad_publishes(self) -> None:
        for path in ("", "/", "/a..b", "/a.*", "/a%20b", "/a%0Ab", "/%FF", "/a?reply=*"):
            said = self.ask("POST", "/publish" + path, b"x")
            self.assertEqual((said.status, said.code), (400, "BAD_REQUEST"), path)

    def test_slashes_are_ordinary(self) -> None:
        for path in ("/publish/a/b.c", "/publish/a%2Fb.c"):
            self.assertEqual(self.ask("POST", path, b"x").json["topic"], "a/b.c")
        self.assertEqual(len(self.ask("GET", "/topics/a/b.c/messages").json), 2)

    def test_history(self) -> None:
        for i in range(5):
            self.ask("POST", "/publish/h", b'{"n": %d}' % i, Nats_Msg_Id=f"id-{i}")
        found = self.ask("GET", "/topics/h/messages?last_n=2").json
        self.assertEqual([m["payload"] for m in found], [{"n": 3}, {"n": 4}])
        self.assertEqual(found[0]["id"], "id-3")
        self.assertEqual(found[0]["headers"], {"Nats-Msg-Id": ["id-3"]})
        self.assertRegex(found[0]["ts"], r"Z$")
        self.assertEqual(len(self.ask("GET", "/topics/h/messages").json), 5)
        self.assertEqual(self.ask("GET", "/topics/h/messages?last_n=x").status, 400)
        self.assertEqual(self.ask("GET", "/topics/none/messages").status, 404)

    def test_request(self) -> None:
        cases = [
            (b"PUB INBOX 7\r\n[1, 2]\n\r\n", b"[1, 2]\n", "application/json"),
            (b"PUB INBOX 2\r\nhi\r\n", b"hi", "text/plain; charset=utf-8"),
            (b"PUB INBOX 2\r\n\xff\x00\r\n", b"\xff\x00", "application/octet-stream"),
        ]
        for reply, body, kind in cases:
            with self.responder("ask.me", reply):
                said = self.ask("POST", "/request/ask.me?timeout=10", b"?")
            self.assertEqual((said.status, said.body), (200, body))
            self.assertEqual(said.headers["content-type"], kind)
        headers = b"NATS/1.0\r\nNats-Stream: s\r\nHue: blue\r\nSet-Cookie: a\r\n\r\n"
        size = len(headers)
        with self.responder("ask.me", b"HPUB INBOX %d %d\r\n%bok\r\n" % (size, size + 2, headers)):
            said = self.ask("POST", "/request/ask.me", b"?")
        self.assertEqual(
            (said.headers["nats-stream"], said.headers["x-message-hue"]), ("s", "blue")
        )
        self.assertNotIn("set-cookie", said.headers)  # a responder cannot set the page's cookies

    def test_request_without_reply(self) -> None:
        said = self.ask("POST", "/request/nobody.there", b"?")
        self.assertEqual((said.status, said.code), (503, "NO_RESPONDERS"))
        self.nats().subscribe("silent")
        said = self.ask("POST", "/request/silent?timeout=0.1", b"?")
        self.assertEqual((said.status, said.code), (504, "TIMEOUT"))
        for timeout in ("0", "-1", "x", "61", "nan"):
            said = self.ask("POST", f"/request/silent?timeout={timeout}", b"?")
            self.assertEqual(said.status, 400, timeout)

    def test_a_request_whose_client_leaves(self) -> None:
        self.nats().subscribe("patient")
        before = self.ask("GET", "/health").json["subscribers"]
        with RawClient(self.port, info=False) as client:
            client.send(b"POST /request/patient?timeout=60 HTTP/1.1\r\nHost: x\r\n\r\n")
            self.until(lambda: self.ask("GET", "/health").json["subscribers"] == before + 1)
        self.until(lambda: self.ask("GET", "/health").json["subscribers"] == before)

    def until(self, there: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not there():
            self.assertLess(time.monotonic(), end)

    def test_what_is_not_there(self) -> None:
        for path in ("/nothing", "/topics2", "//", "/index.html"):
            said = self.ask("GET", path)
            self.assertEqual((said.status, said.code), (404, "NOT_FOUND"), path)

    def test_wrong_methods(self) -> None:
        for method, path, allowed in (
            ("PUT", "/topics", "DELETE, GET, HEAD, POST"),
            ("GET", "/publish/a", "POST"),
            ("HEAD", "/publish/a", "POST"),
            ("POST", "/health", "GET, HEAD"),
            ("DELETE", "/varz", "GET, HEAD"),
            ("BREW", "/stats", "GET, HEAD"),
        ):
            said = self.ask(method, path)
            self.assertEqual((said.status, said.headers["allow"]), (405, allowed), path)

    def test_head(self) -> None:
        said = self.ask("HEAD", "/health")
        self.assertEqual((said.status, said.body), (200, b""))
        self.assertEqual(self.ask("HEAD", "/events/a").status, 200)

    def test_the_page(self) -> None:
        page = self.ask("GET", "/")
        self.assertEqual(page.headers["content-type"], "text/html; charset=utf-8")
        policy = page.headers["content-security-policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        for name in ("script", "style"):
            found = re.findall(rf"<{name}[^>]*>(.*?)</{name}>".encode(), page.body, re.DOTALL)
            self.assertTrue(found)
            for text in found:
                digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
                self.assertIn(f"'sha256-{digest}'", policy)

    def test_mounted(self) -> None:
        for path in ("/varz", "/connz", "/subsz", "/routez", "/leafz", "/healthz", "/metrics"):
            self.assertEqual(self.ask("GET", path).status, 200, path)
        self.assertEqual(self.ask("GET", "/journalz").status, 200)

    def test_counts_by_door(self) -> None:
        self.ask("POST", "/publish/counted.by.door", b"12345")
        found = self.ask("GET", "/metrics").body.decode()
        self.assertRegex(found, r'(?m)^rtmb_\w*in\w*\{.*door="http".*\} [1-9]')

    def test_curl(self) -> None:
        curl = shutil.which("curl")
        need(self, curl, "curl is not installed")
        base = f"http://127.0.0.1:{self.port}"
        for arguments, wanted in (
            (["-d", "hello", f"{base}/publish/curl"], '"published"'),
            ([f"{base}/topics/curl/messages?last_n=1"], '"payload":"hello"'),
            (["-T", "-", f"{base}/health"], "405"),
            (["-X", "POST", "--data-binary", "@-", f"{base}/publish/curl"], '"published"'),
        ):
            ended = subprocess.run(
                [str(curl), "-sS", "-w", "%{http_code}", *arguments],
                input="x" * 500_000,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=True,
            )
            self.assertIn(wanted, ended.stdout)


class LimitTests(HttpTests):
    options = ("--max-payload", "10KiB", "--max-connections", "20")

    def test_bodies(self) -> None:
        self.assertEqual(self.ask("POST", "/publish/a", b"x" * 10_240).status, 200)
        said = self.ask("POST", "/publish/a", b"x" * 10_241)
        self.assertEqual((said.status, said.code), (413, "TOO_LARGE"))
        # Headers count too, as they do for NATS clients.
        said = self.ask("POST", "/publish/a", b"x" * 10_240, Nats_Msg_Id="1")
        self.assertEqual((said.status, said.code), (413, "TOO_LARGE"))

    def refused(self, head: bytes, body: bytes, status: bytes) -> None:
        with RawClient(self.port, info=False) as client:
            client.send(head + b"\r\n\r\n" + body)
            self.assertIn(b"HTTP/1.1 " + status, client.read_until(b"}\n"))

    def test_refused_before_it_is_read(self) -> None:
        post = b"POST /publish/a HTTP/1.1\r\nHost: x\r\n"
        self.refused(post + b"Content-Length: 1000000000000", b"", b"413")
        chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
        self.refused(post + b"Transfer-Encoding: chunked", chunk * 4, b"413")
        expecting = post + b"Content-Length: 20000\r\nExpect: 100-continue"
        with RawClient(self.port, info=False) as client:
            client.send(expecting + b"\r\n\r\n")
            self.assertTrue(client.read_until(b"}\n").startswith(b"HTTP/1.1 413"))

    def test_headers(self) -> None:
        self.refused(b"GET /health HTTP/1.1\r\nX: " + b"x" * 20_000, b"", b"431")
        with RawClient(self.port, info=False) as client:
            client.send(b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 600 + b"\r\n")
            self.assertTrue(client.read_to_end().startswith(b"HTTP/1.1 400"))

    def test_memory_is_flat(self) -> None:
        def endless() -> None:
            with RawClient(self.port, info=False) as client:
                client.socket.settimeout(0.3)
                client.send(b"POST /publish/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
                try:
                    for _ in range(300):
                        client.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                except OSError:
                    pass

        endless()
        before = self.broker.rss()
        for _ in range(5):
            endless()
        self.assertLess(self.broker.rss() - before, 8 << 20)

    def test_connections(self) -> None:
        held = [RawClient(self.port, info=False) for _ in range(20)]
        try:
            with RawClient(self.port, info=False) as late:
                self.assertTrue(late.read_until(b"}\n").startswith(b"HTTP/1.1 503"))
        finally:
            for client in held:
                client.close()


class OriginTests(HttpTests):
    """Pages of other sites."""

    options = ("--cors-origin", "https://friend.example")

    def test_a_friend(self) -> None:
        said = self.ask("GET", "/topics", Origin="https://friend.example")
        self.assertEqual(said.headers["access-control-allow-origin"], "https://friend.example")
        said = self.ask(
            "OPTIONS", "/publish/a", Origin="https://friend.example",
            Access_Control_Request_Headers="x-api-key",
        )  # fmt: skip
        self.assertEqual(said.status, 204)
        self.assertIn("POST", said.headers["access-control-allow-methods"])
        self.assertEqual(said.headers["access-control-allow-headers"], "x-api-key")
        said = self.ask("POST", "/publish/a", b"x", Origin="https://friend.example")
        self.assertEqual(said.status, 200)
        WebSocket(self.port, headers={"Origin": "https://friend.example"}).close()

    def test_the_page_itself(self) -> None:
        origin = f"http://127.0.0.1:{self.port}"
        self.assertEqual(self.ask("POST", "/publish/a", b"x", Origin=origin).status, 200)
        WebSocket(self.port, headers={"Origin": origin}).close()

    def test_strangers(self) -> None:
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "https://["):
            said = self.ask("GET", "/topics", Origin=origin)
            self.assertNotIn("access-control-allow-origin", said.headers)
            self.assertEqual(self.ask("OPTIONS", "/publish/a", Origin=origin).status, 403)
            self.assertEqual(self.ask("POST", "/publish/a", b"x", Origin=origin).status, 403)
            for path in ("/ws", "/nats", "/"):
                with self.assertRaises(HandshakeError) as caught:
                    WebSocket(self.port, path, headers={"Origin": origin})
                self.assertEqual(caught.exception.status, 403)


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
        self.assertEqual((said.status, said.code), (403, "UNAUTHORIZED"))
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


@implementer(IAuthenticator)
class Broken:
    """An authenticator that does not work."""

    required, nonce_needed, guest = True, False, None

    def authenticate(self, credentials: Credentials) -> Deferred[User | None]:
        return fail(RuntimeError("the directory does not answer"))

    def still(self, user: User | None) -> User | None:
        return user


class InMemoryTests(SynchronousTestCase):
    """What is hard to bring about from outside."""

    def start(self, authenticator: IAuthenticator | None = None) -> None:
        broker = Broker(Settings(), MemoryReactorClock(), authenticator)
        service = broker.getServiceNamed("http")
        assert isinstance(service, HttpService)
        self.site = service.site

    def said(self, data: bytes) -> bytes:
        self.transport = StringTransportWithDisconnection()
        self.transport.protocol = channel = self.site.buildProtocol(None)
        channel.makeConnection(self.transport)
        channel.dataReceived(data)
        answer: bytes = self.transport.value()
        return answer

    def test_bodies_of_all_together(self) -> None:
        self.start()
        self.patch(door, "MOST_BODIES", 15)
        request = b"POST /publish/a HTTP/1.1\r\nContent-Length: 10\r\n\r\n"
        self.assertEqual(self.said(request + b"x" * 9), b"")
        self.assertEqual(self.site.bodies, 9)
        first = self.transport
        self.assertIn(b"HTTP/1.1 503", self.said(request + b"x" * 10))
        self.transport.loseConnection()
        first.loseConnection()
        self.assertEqual(self.site.bodies, 0)
        self.assertIn(b"HTTP/1.1 200", self.said(request + b"x" * 10))
        self.assertEqual(self.site.bodies, 0)

    def test_a_broken_authenticator_lets_nobody_in(self) -> None:
        self.start(Broken())
        said = self.said(b"GET /topics HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n")
        self.assertIn(b"HTTP/1.1 500", said)
        self.assertNotIn(b"directory", said)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)


class EventJsonTests(SynchronousTestCase):
    """How a message is shown."""

    def test_the_subject_may_be_any_bytes(self) -> None:
        message = Message("a\udcff", b"1", time=1.0)
        self.assertEqual(json.loads(event_json(message))["topic"], "a\ufffd")

    def test_ids(self) -> None:
        first = Message("a", b"1", time=1.0)
        self.assertEqual(message_id(first), message_id(Message("a", b"1", time=1.0)))
        for other in (Message("b", b"1", time=1.0), Message("a", b"2", time=1.0),
                      Message("a", b"1", time=1.000001)):  # fmt: skip
            self.assertNotEqual(message_id(first), message_id(other))
        named = Message("a", b"", headers=b"NATS/1.0\r\nNats-Msg-Id: me \r\n\r\n")
        self.assertEqual(message_id(named), "me")

    def test_no_number_loses_a_digit(self) -> None:
        message = Message("a", b'{"n": 1.10, "big": 12345678901234567890123}')
        self.assertIn(b'"payload":{"n": 1.10, "big": 12345678901234567890123}', event_json(message))

    def test_nested_without_end(self) -> None:
        message = Message("a", b"[" * 100_000)
        self.assertEqual(json.loads(event_json(message))["message"]["payload"], "[" * 100_000)
