"""Weather stations: each publishes once a second, through the door that it was given.

Oslo and Bergen speak the NATS text protocol, Rome and Naples post to the HTTP door, Lima and Cusco
speak msgpack. On `weather.<station>` all is the same JSON to whoever listens.

python stations.py --text 4222 --http 8080 --msgpack 36912
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgpack

HOST = "127.0.0.1"

#: Station: its door, and about how warm it is there.
STATIONS = {
    "oslo": ("text", 6.0),
    "bergen": ("text", 8.0),
    "rome": ("http", 17.0),
    "naples": ("http", 18.0),
    "lima": ("msgpack", 20.0),
    "cusco": ("msgpack", 12.0),
}

Publish = Callable[[str, dict[str, Any]], None]


def text(port: int) -> Publish:
    """PUB lines. The broker's PINGs must be answered, so another thread reads."""
    connection = socket.create_connection((HOST, port))
    connection.sendall(b'CONNECT {"verbose": false}\r\n')

    def answer_pings() -> None:
        for line in connection.makefile("rb"):
            if line == b"PING\r\n":
                connection.sendall(b"PONG\r\n")

    threading.Thread(target=answer_pings, daemon=True).start()

    def publish(subject: str, values: dict[str, Any]) -> None:
        payload = json.dumps(values).encode()
        connection.sendall(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))

    return publish


def http_door(port: int) -> Publish:
    """POST /publish/<subject>, on a connection that is kept."""
    connection = http.client.HTTPConnection(HOST, port)

    def publish(subject: str, values: dict[str, Any]) -> None:
        connection.request("POST", f"/publish/{subject}", json.dumps(values))
        answer = connection.getresponse()
        answer.read()
        if answer.status >= 400:
            raise ConnectionError(f"HTTP {answer.status}")

    return publish


def msgpack_door(port: int) -> Publish:
    """A map with one key, in msgpack."""
    connection = socket.create_connection((HOST, port))

    def publish(subject: str, values: dict[str, Any]) -> None:
        connection.sendall(msgpack.packb({"Publish": [[subject, values]]}))

    return publish


DOORS = {"text": text, "http": http_door, "msgpack": msgpack_door}


def weather(about: float, dice: random.Random) -> dict[str, Any]:
    """A day that is five minutes long."""
    now = time.time()
    warm = about + 5 * math.sin(now / 300 * 2 * math.pi) + dice.gauss(0, 0.4)
    wind = {"speed": round(abs(dice.gauss(4, 2)), 1), "from": dice.randrange(360)}
    return {"temperature": round(warm, 2), "wind": wind, "sent": round(now, 6)}


def station(name: str, port: int) -> None:
    """Publish for ever; a broker that goes away is waited for."""
    door, about = STATIONS[name]
    dice = random.Random(name)
    while True:
        try:
            publish = DOORS[door](port)
            while True:
                publish(f"weather.{name}", weather(about, dice))
                time.sleep(1)
        except (OSError, http.client.HTTPException) as error:
            print(f"{name}: {error}; once more in a second", flush=True)
            time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Weather stations.")
    for door, port in (("text", 4222), ("http", 8080), ("msgpack", 36912)):
        parser.add_argument(f"--{door}", type=int, default=port)
    ports = vars(parser.parse_args())
    threads = [
        threading.Thread(target=station, args=(name, ports[door]), daemon=True)
        for name, (door, _) in STATIONS.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
