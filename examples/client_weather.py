"""Publish and subscribe: ``python examples/client_weather.py [URL]``."""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.task import react

from rtmb.client import connect


async def main(reactor: Any, url: str = "nats://127.0.0.1:4222") -> None:
    client = await connect(url, name="weather example")
    subscription = client.subscribe("weather.*")
    subscription.unsubscribe(max=2)  # it ends by itself after two messages

    client.publish("weather.oslo", "rain", headers={"station": "Blindern"})
    client.publish("weather.tokyo", "sun")

    async for message in subscription:
        station = message.headers.get("station", "?")
        print(f"{message.subject}: {message.text} (station {station})")
    await client.drain()


if __name__ == "__main__":
    react(main, sys.argv[1:])
