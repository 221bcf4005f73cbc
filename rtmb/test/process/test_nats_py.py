"""nats-py at the text door, for real."""

from __future__ import annotations

import asyncio
import itertools
import os
import unittest
from collections.abc import Awaitable, Callable
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from rtmb.test.support.processes import (
    PATIENCE,
    BrokerProcess,
    WithBroker,
)


def in_loop(work: Callable[[], Awaitable[None]]) -> None:
    """Run in an asyncio loop of its own: the broker is in another process."""

    async def limited() -> None:
        await asyncio.wait_for(work(), 3 * PATIENCE)

    asyncio.run(limited())


async def take(subscription: Any, count: int) -> list[Msg]:
    return [await subscription.next_msg(timeout=PATIENCE) for _ in range(count)]


async def payloads(subscription: Any, count: int) -> list[bytes]:
    return [message.data for message in await take(subscription, count)]


class NatsPyTests(WithBroker):
    """nats-py, unchanged."""

    def with_client(self, work: Callable[[Client], Awaitable[None]]) -> None:
        async def whole() -> None:
            client = await nats.connect(self.broker.url, allow_reconnect=False)
            try:
                await work(client)
            finally:
                await client.close()

        in_loop(whole)

    def test_publish_and_subscribe(self) -> None:
        """A message that is published reaches who subscribed, as it was."""

        async def work(client: Client) -> None:
            subscription = await client.subscribe("py.plain")
            await client.publish("py.plain", b"hello")
            (message,) = await take(subscription, 1)
            self.assertEqual((message.subject, message.data), ("py.plain", b"hello"))

        self.with_client(work)

    def test_wildcards(self) -> None:
        """`*` stands for one token and `>` for all that follow."""

        async def work(client: Client) -> None:
            one = await client.subscribe("py.w.*")
            rest = await client.subscribe("py.w.>")
            await client.publish("py.w.a.b", b"deep")
            await client.publish("py.w.a", b"flat")
            self.assertEqual(await payloads(one, 1), [b"flat"])
            self.assertEqual(await payloads(rest, 2), [b"deep", b"flat"])

        self.with_client(work)

    def test_queue_group(self) -> None:
        """Of three workers in a queue group each message reaches one, and all have work."""

        async def work(client: Client) -> None:
            got: list[list[bytes]] = [[], [], []]

            def worker(mine: list[bytes]) -> Callable[[Msg], Awaitable[None]]:
                async def receive(message: Msg) -> None:
                    mine.append(message.data)

                return receive

            for mine in got:
                await client.subscribe("py.work", queue="workers", cb=worker(mine))
            sent = [b"%d" % i for i in range(30)]
            for data in sent:
                await client.publish("py.work", data)
            await client.drain()
            self.assertEqual(sorted(itertools.chain(*got)), sorted(sent))
            self.assertTrue(all(got), got)

        self.with_client(work)

    def test_request_and_reply(self) -> None:
        """A request gets the answer of the one who serves the subject."""

        async def work(client: Client) -> None:
            async def answer(message: Msg) -> None:
                await message.respond(b"got " + message.data)

            await client.subscribe("py.ask", cb=answer)
            reply = await client.request("py.ask", b"this", timeout=PATIENCE)
            self.assertEqual(reply.data, b"got this")

        self.with_client(work)

    def test_request_without_responders(self) -> None:
        """A request that nobody serves fails at once and does not wait for its timeout."""

        async def work(client: Client) -> None:
            with self.assertRaises(NoRespondersError):
                await client.request("py.nobody", b"", timeout=PATIENCE)

        self.with_client(work)

    def test_headers(self) -> None:
        """Headers arrive beside the payload."""

        async def work(client: Client) -> None:
            subscription = await client.subscribe("py.headers")
            await client.publish("py.headers", b"with", headers={"Colour": "blue", "Size": "5"})
            (message,) = await take(subscription, 1)
            self.assertEqual(message.headers, {"Colour": "blue", "Size": "5"})
            self.assertEqual(message.data, b"with")

        self.with_client(work)

    def test_drain(self) -> None:
        """A client that drains handles everything sent before, then is closed."""

        async def work(client: Client) -> None:
            got: list[bytes] = []

            async def receive(message: Msg) -> None:
                got.append(message.data)

            drained = await nats.connect(self.broker.url)
            await drained.subscribe("py.drain", cb=receive)
            await drained.flush()
            for i in range(100):
                await client.publish("py.drain", b"%d" % i)
            await client.flush()
            await drained.drain()
            self.assertEqual(len(got), 100)
            self.assertTrue(drained.is_closed)

        self.with_client(work)

    def test_auto_unsubscribe(self) -> None:
        """`unsubscribe(limit)` ends a subscription after so many messages."""

        async def work(client: Client) -> None:
            got: list[bytes] = []

            async def receive(message: Msg) -> None:
                got.append(message.data)

            counted = await client.subscribe("py.auto", cb=receive)
            await counted.unsubscribe(limit=3)
            other = await client.subscribe("py.auto")
            for i in range(5):
                await client.publish("py.auto", b"%d" % i)
            self.assertEqual(len(await payloads(other, 5)), 5)
            self.assertEqual(got, [b"0", b"1", b"2"])

        self.with_client(work)

    def test_last_values(self) -> None:
        """`$LAST.<pattern>` gives the newest value of each subject, then what is new."""

        async def work(client: Client) -> None:
            for place in ("oslo", "rome"):
                await client.publish(f"py.weather.{place}", b"old")
                await client.publish(f"py.weather.{place}", b"new")
            await client.flush()
            subscription = await client.subscribe("$LAST.py.weather.*")
            await client.publish("py.weather.oslo", b"newest")
            found = [(m.subject, m.data) for m in await take(subscription, 3)]
            self.assertEqual(
                sorted(found[:2]), [("py.weather.oslo", b"new"), ("py.weather.rome", b"new")]
            )
            self.assertEqual(found[2], ("py.weather.oslo", b"newest"))

        self.with_client(work)

    def test_replay(self) -> None:
        """`$REPLAY.<n>.<subject>` gives the last n messages in order, then what is new."""

        async def work(client: Client) -> None:
            for i in range(5):
                await client.publish("py.log", b"%d" % i)
            await client.flush()
            subscription = await client.subscribe("$REPLAY.3.py.log")
            await client.publish("py.log", b"live")
            self.assertEqual(await payloads(subscription, 4), [b"2", b"3", b"4", b"live"])

        self.with_client(work)

    def test_largest_payload(self) -> None:
        """A payload of 1 MiB, the most that the default allows, arrives whole."""

        async def work(client: Client) -> None:
            subscription = await client.subscribe("py.large")
            data = os.urandom(1 << 20)
            await client.publish("py.large", data)
            self.assertTrue(await payloads(subscription, 1) == [data])

        self.with_client(work)


class NatsPyReconnectTests(unittest.TestCase):
    """nats-py and a broker that dies."""

    def test_reconnect(self) -> None:
        """After the broker was killed and has come back, subscriptions work as before."""

        async def work() -> None:
            back = asyncio.Event()

            async def reconnected() -> None:
                back.set()

            async def quiet(error: Exception) -> None:
                pass

            broker = BrokerProcess()
            try:
                client = await nats.connect(
                    broker.url,
                    reconnect_time_wait=0.05,
                    max_reconnect_attempts=-1,
                    reconnected_cb=reconnected,
                    error_cb=quiet,
                )
                subscription = await client.subscribe("py.again")
                await client.publish("py.again", b"before")
                self.assertEqual(await payloads(subscription, 1), [b"before"])
                broker.kill()
                port = broker.port
                broker.stop()
                broker = BrokerProcess(port=port)
                await asyncio.wait_for(back.wait(), PATIENCE)
                await client.publish("py.again", b"after")
                self.assertEqual(await payloads(subscription, 1), [b"after"])
                await client.close()
            finally:
                broker.stop()

        in_loop(work)
