"""Publishing and reading over HTTP: requests, their limits, and who they may come from."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import time
from typing import Any

from rtmb.test.support.http import HttpTests
from rtmb.test.support.processes import PATIENCE, RawClient, need
from rtmb.test.support.sockets import HandshakeError, WebSocket


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

    def test_history_tells_the_reply(self) -> None:
        self.ask("POST", "/publish/asked?reply=back.to", b"1", X_Message_Hue="b")
        (found,) = self.ask("GET", "/topics/asked/messages").json
        self.assertEqual((found["reply"], found["headers"]), ("back.to", {"Hue": ["b"]}))
        for reply in ("$LAST.a", "_R_.a", "$REPLAY.1.a"):
            self.assertEqual(self.ask("POST", f"/publish/asked?reply={reply}", b"1").status, 400)

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
            ("PUT", "/topics", "GET, HEAD, OPTIONS, POST"),
            ("DELETE", "/topics", "GET, HEAD, OPTIONS, POST"),
            ("POST", "/topics/a", "DELETE, GET, HEAD, OPTIONS"),
            ("DELETE", "/topics/a/messages", "GET, HEAD, OPTIONS"),
            ("GET", "/publish/a", "OPTIONS, POST"),
            ("POST", "/health", "GET, HEAD, OPTIONS"),
            ("DELETE", "/varz", "GET, HEAD, OPTIONS"),
            ("GET", "/connections/1", "DELETE, OPTIONS"),
            ("POST", "/journal", "GET, HEAD, OPTIONS"),
            ("BREW", "/stats", "GET, HEAD, OPTIONS"),
        ):
            said = self.ask(method, path)
            self.assertEqual((said.status, said.code), (405, "METHOD_NOT_ALLOWED"), path)
            self.assertEqual(said.headers["allow"], allowed, path)
            options = self.ask("OPTIONS", path)
            self.assertEqual((options.status, options.headers["allow"]), (204, allowed), path)
        self.assertEqual(self.ask("HEAD", "/publish/a").status, 405)
        self.assertEqual(self.ask("OPTIONS", "/nothing").status, 404)

    def test_one_shape_of_errors(self) -> None:
        for method, path, status, code in (
            ("GET", "/nothing", 404, "NOT_FOUND"),
            ("GET", "/topics/none", 404, "TOPIC_NOT_FOUND"),
            ("GET", "/journal", 404, "NO_JOURNAL"),
            ("GET", "/publish/a", 405, "METHOD_NOT_ALLOWED"),
            ("POST", "/publish/a..b", 400, "BAD_REQUEST"),
            ("GET", "/ws", 426, "UPGRADE_REQUIRED"),
            ("GET", "/topics/" + "x" * 20_000, 431, "HEADERS_TOO_LARGE"),
        ):
            said = self.ask(method, path)
            self.assertEqual((said.status, set(said.json)), (status, {"error"}), path)
            self.assertEqual(said.code, code, path)
            self.assertTrue(said.json["error"]["message"], path)
            self.assertEqual(said.headers["content-type"], "application/json", path)
        with RawClient(self.port, info=False) as client:
            client.send(b"nonsense\r\n\r\n")
            self.assertIn(b'{"error":{"code":"BAD_REQUEST"', client.read_to_end())

    def test_the_broker_does_not_show_itself_unasked(self) -> None:
        self.nats()
        own = "!system/events/connect"
        for path in ("/topics", "/stats", "/topicz"):
            self.until(lambda path=path: own in self.ask("GET", f"{path}?system=1").body.decode())
            self.assertNotIn(own, self.ask("GET", path).body.decode())
        self.assertIn(own, self.ask("GET", "/topicz?filter=!system").body.decode())
        self.assertIn(own, self.ask("GET", f"/topics/{own}").body.decode())

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
        self.assertIn("10240", said.json["error"]["message"])
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
            with RawClient(self.broker.port, info=False) as other:  # one count of all doors
                other.read_until(b"-ERR 'maximum connections exceeded'")
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
