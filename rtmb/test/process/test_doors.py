"""A message published at any door arrives at every other, converted by one rule, that of
`rtmb.core.message`."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Callable
from typing import Any

import msgpack

from rtmb.core.message import to_bytes
from rtmb.test.support.http import Events, ask
from rtmb.test.support.processes import PATIENCE
from rtmb.test.support.sockets import BINARY, DoorTests, masked

#: Values that byte doors and value doors see differently.
VALUES: list[Any] = [
    {"a": [1, 2.5, None, True, "é"]}, "héllo", "5", "", 5, -1.5, None, [], b"\xff\x00\x01",
]  # fmt: skip

Send = Callable[[str, Any], None]
Read = Callable[[], tuple[str, Any]]


class EveryPairTests(DoorTests):
    """Doors of bytes: `nats`, `nats over ws`, `http`. Doors of values: `ws`, `msgpack`, `events`,
    the latter for reading only as `http` is for writing."""

    byte_doors = ("nats", "nats over ws", "http")

    def setUp(self) -> None:
        super().setUp()
        found = self.broker.expect_log(r"msgpack door: \S*?:(\d+)")
        self.msgpack_port = int(found[1])

    # Writing

    def senders(self) -> dict[str, Send]:
        client, framed, json_socket = self.nats(), self.connect("/nats"), self.connect()
        framed.read_frame()
        packed = self.msgpack_socket()

        def line(subject: str, value: Any) -> bytes:
            data = to_bytes(value)
            return b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(data), data)

        def by_ws(subject: str, value: Any) -> None:
            message = {"payload": value}
            if isinstance(value, bytes):
                message = {"payload": base64.b64encode(value).decode(), "encoding": "base64"}
            said = json_socket.ask(type="publish", topic=subject, message=message)
            self.assertEqual(said["type"], "ack")

        return {
            "nats": lambda subject, value: client.send(line(subject, value)),
            "nats over ws": lambda s, v: framed.send(masked(BINARY, line(s, v))),
            "http": lambda s, v: self.assertEqual(self.post(s, to_bytes(v)), 200),
            "ws": by_ws,
            "msgpack": lambda s, v: packed.sendall(msgpack.packb({"Publish": [[s, v]]})),
        }

    def post(self, subject: str, data: bytes) -> int:
        return ask(self.port, "POST", f"/publish/{subject}", data).status

    def msgpack_socket(self) -> socket.socket:
        found = socket.create_connection(("127.0.0.1", self.msgpack_port), PATIENCE)
        self.addCleanup(found.close)
        return found

    # Reading

    def readers(self, subject: str) -> dict[str, Read]:
        """Each has subscribed when this returns."""
        json_socket = self.connect()
        json_socket.subscribe(subject)
        stream = Events(self.port, f"/events/{subject}")
        self.addCleanup(stream.close)
        stream.block()
        return {
            "nats": self.read_nats(subject),
            "nats over ws": self.read_framed(subject),
            "ws": lambda: self.shown(json_socket.hear()),
            "events": lambda: self.shown(stream.next()[2]),
            "msgpack": self.read_msgpack(subject),
        }

    def shown(self, event: dict[str, Any]) -> tuple[str, Any]:
        message = event["message"]
        if message.get("encoding") == "base64":
            return event["topic"], base64.b64decode(message["payload"])
        return event["topic"], message["payload"]

    def read_nats(self, subject: str) -> Read:
        client = self.nats()
        client.subscribe(subject)

        def read() -> tuple[str, Any]:
            head = client.read_until(b"\r\n").split()
            while head[0] != b"MSG":
                head = client.read_until(b"\r\n").split()
            size = int(head[-1])
            data = b""
            while len(data) < size + 2:
                data += client.read_until(b"\n")
            return head[1].decode(), data[:size]

        return read

    def read_framed(self, subject: str) -> Read:
        framed = self.connect("/nats")
        framed.send(masked(BINARY, f"SUB {subject} 1\r\nPING\r\n".encode()))
        while b"PONG" not in framed.read_frame()[1]:
            pass
        data = b""

        def read() -> tuple[str, Any]:
            nonlocal data
            while True:
                found = re.search(rb"MSG (\S+) 1 (\d+)\r\n", data)
                if found is not None and len(data) >= found.end() + int(found[2]) + 2:
                    break
                data += framed.read_frame()[1]
            end = found.end() + int(found[2])
            payload, data = data[found.end() : end], data[end + 2 :]
            return found[1].decode(), payload

        return read

    def read_msgpack(self, subject: str) -> Read:
        client, unpacker = self.msgpack_socket(), msgpack.Unpacker()

        def read() -> tuple[str, Any]:
            for topic, value in unpacker:
                return topic, value
            unpacker.feed(client.recv(65536))
            return read()

        own = f"ready/{subject}"  # what it publishes itself it gets when it has subscribed
        client.sendall(
            msgpack.packb({"Subscribe": [own]}) + msgpack.packb({"Subscribe": [subject]})
        )
        client.sendall(msgpack.packb({"Publish": [[own, 1]]}))
        self.assertEqual(read(), (own, 1))
        return read

    # The rule

    def expected(self, value: Any, sender: str, reader: str) -> Any:
        if reader in self.byte_doors:
            return to_bytes(value)
        if sender in self.byte_doors and isinstance(value, str):
            try:
                return json.loads(value)  # bytes that are JSON are that value
            except ValueError:
                return value
        return value

    def test_every_pair(self) -> None:
        for sender, send in self.senders().items():
            subject = f"pairs.{sender.replace(' ', '-')}"
            readers = self.readers(subject)
            for value in VALUES:
                send(subject, value)
                for reader, read in readers.items():
                    topic, found = read()
                    wanted = self.expected(value, sender, reader)
                    told = f"{value!r} from {sender} to {reader}"
                    self.assertEqual((topic, found), (subject, wanted), told)
                    self.assertIs(type(found), type(wanted), told)

    def test_the_past_too(self) -> None:
        """What is remembered is converted by the same rule."""
        for sender, send in self.senders().items():
            subject = f"past.{sender.replace(' ', '-')}"
            watch = self.read_nats(subject)
            for value in VALUES:
                send(subject, value)
                watch()
            socket = self.connect()
            socket.subscribe(subject, last_n=len(VALUES))
            for value in VALUES:
                wanted = self.expected(value, sender, "ws")
                self.assertEqual(self.shown(socket.hear())[1], wanted, (sender, value))
