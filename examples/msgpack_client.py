"""A client of the msgpack door, to read and to copy. Needs `pip install msgpack`.

python examples/msgpack_client.py localhost:36912 publish weather/oslo '{"celsius": 3.5}'
python examples/msgpack_client.py localhost:36912 subscribe 'weather/*' '!system/metrics/*'
"""

from __future__ import annotations

import json
import socket
import sys

import msgpack


def publish(connection: socket.socket, topic: str, text: str) -> None:
    connection.sendall(msgpack.packb({"Publish": [[topic, json.loads(text)]]}))


def subscribe(connection: socket.socket, *patterns: str) -> None:
    """Print what comes: first the last message of each topic, then every new one."""
    for pattern in patterns:
        connection.sendall(msgpack.packb({"Subscribe": [pattern]}))
    unpacker = msgpack.Unpacker(strict_map_key=False)
    while data := connection.recv(65536):
        unpacker.feed(data)
        for topic, value in unpacker:
            print(topic, value, flush=True)


if __name__ == "__main__":
    address, command, *words = sys.argv[1:]
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as server:
        if command == "publish":
            publish(server, *words)
        else:
            subscribe(server, *words)
