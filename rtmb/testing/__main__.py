"""What `BrokerProcess` runs: reads one line of settings as JSON, starts a broker on free ports,
prints them as one line of JSON, and stops on SIGTERM or when its standard input ends."""

from __future__ import annotations

import json
import sys
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.protocol import Protocol
from twisted.internet.stdio import StandardIO
from twisted.logger import globalLogBeginner, textFileLogObserver
from twisted.python.failure import Failure

from rtmb.broker import Broker
from rtmb.config import SettingsError
from rtmb.testing.inside import broker_settings

reactor: Any = _reactor


class StandardInput(Protocol):
    """Who started this process holds the other end: when it lets go, the broker ends."""

    def connectionLost(self, reason: Failure | None = None) -> None:
        if reactor.running:
            reactor.stop()


def main() -> None:
    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stderr)], redirectStandardIO=False)
    try:
        broker = Broker(broker_settings(json.loads(sys.stdin.readline())), reactor)
        broker.privilegedStartService()
    except SettingsError as error:
        raise SystemExit(f"rtmb: {error}") from None
    broker.startService()
    reactor.addSystemEventTrigger("before", "shutdown", broker.stopService)
    ports = {s.name: s.port for s in broker if isinstance(getattr(s, "port", None), int)}
    print(json.dumps({"nats": broker.port, "host": broker.settings.interface, **ports}), flush=True)
    StandardIO(StandardInput())
    reactor.run()


main()
