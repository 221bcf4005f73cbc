"""What `BrokerProcess` runs: a broker on free ports that its standard input, a socket, governs.

A line with settings comes first, then requests, each a JSON object and answered with one. When the
other end closes, as it does when that process ends, the broker ends; so it does on SIGTERM.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.protocol import Factory
from twisted.logger import globalLogBeginner, textFileLogObserver

from rtmb.config import SettingsError
from rtmb.testing.control import Control, ControlledBroker

reactor: Any = _reactor


def main() -> None:
    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stderr)], redirectStandardIO=False)
    controlled = ControlledBroker(json.loads(sys.stdin.readline()), reactor)
    answer: dict[str, Any]
    try:
        controlled.start()
    except SettingsError as error:
        answer = {"error": str(error)}
    else:
        answer = {"ports": controlled.ports, "host": controlled.host}
    reactor.addSystemEventTrigger("before", "shutdown", controlled.stop)
    factory = Factory.forProtocol(lambda: Control(controlled, answer, reactor.stop))
    factory.noisy = False
    reactor.adoptStreamConnection(sys.stdin.fileno(), socket.AF_UNIX, factory)
    reactor.run()


main()
