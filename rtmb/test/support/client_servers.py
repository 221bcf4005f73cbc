"""Help for tests of `rtmb.client` against real servers: a case for each server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, ClassVar, Unpack

from twisted.internet import reactor as _reactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from rtmb.client import (
    Client,
    ClientOptions,
    ConnectionFailed,
    connect,
)
from rtmb.test.support.processes import PATIENCE, NatsServerProcess, ServerProcess, need
from rtmb.testing import BrokerProcess

reactor: Any = _reactor


class AnyServer(TestCase):
    """What the tests may ask of any server, over real sockets."""

    timeout = 6 * PATIENCE
    #: What this server is told for the settings that the tests name.
    SETTINGS: ClassVar[dict[str, Any]] = {}

    def start(self, settings: str = "", port: int = 0, **fill: str) -> ServerProcess:
        raise NotImplementedError

    def server(self, settings: str = "", port: int = 0, **fill: str) -> ServerProcess:
        server = self.start(settings, port, **fill)
        self.addCleanup(server.stop)
        return server

    def websocket_url(self, server: ServerProcess) -> str:
        raise NotImplementedError

    async def client(self, server: ServerProcess | str, **options: Unpack[ClientOptions]) -> Client:
        url = server if isinstance(server, str) else server.url
        client = await connect(url, **options)
        self.addCleanup(client.close)
        return client

    async def fails(self, server: ServerProcess | str, **options: Unpack[ClientOptions]) -> str:
        """Connecting fails; the error's text."""
        try:
            await self.client(server, **options)
        except ConnectionFailed as error:
            self.assertNotIn("wrong", str(error))  # the tests' bad passwords
            return str(error)
        raise self.failureException("connected")

    async def until(self, there: Callable[[], bool]) -> None:
        for _ in range(int(PATIENCE * 100)):
            if there():
                return
            await deferLater(reactor, 0.01)
        self.fail("it did not come to that")


class OnRtmb(AnyServer):
    """rtmb."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "token": {"token": "s3cret"},
        "user": {"user": "alice", "password": "s3:cret@"},
        "nkey": {"auth": {"users": [{"nkey": "{nkey}"}]}},
        "permissions": {
            "auth": {
                "users": [
                    {
                        "user": "u",
                        "password": "p",
                        "permissions": {
                            "publish": {"deny": ["no"]},
                            "subscribe": {"deny": ["secret.>"]},
                        },
                    }
                ]
            }
        },
        "tls": {"tls_cert": "{place}/server.pem", "tls_key": "{place}/server.key"},
        "tls_first": {
            "tls_cert": "{place}/server.pem",
            "tls_key": "{place}/server.key",
            "tls_first": True,
        },
        "websocket": {},
    }

    def start(self, settings: str = "", port: int = 0, **fill: str) -> BrokerProcess:
        text = json.dumps(self.SETTINGS[settings] if settings else {})
        for name, value in fill.items():
            text = text.replace("{" + name + "}", value)
        return BrokerProcess(port=port, **json.loads(text))

    def websocket_url(self, server: ServerProcess) -> str:
        assert isinstance(server, BrokerProcess)
        need(self, server.http_port, "the broker has no HTTP door")
        return f"ws://{server.host}:{server.http_port}"


class OnNatsServer(AnyServer):
    """The real nats-server."""

    SETTINGS: ClassVar[dict[str, str]] = {
        "": "",
        "token": 'authorization { token: "s3cret" }',
        "user": 'authorization { user: "alice", password: "s3:cret@" }',
        "nkey": 'authorization { users: [ { nkey: "{nkey}" } ] }',
        "permissions": """authorization { users: [ { user: "u", password: "p", permissions: {
            publish: { deny: ["no"] }, subscribe: { deny: ["secret.>"] } } } ] }""",
        "tls": 'tls { cert_file: "{place}/server.pem", key_file: "{place}/server.key" }',
        "tls_first": """tls { cert_file: "{place}/server.pem", key_file: "{place}/server.key",
            handshake_first: true }""",
        "websocket": 'websocket { listen: "127.0.0.1:-1", no_tls: true }',
    }

    def start(self, settings: str = "", port: int = 0, **fill: str) -> NatsServerProcess:
        text = self.SETTINGS[settings]
        for name, value in fill.items():
            text = text.replace("{" + name + "}", value)
        return NatsServerProcess(port=port, config=text)

    def websocket_url(self, server: ServerProcess) -> str:
        found = re.search(r"websocket clients on ws://([^\s]+)", server.log())
        assert found is not None, server.log()
        return f"ws://{found[1]}"
