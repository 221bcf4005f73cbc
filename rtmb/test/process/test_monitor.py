"""What monitoring tools read, beside the real nats-server."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rtmb.test.support.processes import PATIENCE, BrokerProcess, RawClient, WithProcesses, need

#: The fields that nats-top and the exporter read, which must have the type they expect.
VARZ = (
    "server_id server_name version go now start uptime host port max_connections max_payload"
    " connections total_connections cpu mem cores in_msgs out_msgs in_bytes out_bytes"
    " slow_consumers subscriptions"
)
CONNZ = "now num_connections total offset limit connections"
CONNECTION = (
    "cid kind type ip port start last_activity rtt uptime idle pending_bytes in_msgs out_msgs"
    " in_bytes out_bytes subscriptions name lang version subscriptions_list"
)
SUBSZ = "server_id now num_subscriptions num_cache max_fanout avg_fanout total offset limit"
ROUTEZ = "server_id now num_routes routes"
LEAFZ = "server_id now leafnodes leafs"
NATS_SERVER = Path(sys.executable).with_name("nats-server")


@contextmanager
def real_nats_server() -> Iterator[tuple[int, str]]:
    """Runs nats-server; its port and the address of its monitoring."""
    directory = Path(tempfile.mkdtemp(prefix="nats-"))
    command = [str(NATS_SERVER), "-a", "127.0.0.1", "-p", "-1", "-m", "-1"]
    process = subprocess.Popen(
        [*command, "--ports_file_dir", str(directory)], stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + PATIENCE
        ports: dict[str, list[str]] = {}
        while not ports:
            for path in directory.glob("*.ports"):
                text = path.read_text()
                ports = json.loads(text) if text.endswith("}") else {}
            if time.monotonic() > deadline or process.poll() is not None:
                raise AssertionError("nats-server does not start")
            time.sleep(0.02)
        yield int(ports["nats"][0].rpartition(":")[2]), ports["monitoring"][0]
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(directory)


def kind(value: Any) -> str:
    """The JSON type, and of a text its form."""
    if isinstance(value, bool) or not isinstance(value, str):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return "number" if number else type(value).__name__
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", value):
        return "time"
    return "duration" if re.fullmatch(r"([\d.]+(d|h|ms|m|µs|s))+", value) else "text"


class BesideNatsServerTests(unittest.TestCase):
    """The same client at both, the same questions to both."""

    def read(self, base: str, path: str) -> Any:
        with urllib.request.urlopen(base + path, timeout=PATIENCE) as answer:
            return json.load(answer)

    def everything(self, port: int, base: str) -> dict[str, Any]:
        with RawClient(port) as client:
            client.connect(name="me", version="1.0")
            client.send(b"SUB foo.* 1\r\nPUB foo.bar 2\r\nhi\r\n")
            client.settle()
            deadline = time.monotonic() + PATIENCE
            connz = self.read(base, "/connz?subs=1")
            while "rtt" not in connz["connections"][0] and time.monotonic() < deadline:
                client.send(b"PONG\r\n" if b"PING" in client.settle() else b"")
                connz = self.read(base, "/connz?subs=1")
            return {
                "varz": self.read(base, "/varz"),
                "connz": connz,
                "connection": connz["connections"][0],
                "subsz": self.read(base, "/subsz"),
                "routez": self.read(base, "/routez"),
                "leafz": self.read(base, "/leafz"),
                "healthz": self.read(base, "/healthz"),
            }

    def test_the_same_fields(self) -> None:
        need(self, NATS_SERVER.exists(), "no nats-server")
        with real_nats_server() as (port, base):
            theirs = self.everything(port, base)
        with BrokerProcess() as broker:
            ours = self.everything(broker.port, f"http://127.0.0.1:{broker.http_port}")
        fields = {"varz": VARZ, "connz": CONNZ, "connection": CONNECTION, "subsz": SUBSZ}
        fields |= {"routez": ROUTEZ, "leafz": LEAFZ, "healthz": "status"}
        for page, names in fields.items():
            for name in names.split():
                self.assertIn(name, theirs[page], f"{page}: nats-server has no {name}")
                self.assertIn(name, ours[page], page)
                self.assertEqual(kind(ours[page][name]), kind(theirs[page][name]), (page, name))
        for name in ("kind", "type", "name", "lang", "version", "subscriptions_list", "in_bytes"):
            self.assertEqual(ours["connection"][name], theirs["connection"][name])
        self.assertFalse(any(isinstance(v, float) and math.isnan(v) for v in ours["varz"].values()))


class StartTests(WithProcesses):
    def test_a_msgpack_client_has_a_start_of_its_own(self) -> None:
        broker = self.start()
        base = f"http://127.0.0.1:{broker.http_port}"

        def read(path: str) -> Any:
            with urllib.request.urlopen(base + path, timeout=PATIENCE) as answer:
                return json.load(answer)

        port = int(broker.expect_log(r"msgpack door: \S+?:(\d+)")[1])
        with RawClient(port, info=False):
            broker.expect_log("connected")
            (client,) = read("/connz")["connections"]
            self.assertEqual(client["type"], "msgpack")
            self.assertGreater(client["start"], read("/varz")["start"])
