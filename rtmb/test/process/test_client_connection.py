"""How `rtmb.client` comes in, and comes back, at rtmb and at nats-server."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import ensureDeferred, gatherResults

from rtmb.client import (
    AuthenticationFailed,
    Client,
    Disconnected,
    Event,
    PermissionViolation,
    connect,
)
from rtmb.test.support.certificates import made
from rtmb.test.support.client_servers import AnyServer, OnNatsServer, OnRtmb
from rtmb.test.support.files import folder
from rtmb.test.support.processes import PATIENCE
from rtmb.test.support.users import Nkey

reactor: Any = _reactor


class Load:
    """Publishes one number after the other, and knows which of them the server has confirmed."""

    def __init__(self, publisher: Client) -> None:
        self.publisher = publisher
        self.confirmed: list[range] = []
        self.failed: list[range] = []
        self.running = True
        self.number = 0

    async def run(self) -> None:
        while self.running:
            batch = range(self.number, self.number + 500)
            self.number += 500
            for i in batch:
                self.publisher.publish("load", b"%d" % i)
            try:
                await self.publisher.flush(PATIENCE)
                self.confirmed.append(batch)
            except Disconnected:
                self.failed.append(batch)


class ConnectionTests(AnyServer):
    """The same for each server."""

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

        load = Load(publisher)

        def told_times(count: int) -> bool:
            return told.count("reconnected") == count and reader.connected

        def confirmed_times(count: int) -> bool:
            return len(load.confirmed) > count

        loading = ensureDeferred(load.run())
        await self.until(lambda: len(load.confirmed) > 5)
        for life in (1, 2):
            server.kill()
            await self.until(lambda: not publisher.connected and not reader.connected)
            server = self.server(port=server.port)
            enough = len(load.confirmed) + 5
            await self.until(functools.partial(told_times, life))
            await self.until(functools.partial(confirmed_times, enough))
        load.running = False
        await loading
        mine = set(own)
        self.assertEqual([i for batch in load.confirmed for i in batch if i not in mine], [])
        self.assertTrue(load.failed)
        self.assertEqual(len(own), len(mine))
        self.assertEqual(own, sorted(own))
        self.assertEqual(seen, sorted(set(seen)))

        # Both are back: what is published after a flush has returned is missing nowhere.
        await reader.flush(PATIENCE)
        await publisher.flush(PATIENCE)
        start = load.number
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


class RtmbTests(OnRtmb, ConnectionTests):
    """rtmb."""


class NatsServerTests(OnNatsServer, ConnectionTests):
    """The real nats-server."""


del ConnectionTests  # it is not a test by itself
