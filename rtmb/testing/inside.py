"""A broker on real ports in the process of the test: for trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from twisted.internet.defer import Deferred

from rtmb.broker import Broker
from rtmb.client import Client, ClientOptions, connect
from rtmb.config import Settings, checked, read_table

#: A test has no say in which ports are free.
_FREE_PORTS = {"port": 0, "http_port": 0, "msgpack_port": 0}


def broker_settings(table: Mapping[str, Any]) -> Settings:
    """Settings from names and values as in a TOML file, on free ports."""
    return checked(read_table({**_FREE_PORTS, **table}, "settings"))


class BrokerMixin:
    """For `twisted.trial.unittest.TestCase`: `self.start_broker()` is a broker on free ports in
    trial's reactor, and is stopped after the test."""

    addCleanup: Callable[..., None]

    def start_broker(self, **settings: Any) -> Broker:
        """A broker that listens; its `url` says where. Settings are as in a TOML file."""
        broker = Broker(broker_settings(settings))
        self.addCleanup(broker.stopService)
        broker.startService()
        return broker

    def connect_client(self, broker: Broker, **options: Unpack[ClientOptions]) -> Deferred[Client]:
        """A client of that broker, closed before the broker stops."""

        def connected(client: Client) -> Client:
            self.addCleanup(client.close)
            return client

        return connect(broker.url, **options).addCallback(connected)
