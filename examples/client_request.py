"""Ask and answer, with Deferreds and no await: ``python examples/client_request.py [URL]``."""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.python.failure import Failure

from rtmb.client import Client, Message, NoResponders, connect


def double(message: Message) -> None:
    message.respond(str(2 * int(message.text)))


def ask(client: Client) -> Deferred[None]:
    client.subscribe("double", callback=double, queue="workers")
    asked = client.request("double", "21")
    asked.addCallback(lambda answer: print(f"twice 21 is {answer.text}"))
    asked.addCallback(lambda _: client.request("triple", "14"))

    def nobody(failure: Failure) -> None:
        failure.trap(NoResponders)
        print(failure.getErrorMessage())

    asked.addErrback(nobody)
    return asked.addCallback(lambda _: client.drain())


def main(reactor: Any, url: str = "nats://127.0.0.1:4222") -> Deferred[None]:
    return connect(url, name="request example").addCallback(ask)


if __name__ == "__main__":
    react(main, sys.argv[1:])
