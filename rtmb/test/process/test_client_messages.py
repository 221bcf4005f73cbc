"""Messages by way of `rtmb.client`, at rtmb and at nats-server."""

from __future__ import annotations

import functools
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import gatherResults
from twisted.internet.task import deferLater

from rtmb.client import (
    ConnectionClosed,
    Message,
    NoResponders,
    PayloadTooLarge,
    RequestTimeout,
)
from rtmb.test.support.client_servers import AnyServer, OnNatsServer, OnRtmb
from rtmb.test.support.processes import PATIENCE

reactor: Any = _reactor


class MessageTests(AnyServer):
    """The same for each server."""

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


class RtmbTests(OnRtmb, MessageTests):
    """rtmb."""

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


class NatsServerTests(OnNatsServer, MessageTests):
    """The real nats-server."""


del MessageTests  # it is not a test by itself
