"""`rtmb.client` against real servers: the same tests with rtmb and with nats-server."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Unpack

from twisted.internet import reactor as _reactor
from twisted.internet.defer import ensureDeferred, gatherResults
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from rtmb.client import (
    AuthenticationFailed,
    Client,
    ClientOptions,
    ConnectionClosed,
    ConnectionFailed,
    Disconnected,
    Event,
    Message,
    NoResponders,
    PayloadTooLarge,
    PermissionViolation,
    RequestTimeout,
    connect,
)
from rtmb.test.support.certificates import made
from rtmb.test.support.files import folder
from rtmb.test.support.processes import PATIENCE, NatsServerProcess, ServerProcess, need
from rtmb.test.support.users import Nkey
from rtmb.testing import BrokerProcess

reactor: Any = _reactor


class ServerTests(TestCase):
    """The same tests against each server, over real sockets."""

    timeout = 6 * PATIENCE
    #: What this server is told for the settings that the tests name.
    SETTINGS: ClassVar[dict[str, Any]] = {}

    def start(self, settings: str = "", port: int = 0, **fill: str) -> ServerProcess:
        raise NotImplementedError

    def server(self, settings: str = "", port: int = 0, **fill: str) -> ServerProcess:
        server = self.start(settings, port, **fill)
        self.addCleanup(server.stop)
        return server

    async def client(self, server: ServerProcess | str, **options: Unpack[ClientOptions]) -> Client:
        url = server if isinstance(server, str) else server.url
        client = await connect(url, **options)
        self.addCleanup(client.close)
        return client

    async def fails(self, server: ServerProcess | str, **options: Unpack[ClientOptions]) -> str:
        """Connecting fails; the error's text."""
        try:
            await self.client(server, **options)
        except ConnectionFailed as error:
            self.assertNotIn("wrong", str(error))  # the tests' bad passwords
            return str(error)
        raise self.failureException("connected")

    async def test_publish_and_subscribe(self) -> None:
        server = self.server()
        one, two = await self.client(server), await self.client(server, name="two")
        everything, some = one.subscribe("a.>"), one.subscribe("a.*.c")
        await one.flush()
        two.publish("a.b.c", "text", headers={"K": ["1", "2"]}, reply="there")
        two.publish("a.b", b"\x00\xff")
        message = await some.next(PATIENCE)
        self.assertEqual((message.text, message.reply), ("text", "there"))
        self.assertEqual(message.headers.lists(), {"K": ["1", "2"]})
        self.assertEqual((await everything.next(PATIENCE)).subject, "a.b.c")
        self.assertEqual((await everything.next(PATIENCE)).payload, b"\x00\xff")
        self.assertEqual(one.stats.in_msgs, 3)
        self.assertIn("max_payload", one.server_info)

    async def test_many_messages(self) -> None:
        """None is lost or out of order, small and large, however they are read."""
        server = self.server()
        publisher, reader = await self.client(server), await self.client(server)
        count = 30_000
        called: list[int] = []
        reader.subscribe("n", callback=lambda m: called.append(int(m.payload[:8])))
        subscription = reader.subscribe("n")
        subscription.unsubscribe(max=count)
        await reader.flush()
        for i in range(count):
            publisher.publish("n", b"%08d" % i + b"x" * (i % 700))
        await publisher.flush(PATIENCE)
        read = [int(message.payload[:8]) async for message in subscription]
        self.assertEqual(read, list(range(count)))
        await reader.flush()
        self.assertEqual(called, read)

    async def test_largest_payload(self) -> None:
        server = self.server()
        client = await self.client(server)
        most = client.server_info["max_payload"]
        subscription = client.subscribe("big")
        client.publish("big", b"x" * most)
        self.assertEqual(len((await subscription.next(PATIENCE)).payload), most)
        self.assertRaises(PayloadTooLarge, client.publish, "big", b"x" * (most + 1))

    async def test_queue(self) -> None:
        """Each message reaches one member, and all have work."""
        server = self.server()
        clients = [await self.client(server) for _ in range(3)]
        got: list[list[bytes]] = [[], [], []]

        def keep(mine: list[bytes], message: Message) -> None:
            mine.append(message.payload)

        for client, mine in zip(clients, got, strict=True):
            client.subscribe("w", queue="q", callback=functools.partial(keep, mine))
            await client.flush()
        for i in range(100):
            clients[0].publish("w", b"%d" % i)
        for client in clients:
            await client.flush()
        await self.until(lambda: sum(map(len, got)) == 100)
        self.assertEqual(len({payload for mine in got for payload in mine}), 100)
        self.assertTrue(all(got), got)

    async def until(self, there: Callable[[], bool]) -> None:
        for _ in range(int(PATIENCE * 100)):
            if there():
                return
            await deferLater(reactor, 0.01)
        self.fail("it did not come to that")

    async def test_requests(self) -> None:
        server = self.server()
        asking, answering = await self.client(server), await self.client(server)

        async def answer(message: Message) -> None:
            await deferLater(reactor, 0)
            message.respond(b"re " + message.payload, headers={"by": "me"})

        answering.subscribe("svc.*", callback=answer, queue="workers")
        answering.subscribe("mute")
        await answering.flush()
        answers = await gatherResults(
            [asking.request(f"svc.{i}", str(i), timeout=PATIENCE) for i in range(50)]
        )
        self.assertEqual([m.text for m in answers], [f"re {i}" for i in range(50)])
        self.assertEqual(answers[0].headers["by"], "me")
        await self.assertFailure(asking.request("nobody", timeout=PATIENCE), NoResponders)
        await self.assertFailure(asking.request("mute", timeout=0.05), RequestTimeout)

    async def test_maximum(self) -> None:
        """The server ends a subscription too: messages count from when it was made."""
        server = self.server()
        client = await self.client(server)
        subscription = client.subscribe("m")
        client.publish("m", b"0")
        await client.flush()
        subscription.unsubscribe(max=3)
        for i in range(1, 10):
            client.publish("m", b"%d" % i)
        self.assertEqual([m.payload async for m in subscription], [b"0", b"1", b"2"])
        await client.flush()
        self.assertEqual(client.stats.in_msgs, 3)

    async def test_no_echo(self) -> None:
        server = self.server()
        quiet, other = await self.client(server, echo=False), await self.client(server)
        mine, theirs = quiet.subscribe("e"), other.subscribe("e")
        await other.flush()
        quiet.publish("e", b"from quiet")
        await quiet.flush()
        self.assertEqual((await theirs.next(PATIENCE)).payload, b"from quiet")
        other.publish("e", b"from other")
        self.assertEqual((await mine.next(PATIENCE)).payload, b"from other")

    async def test_drain(self) -> None:
        server = self.server()
        client, other = await self.client(server), await self.client(server)
        got: list[bytes] = []

        async def slow(message: Message) -> None:
            await deferLater(reactor, 0.001)
            got.append(message.payload)

        client.subscribe("d", callback=slow)
        await client.flush()
        for i in range(100):
            other.publish("d", b"%d" % i)
        await other.flush()
        await self.until(lambda: bool(got))
        await client.drain(PATIENCE)
        self.assertEqual(len(got), 100)
        self.assertTrue(client.closed)
        self.assertRaises(ConnectionClosed, client.publish, "d")

    # Who comes in

    async def test_token(self) -> None:
        server = self.server("token")
        await self.client(server, token="s3cret")
        await self.client(f"nats://s3cret@{server.host}:{server.port}")
        self.assertIn("Authorization Violation", await self.fails(server, token="wrong"))
        await self.assertFailure(connect(server.url), AuthenticationFailed)

    async def test_user(self) -> None:
        server = self.server("user")
        await self.client(server, user="alice", password="s3:cret@")
        await self.client(f"nats://alice:s3%3Acret%40@{server.host}:{server.port}")
        await self.fails(server, user="alice", password="wrong")
        await self.fails(f"nats://alice:wrong@{server.host}:{server.port}")

    async def test_nkey(self) -> None:
        key = Nkey()
        server = self.server("nkey", nkey=key.public)
        await self.client(server, nkey_seed=key.seed)
        await self.fails(server, nkey_seed=Nkey().seed)
        await self.fails(server)

    async def test_permissions(self) -> None:
        """What is not allowed is told; the connection and the rest live."""
        server = self.server("permissions")
        events: list[Event] = []
        client = await self.client(
            server, user="u", password="p", on_event=events.append, reconnect=False
        )
        allowed, denied = client.subscribe("ok"), client.subscribe("secret.*")
        await self.assertFailure(denied.next(PATIENCE), PermissionViolation)
        client.publish("no", b"")
        client.publish("ok", b"alive")
        self.assertEqual((await allowed.next(PATIENCE)).payload, b"alive")
        await client.flush()
        errors = [event.error for event in events if event.name == "error"]
        self.assertEqual([type(error) for error in errors], [PermissionViolation] * 2)

    async def test_nobody_there(self) -> None:
        server = self.server()
        server.stop()
        self.assertIn("refused", await self.fails(server))
        self.assertIn(str(server.port), await self.fails(server, servers=[server.url]))

    # TLS

    def certificates(self) -> Path:
        place = folder(self)
        for name, data in made().items():
            (place / name).write_bytes(data)
        return place

    async def test_tls(self) -> None:
        """After INFO: asked for by the server, by the URL, or by an option."""
        place = self.certificates()
        server = self.server("tls", place=str(place))
        ca = str(place / "ca.pem")
        where = f"localhost:{server.port}"
        for url in (f"nats://{where}", f"tls://{where}", f"tls://127.0.0.1:{server.port}"):
            client = await self.client(url, tls=ca)
            subscription = client.subscribe("t")
            client.publish("t", b"x" * 300_000)
            self.assertEqual(len((await subscription.next(PATIENCE)).payload), 300_000)
        self.assertIn("not trusted", await self.fails(f"nats://{where}"))
        missing = str(place / "missing.pem")
        self.assertIn("missing.pem", await self.fails(f"nats://{where}", tls=missing))

    async def test_tls_that_the_server_has_not(self) -> None:
        """A client that was told to be safe does not talk in the open."""
        server = self.server()
        self.assertIn("no TLS", await self.fails(f"tls://{server.host}:{server.port}"))
        self.assertIn("no TLS", await self.fails(server, tls=True))

    async def test_tls_first(self) -> None:
        place = self.certificates()
        server = self.server("tls_first", place=str(place))
        url = f"tls://localhost:{server.port}"
        client = await self.client(url, tls=str(place / "ca.pem"), tls_first=True)
        await client.flush()

    # WebSocket

    def websocket_url(self, server: ServerProcess) -> str:
        raise NotImplementedError

    async def test_websocket(self) -> None:
        server = self.server("websocket")
        url = self.websocket_url(server)
        client, other = await self.client(url), await self.client(server)
        subscription = client.subscribe("ws.*")
        await client.flush()
        for i in range(2000):
            other.publish("ws.a", b"%d" % i + b"x" * 200)
        got = [(await subscription.next(PATIENCE)).payload for _ in range(2000)]
        self.assertEqual([int(p.rstrip(b"x")) for p in got], list(range(2000)))
        back = other.subscribe("back")
        await other.flush()
        for i in range(2000):
            client.publish("back", b"%d" % i + b"x" * 500)
        await client.flush(PATIENCE)
        got = [(await back.next(PATIENCE)).payload for _ in range(2000)]
        self.assertEqual([int(p.rstrip(b"x")) for p in got], list(range(2000)))
        self.assertEqual(client.connected_url, url)
        await client.drain()

    # Coming back

    async def test_killed_under_load(self) -> None:
        """kill -9, and a new server in its place: all come back by themselves, nothing that was
        confirmed is missing where it was subscribed, and nothing comes twice."""
        server = self.server()
        told: list[str] = []
        publisher = await self.client(
            server, reconnect_wait=0.05, on_event=lambda e: told.append(e.name)
        )
        reader = await self.client(server, reconnect_wait=0.05)
        # The publisher's own subscription: what the server has confirmed has come back before.
        own: list[int] = []
        publisher.subscribe("load", callback=lambda m: own.append(int(m.payload)))
        seen: list[int] = []
        reader.subscribe("load", callback=lambda m: seen.append(int(m.payload)))
        await gatherResults([publisher.flush(), reader.flush()])

        confirmed: list[range] = []
        failed: list[range] = []
        running = True
        number = 0

        async def load() -> None:
            nonlocal number
            while running:
                batch = range(number, number + 500)
                number += 500
                for i in batch:
                    publisher.publish("load", b"%d" % i)
                try:
                    await publisher.flush(PATIENCE)
                    confirmed.append(batch)
                except Disconnected:
                    failed.append(batch)

        def told_times(count: int) -> bool:
            return told.count("reconnected") == count and reader.connected

        def confirmed_times(count: int) -> bool:
            return len(confirmed) > count

        loading = ensureDeferred(load())
        await self.until(lambda: len(confirmed) > 5)
        for life in (1, 2):
            server.kill()
            await self.until(lambda: not publisher.connected and not reader.connected)
            server = self.server(port=server.port)
            enough = len(confirmed) + 5
            await self.until(functools.partial(told_times, life))
            await self.until(functools.partial(confirmed_times, enough))
        running = False
        await loading
        mine = set(own)
        self.assertEqual([i for batch in confirmed for i in batch if i not in mine], [])
        self.assertTrue(failed)
        self.assertEqual(len(own), len(mine))
        self.assertEqual(own, sorted(own))
        self.assertEqual(seen, sorted(set(seen)))

        # Both are back: what is published after a flush has returned is missing nowhere.
        await reader.flush(PATIENCE)
        await publisher.flush(PATIENCE)
        start = number
        for i in range(start, start + 10_000):
            publisher.publish("load", b"%d" % i)
        await publisher.flush(PATIENCE)
        await self.until(lambda: bool(seen) and seen[-1] == start + 9999)
        self.assertEqual(seen[-10_000:], list(range(start, start + 10_000)))

    async def test_another_server(self) -> None:
        """When one goes, the next in the list is used, and what was published meanwhile comes."""
        one, two = self.server(), self.server()
        events: list[Event] = []
        client = await self.client(
            one, servers=[two.url], reconnect_wait=0.05, on_event=events.append
        )
        subscription = client.subscribe("s")
        await client.flush()
        one.kill()
        await self.until(lambda: not client.connected)
        client.publish("s", b"meanwhile")
        for _ in range(3):
            client.publish("large", b"x" * 500_000)
        ready = client.ready()
        self.assertNoResult(ready)
        await ready
        self.assertEqual((await subscription.next(PATIENCE)).payload, b"meanwhile")
        self.assertEqual(client.connected_url, two.url)
        self.assertEqual(
            [event.name for event in events], ["connected", "disconnected", "reconnected"]
        )


class RtmbTests(ServerTests):
    """rtmb."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "token": {"token": "s3cret"},
        "user": {"user": "alice", "password": "s3:cret@"},
        "nkey": {"auth": {"users": [{"nkey": "{nkey}"}]}},
        "permissions": {
            "auth": {
                "users": [
                    {
                        "user": "u",
                        "password": "p",
                        "permissions": {
                            "publish": {"deny": ["no"]},
                            "subscribe": {"deny": ["secret.>"]},
                        },
                    }
                ]
            }
        },
        "tls": {"tls_cert": "{place}/server.pem", "tls_key": "{place}/server.key"},
        "tls_first": {
            "tls_cert": "{place}/server.pem",
            "tls_key": "{place}/server.key",
            "tls_first": True,
        },
        "websocket": {},
    }

    def start(self, settings: str = "", port: int = 0, **fill: str) -> BrokerProcess:
        text = json.dumps(self.SETTINGS[settings] if settings else {})
        for name, value in fill.items():
            text = text.replace("{" + name + "}", value)
        return BrokerProcess(port=port, **json.loads(text))

    def websocket_url(self, server: ServerProcess) -> str:
        assert isinstance(server, BrokerProcess)
        need(self, server.http_port, "the broker has no HTTP door")
        return f"ws://{server.host}:{server.http_port}"

    async def test_last_and_replay(self) -> None:
        """What was published before can be asked for."""
        server = self.server()
        client = await self.client(server)
        for i in range(5):
            client.publish("w.a", b"%d" % i)
        client.publish("w.b", b"other")
        await client.flush()
        last = client.subscribe("w.*", last=True)
        replay = client.subscribe("w.a", replay=3)
        await client.flush()
        client.publish("w.a", b"new")
        got = {(await last.next(PATIENCE)).payload for _ in range(2)}
        self.assertEqual(got, {b"4", b"other"})
        self.assertEqual((await last.next(PATIENCE)).payload, b"new")
        got_again = [(await replay.next(PATIENCE)).payload for _ in range(4)]
        self.assertEqual(got_again, [b"2", b"3", b"4", b"new"])


class NatsServerTests(ServerTests):
    """The real nats-server."""

    SETTINGS: ClassVar[dict[str, str]] = {
        "": "",
        "token": 'authorization { token: "s3cret" }',
        "user": 'authorization { user: "alice", password: "s3:cret@" }',
        "nkey": 'authorization { users: [ { nkey: "{nkey}" } ] }',
        "permissions": """authorization { users: [ { user: "u", password: "p", permissions: {
            publish: { deny: ["no"] }, subscribe: { deny: ["secret.>"] } } } ] }""",
        "tls": 'tls { cert_file: "{place}/server.pem", key_file: "{place}/server.key" }',
        "tls_first": """tls { cert_file: "{place}/server.pem", key_file: "{place}/server.key",
            handshake_first: true }""",
        "websocket": 'websocket { listen: "127.0.0.1:-1", no_tls: true }',
    }

    def start(self, settings: str = "", port: int = 0, **fill: str) -> NatsServerProcess:
        text = self.SETTINGS[settings]
        for name, value in fill.items():
            text = text.replace("{" + name + "}", value)
        return NatsServerProcess(port=port, config=text)

    def websocket_url(self, server: ServerProcess) -> str:
        found = re.search(r"websocket clients on ws://([^\s]+)", server.log())
        assert found is not None, server.log()
        return f"ws://{found[1]}"


del ServerTests  # it is not a test by itself
