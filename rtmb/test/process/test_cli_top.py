"""`rtmb top`: what a person sees of a broker, at a real terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.support.certificates import tls_broker
from rtmb.test.support.commands import Terminal, rtmb
from rtmb.test.support.processes import (
    NATS_SERVER,
    BrokerProcess,
    NatsServerProcess,
    RawClient,
    need,
)


def library(port: int, name: str) -> RawClient:
    client = RawClient(port)
    client.connect(name=name)
    return client


class RtmbTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.broker = BrokerProcess()
        self.addCleanup(self.broker.stop)
        found = self.broker.expect_log(r"http door: (http://\S+?:\d+)")
        self.url = found[1].decode()

    def client(self, name: str) -> RawClient:
        found = library(self.broker.port, name)
        self.addCleanup(found.close)
        return found

    def test_what_a_person_sees(self) -> None:
        reader, writer = self.client("the reader"), self.client("the writer")
        reader.subscribe("weather.*")
        with Terminal("top", "--http", self.url, "--interval", "300ms") as top:
            top.sees(r"^rtmb-\w+  [\d.]+  up \d+s  " + self.url)
            top.sees(r"^connections 2  subscriptions 1  slow consumers 0  drops 0  cpu ")
            top.sees(r"^2 connections by out\n +cid  name ")
            top.sees(r"^ +\d+  the reader +nats +1 +0 B ")
            writer.publish("weather.oslo", b"rain\x1b[2J")
            top.sees(r"^1 subjects\n +subject .*\n +weather.oslo +[\d.]+ +\d+ +1 +rain\\x1b\[2J")
            top.sees(r"^q quit   s sort")
            for sort in ("in", "pending", "subs", "cid", "out"):
                top.types("s")
                top.sees(rf"^2 connections by {sort}$")
            self.assertFalse(top.restored)
            top.types("q")
            self.assertEqual(top.wait(), 0)
            self.assertTrue(top.restored)
            # The screen that was there before is back, and so is the cursor.
            top.said(rb"\x1b\[\?1049l(?!.*1049h)")
            top.said(rb"\x1b\[\?25h(?!.*25l)")

    def test_json(self) -> None:
        for name, patterns in (("few", 1), ("many", 3)):
            client = self.client(name)
            for sid in range(patterns):
                client.subscribe(f"{name}.{sid}", str(sid))
        client.send(b"PUB many.1 1\r\nx\r\n" * 1000)
        client.settle()
        arguments = ["--json", "--interval", "50ms", "--sort", "subs"]
        found = json.loads(rtmb("top", "--http", self.url, *arguments).stdout)
        self.assertEqual([c["name"] for c in found["connections"]], ["many", "few"])
        self.assertEqual(found["connections"][0]["out_msgs_per_second"], 0)
        self.assertEqual(
            [(topic["name"], topic["messages"]) for topic in found["topics"]], [("many.1", 1000)]
        )

    def test_the_brokers_own_subjects_are_hidden_unless_asked_for(self) -> None:
        self.client("writer").publish("mine", b"x")
        self.broker.stop()
        self.broker = BrokerProcess("--metrics-interval", "0.1")
        self.addCleanup(self.broker.stop)
        writer = self.client("writer")
        writer.subscribe("!system/metrics/connections")
        writer.publish("mine", b"x")
        writer.read_until(b"MSG !system/metrics/")
        url = f"http://127.0.0.1:{self.broker.http_port}"
        for more, own in (([], False), (["--system"], True)):
            found = rtmb("top", "--http", url, "--json", "--interval", "50ms", *more)
            names = [topic["name"] for topic in json.loads(found.stdout)["topics"]]
            self.assertEqual(names[0], "mine")  # the broker's own come last
            self.assertEqual(any(name.startswith("!system/") for name in names[1:]), own)

    def test_a_slow_consumer_is_red(self) -> None:
        self.broker.stop()
        self.broker = BrokerProcess("--max-pending", "64MiB")
        self.addCleanup(self.broker.stop)
        found = self.broker.expect_log(r"http door: (http://\S+?:\d+)")
        slow = RawClient(self.broker.port, receive_buffer=4096)
        self.addCleanup(slow.close)
        slow.connect(name="the slow one")
        slow.subscribe("flood")
        writer = self.client("writer")
        for _ in range(20):
            writer.publish("flood", bytes(1 << 20))
        with Terminal("top", "--http", found[1].decode(), "--interval", "200ms") as top:
            row = top.sees(r"the slow one +nats +1 +([\d.]+ MiB) ")
            self.assertEqual(top.colour(row[1]), "red")

    def test_it_goes_on_without_the_server(self) -> None:
        with Terminal("top", "--http", self.url, "--interval", "200ms") as top:
            top.sees(r"^connections 0 ")
            self.broker.kill()
            top.sees(r"^http://\S+: Connection was refused")
            self.assertEqual(top.colour("Connection was refused"), "red")
            top.types("\x03")
            self.assertEqual(top.wait(), 130)
            self.assertTrue(top.restored)

    def test_an_api_key(self) -> None:
        with BrokerProcess("--api-key", "secret") as broker:
            found = broker.expect_log(r"http door: (http://\S+?:\d+)")
            url = found[1].decode()
            refused = rtmb("top", "--http", url, "--once")
            self.assertEqual(refused.returncode, 4)
            self.assertRegex(refused.stderr, rb"\Artmb: \S+ does not let us in: see --api-key, ")
            arguments = ["top", "--http", url, "--once", "--interval", "50ms"]
            self.assertEqual(rtmb(*arguments, "--api-key", "secret").returncode, 0)

    def test_users_and_tokens(self) -> None:
        config = '[[auth.users]]\nuser = "ann"\npassword = "p"\n'
        for settings, login, wrong in (
            (config, ("--user", "ann", "--password", "p"), ("--user", "ann")),
            ('token = "t"\n', ("--token", "t"), ("--token", "u")),
        ):
            with BrokerProcess(config=settings) as broker:
                url = f"http://127.0.0.1:{broker.http_port}"
                arguments = ["top", "--http", url, "--once", "--interval", "50ms"]
                for status, said in ((0, login), (4, wrong), (4, ())):
                    self.assertEqual(rtmb(*arguments, *said).returncode, status, said)
                env = {"NATS_" + said[2:].upper(): value for said, value in pairs(login)}
                self.assertEqual(rtmb(*arguments, env=env).returncode, 0)

    def test_tls(self) -> None:
        with tls_broker(self) as (broker, ca):
            url = f"https://localhost:{broker.http_port}"
            arguments = ["top", "--http", url, "--once", "--interval", "50ms"]
            self.assertEqual(rtmb(*arguments, "--tls-ca", ca).returncode, 0)
            for more, line in (
                ([], rb"cannot be used: its certificate is not trusted"),
                (["--http", url.replace("https", "http")], rb"does not answer in HTTP"),
            ):
                found = rtmb(*arguments, *more)
                self.assertEqual(found.returncode, 4)
                self.assertRegex(found.stderr, rb"\Artmb: \S+ " + line + rb"\n\Z")

    def test_tls_where_there_is_none(self) -> None:
        """What OpenSSL says is told in words, not as the list that it is in."""
        address = f"127.0.0.1:{self.broker.port}"
        for arguments, line in (
            (
                ["top", "--once", "--http", f"https://{address}"],
                rb"\S+ cannot be used: TLS failed: [a-z ]+",
            ),
            (["pub", "x", "-s", f"wss://{address}"], rb"\S+: TLS failed: [a-z ]+"),
        ):
            found = rtmb(*arguments)
            self.assertEqual(found.returncode, 4)
            self.assertRegex(found.stderr, rb"\Artmb: " + line + rb"\n\Z")


def pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options and their values."""
    return zip(arguments[::2], arguments[1::2], strict=True)


class NatsServerTests(SynchronousTestCase):
    def setUp(self) -> None:
        need(self, Path(NATS_SERVER).exists(), "no nats-server here")
        self.server = NatsServerProcess(config='http: "127.0.0.1:-1"')
        self.addCleanup(self.server.stop)
        found = self.server.expect_log(r"Starting http monitor on (127.0.0.1:\d+)")
        self.url = f"http://{found[1].decode()}"
        reader = library(self.server.port, "the reader")
        self.addCleanup(reader.close)
        reader.subscribe("weather.*")

    def test_what_a_person_sees(self) -> None:
        with Terminal("top", "--http", self.url, "--interval", "300ms") as top:
            top.sees(r"^connections 1  subscriptions \d+  slow consumers 0  cpu ")
            top.sees(r"^ +\d+  the reader +nats +1 +0 B ")
            top.sees(r"^1 subjects subscribed to\n +subject +subs\n +weather\.\* +1$")
            top.types("q")
            self.assertEqual(top.wait(), 0)

    def test_once(self) -> None:
        found = rtmb("top", "--http", self.url, "--once", "--interval", "50ms")
        self.assertEqual(found.returncode, 0, found)
        self.assertNotIn(b"\x1b", found.stdout)
        self.assertRegex(found.stdout.decode(), r"(?m)^ +\d+  the reader ")

    def test_what_goes_wrong_is_one_line(self) -> None:
        for url, line in (
            ("http://127.0.0.1:1", rb"http://127.0.0.1:1: [^\n]*refused[^\n]*"),
            (f"http://127.0.0.1:{self.server.port}", rb"\S+ does not answer in HTTP"),
            (self.url + "/nowhere", rb"\S+ answers 404"),
        ):
            found = rtmb("top", "--http", url, "--once")
            self.assertEqual(found.returncode, 4, found)
            self.assertRegex(found.stderr, rb"\Artmb: " + line + rb"\n\Z")

    def test_it_wants_a_terminal(self) -> None:
        found = rtmb("top", "--http", self.url)
        self.assertEqual(found.returncode, 2)
        self.assertIn(b"--once prints one frame", found.stderr)
