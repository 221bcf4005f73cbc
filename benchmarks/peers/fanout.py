"""A fan-out server on aiohttp: `/ws`, `/events/{topic}` and `/publish/{topic}` as rtmb has them.

Nothing more: no history, no patterns, no limits. It is what one would write for the purpose.

`python -m benchmarks.peers.fanout PORT`
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from aiohttp import WSMsgType, web

sockets: defaultdict[str, set[web.WebSocketResponse]] = defaultdict(set)
streams: defaultdict[str, set[web.StreamResponse]] = defaultdict(set)


def now() -> str:
    return datetime.now(UTC).isoformat()


async def publish(topic: str, message: dict[str, Any]) -> int:
    event = {"topic": topic, "message": message, "ts": now()}
    if sockets[topic]:
        text = json.dumps({"type": "event", **event})
        for socket in list(sockets[topic]):
            with suppress(ConnectionError):
                await socket.send_str(text)
    if streams[topic]:
        data = f"id: {message['id']}\ndata: {json.dumps(event)}\n\n".encode()
        for stream in list(streams[topic]):
            with suppress(ConnectionError):
                await stream.write(data)
    return len(sockets[topic]) + len(streams[topic])


async def ws(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    mine: set[str] = set()
    try:
        async for frame in socket:
            if frame.type != WSMsgType.TEXT:
                continue
            command = json.loads(frame.data)
            topic = command["topic"]
            ack = {"type": "ack", "topic": topic, "status": "ok", "ts": now()}
            if command["type"] == "subscribe":
                mine.add(topic)
                sockets[topic].add(socket)
                await socket.send_str(json.dumps(ack))
            else:
                message = {"id": str(uuid.uuid4()), **command["message"]}
                await socket.send_str(json.dumps(ack))
                await publish(topic, message)
    finally:  # also when it is cancelled, because the client left
        for topic in mine:
            sockets[topic].discard(socket)
    return socket


async def events(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    await stream.write(b"retry: 1000\n\n")
    topic = request.match_info["topic"]
    streams[topic].add(stream)
    try:
        await asyncio.Event().wait()  # cancelled when the client leaves
    finally:
        streams[topic].discard(stream)
    return stream


async def post(request: web.Request) -> web.Response:
    payload = (await request.read()).decode()
    message = {"id": str(uuid.uuid4()), "payload": payload}
    count = await publish(request.match_info["topic"], message)
    return web.json_response({"status": "published", "receivers": count})


def main(port: int) -> None:
    app = web.Application()
    app.router.add_get("/ws", ws)
    app.router.add_get("/events/{topic}", events)
    app.router.add_post("/publish/{topic}", post)
    web.run_app(
        app, host="127.0.0.1", port=port, access_log=None, print=None, handler_cancellation=True
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
