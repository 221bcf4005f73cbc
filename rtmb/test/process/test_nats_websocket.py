"""NATS clients over WebSockets."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from typing import Any

import nats

from rtmb.test.support.npm import with_nats_js
from rtmb.test.support.processes import PATIENCE, BrokerProcess, RawClient, environment, need
from rtmb.test.support.sockets import (
    BINARY,
    DoorTests,
    WebSocket,
    masked,
)


class NatsOverWebSocketTests(DoorTests):
    """nats-py and nats.js, unchanged, by their WebSocket transports."""

    def in_loop(self, work: Callable[[Any], Any], path: str = "") -> None:
        async def run() -> None:
            client = await nats.connect(f"ws://127.0.0.1:{self.port}{path}")
            try:
                await asyncio.wait_for(work(client), PATIENCE)
            finally:
                await client.close()

        asyncio.run(run())

    def test_nats_py(self) -> None:
        async def work(client: Any) -> None:
            found = await client.subscribe("py.>")
            large = bytes(range(256)) * 4096
            await client.publish("py.large", large)
            for i in range(2000):
                await client.publish("py.small", b"%d" % i, headers={"n": str(i)} if i else None)
            await client.flush()
            self.assertEqual((await found.next_msg()).data, large)
            for i in range(2000):
                message = await found.next_msg()
                self.assertEqual(message.data, b"%d" % i)
            self.assertEqual(message.headers, {"n": "1999"})

            async def answer(message: Any) -> None:
                await message.respond(b"42")

            await client.subscribe("ask", cb=answer)
            self.assertEqual((await client.request("ask", b"?")).data, b"42")
            with self.assertRaises(nats.errors.NoRespondersError):
                await client.request("nobody", b"?")

        for path in ("", "/nats"):
            self.in_loop(work, path)

    def test_nats_js(self) -> None:
        place = with_nats_js(self)
        ended = subprocess.run(
            ["node", "--experimental-websocket", "websocket.mjs", f"ws://127.0.0.1:{self.port}"],
            cwd=place,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
            check=False,
        )
        if "no WebSocket" in ended.stderr:
            need(self, False, "this node has no WebSocket")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(
            json.loads(ended.stdout),
            {"plain": "hello", "reply": "42", "large": True, "nobody": "503"},
        )

    def test_a_slow_one_is_closed(self) -> None:
        with BrokerProcess("--max-pending", "2MiB") as broker:
            socket = WebSocket(broker.http_port, "/nats", receive_buffer=4096)
            self.addCleanup(socket.close)
            socket.send(masked(BINARY, b"SUB flood 1\r\nPING\r\n"))
            while b"PONG" not in socket.read_frame()[1]:
                pass
            before = broker.rss()
            with RawClient(broker.port) as client:
                for _ in range(40):
                    client.send(b"PUB flood 500000\r\n" + b"x" * 500_000 + b"\r\n")
                    client.settle()
            broker.expect_log("slow consumer: ")
            self.assertLess(broker.rss() - before, 64 << 20)
