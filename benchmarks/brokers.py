"""`python -m benchmarks.brokers`: rtmb beside redis-server, mosquitto and nats-server.

Each is spoken to with its own protocol, where they do the same work: publish and subscribe without
acknowledgement. What is not installed is left out, and a line says so. All ratios are of one
round: neighbours in time.
"""

from __future__ import annotations

import argparse
import gc
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Client, Reading
from benchmarks.report import Report
from benchmarks.servers import NATS, RTMB, Broker, Server
from benchmarks.throughput import CHUNK
from rtmb.cli.bench_load import (
    BenchmarkError,
    LoadConnection,
    LoginFields,
    Sender,
    publish_frame,
    pump,
    sample_payloads,
)

SUBJECT = "bench.same"
SIZES = (16, 128, 1024)
SUBSCRIBERS = (1, 8)


class NatsLink(LoadConnection):
    """A connection to a broker, and the frames of its protocol."""

    @staticmethod
    def frame(payload: bytes) -> bytes:
        return publish_frame(SUBJECT, payload)

    @staticmethod
    def delivered(payload: bytes) -> int:
        return len(f"MSG {SUBJECT} 1 {len(payload)}\r\n\r\n") + len(payload)


class OtherLink(NatsLink):
    """What the other two have in common: a probe and its answer where the text door has PING."""

    probe = b""
    answer = b""

    def _shake_hands(self, login: LoginFields) -> None:
        raise NotImplementedError

    def receive(self) -> int:
        return self.discard()

    def flush(self) -> int:
        self.send(self.probe)
        data = b""
        while not data.endswith(self.answer):
            data += self.read()
        return len(data) - len(self.answer)


class RedisLink(OtherLink):
    probe = b"*2\r\n$4\r\nPING\r\n$5\r\nbench\r\n"
    answer = b"$5\r\nbench\r\n"  # a subscriber's begins with more
    _more = b"*2\r\n$4\r\npong\r\n"

    def _shake_hands(self, login: LoginFields) -> None:
        self._subscribed = False
        self.flush()

    def subscribe(self, pattern: str, queue: str = "") -> None:
        self.send(b"*2\r\n$9\r\nSUBSCRIBE\r\n$%d\r\n%b\r\n" % (len(pattern), pattern.encode()))
        self._subscribed = True
        self.flush()

    def flush(self) -> int:
        return super().flush() - (len(self._more) if self._subscribed else 0)

    @staticmethod
    def frame(payload: bytes) -> bytes:
        return resp(b"PUBLISH", SUBJECT.encode(), payload)

    @staticmethod
    def delivered(payload: bytes) -> int:
        return len(resp(b"message", SUBJECT.encode(), payload))


def resp(*words: bytes) -> bytes:
    """An array of strings, as redis writes it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class MqttLink(OtherLink):
    probe = b"\xc0\x00"
    answer = b"\xd0\x00"

    def _shake_hands(self, login: LoginFields) -> None:
        # MQTT 3.1.1, a clean session, no keep-alive, no name.
        self.send(mqtt(0x10, b"\0\4MQTT\4\2\0\0\0\0"))
        self.flush()

    def subscribe(self, pattern: str, queue: str = "") -> None:
        topic = len(pattern).to_bytes(2, "big") + pattern.encode()
        self.send(mqtt(0x82, b"\0\1" + topic + b"\0"))
        self.flush()

    @staticmethod
    def frame(payload: bytes) -> bytes:
        return mqtt(0x30, len(SUBJECT).to_bytes(2, "big") + SUBJECT.encode() + payload)

    @staticmethod
    def delivered(payload: bytes) -> int:
        return len(MqttLink.frame(payload))


def mqtt(kind: int, body: bytes) -> bytes:
    """A packet: its kind, its length in groups of seven bits, the least first."""
    length, rest = bytearray(), len(body)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([kind, *length, rest]) + body


def redis_command(port: int, scratch: Path) -> list[str]:
    # Nothing on disk, and a subscriber is never cut off, as the load waits for it.
    settings = ["--save", "", "--appendonly", "no"]
    settings += ["--client-output-buffer-limit", "pubsub 0 0 0"]
    return ["redis-server", "--bind", "127.0.0.1", "--port", str(port), *settings]


def mosquitto_command(port: int, scratch: Path) -> list[str]:
    config = scratch / "mosquitto.conf"
    # No limit to what waits for a subscriber: nothing is dropped.
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "max_queued_messages 0"]
    config.write_text("\n".join([*lines, "persistence false", ""]))
    return [mosquitto(), "--config-file", str(config)]


def mosquitto() -> str:
    """Debian has it where only root looks."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin") or ""


@dataclass(frozen=True)
class Peer:
    broker: Broker
    link: type[NatsLink]
    installed: bool = True
    #: What to run to be told its version.
    version: Sequence[str] = ()


def peers() -> list[Peer]:
    """All of them; nats-server stays last: it is the measure."""
    redis = Broker("redis", redis_command)
    mqtt_broker = Broker("mosquitto", mosquitto_command)
    return [
        Peer(RTMB, NatsLink),
        Peer(redis, RedisLink, bool(shutil.which("redis-server")), ("redis-server", "--version")),
        Peer(mqtt_broker, MqttLink, bool(mosquitto()), (mosquitto(), "-h")),
        Peer(NATS, NatsLink),
    ]


def version(peer: Peer, server: Server) -> str:
    if not peer.version:
        with closing(LoadConnection(server.address)) as link:
            return str(link.info["version"])
    said = subprocess.run(peer.version, capture_output=True, text=True, check=False).stdout
    found = re.search(r"\d+\.\d+\.\d+", said)
    return found[0] if found else "of an unknown version"


def deliveries(client: Client, link: type[NatsLink], subscribers: int, size: int) -> float:
    """Deliveries a second."""
    with ExitStack() as stack:
        links = [link(client.server.address) for _ in range(1 + subscribers)]
        for each in links:
            stack.callback(each.close)
        publisher, *others = links
        for other in others:
            other.subscribe(SUBJECT)
        count = max(1, CHUNK // (size + 30))
        payloads = list(sample_payloads([size] * count))
        chunk = b"".join(map(link.frame, payloads))
        expected = subscribers * sum(map(link.delivered, payloads))

        def run(repeats: int) -> float:
            sender = Sender(publisher, chunk, repeats)
            return pump([sender], others, repeats * expected, 20 + 10 * client.seconds)

        return subscribers * count / client.seconds_each(f"1→{subscribers}, {size}", run)


def measure(servers: Sequence[tuple[Peer, Server]], rounds: int, seconds: float) -> Report:
    report = Report([peer.broker.name for peer, _ in servers])
    report.versions.update((peer.broker.name, version(peer, server)) for peer, server in servers)
    clients = [Client(server, seconds) for _, server in servers]
    for subscribers in SUBSCRIBERS:
        for size in SIZES:
            label = f"1→{subscribers}, {size} B"
            for turn in range(rounds):
                for client, (peer, _) in zip(clients, servers, strict=True):
                    where = f"{label}, round {turn + 1}, {peer.broker.name}"
                    print(where, file=sys.stderr)
                    try:
                        rate = deliveries(client, peer.link, subscribers, size)
                        report.add(peer.broker.name, turn, [Reading(label, "msg/s", rate)])
                    except (BenchmarkError, OSError) as error:
                        report.failures.append(f"{where}: {error}")
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.brokers",
        description="Measure rtmb beside redis-server, mosquitto and nats-server.",
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="(default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="(default: 1)")
    options = parser.parse_args(arguments)
    gc.disable()
    with ExitStack() as stack:
        servers: list[tuple[Peer, Server]] = []
        for peer in peers():
            if peer.installed:
                servers.append((peer, stack.enter_context(peer.broker.running())))
            else:
                print(f"{peer.broker.name} is not installed: left out", file=sys.stderr)
        report = measure(servers, options.rounds, options.seconds)
    print(report.markdown())
    return 1 if report.failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BenchmarkError, OSError) as error:
        sys.exit(f"benchmarks: {error}")
