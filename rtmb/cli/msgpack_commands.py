"""`rtmb test-client` and `rtmb log-metrics`: clients of the msgpack door."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import cycle
from typing import Any

import click
import msgpack
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure
from zope.interface import implementer

from rtmb.cli.options import COUNT, SECONDS, Command
from rtmb.cli.runner import NO_CONNECTION, CommandFailed, run, tell

TOPICS = "abcdefg"
METRICS = "!system/metrics/*"
#: Messages written at once by a client without an interval.
BURST = 7 * 16
#: The largest value that is taken from a server.
MOST = 64 << 20


class HostAndPort(click.ParamType[tuple[str, int]]):
    name = "host:port"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            self.fail(f"{value!r} is no address such as localhost:36912", param, ctx)
        return host.strip("[]"), int(port)


class MsgpackClient(Protocol):
    """Speaks the msgpack door's protocol: one-key maps out, ``[topic, value]`` in."""

    transport: Any

    def __init__(self, on_message: Callable[[str, Any], None]) -> None:
        self._on_message = on_message
        self._unpacker = msgpack.Unpacker(max_buffer_size=MOST, unicode_errors="surrogateescape")
        #: Fires with the reason when the connection has ended.
        self.ended: Deferred[None] = Deferred()

    def subscribe(self, pattern: str) -> None:
        self.transport.write(msgpack.packb({"Subscribe": [pattern]}))

    def publish(self, topic: str, value: Any) -> None:
        self.transport.write(publication(topic, value))

    def dataReceived(self, data: bytes) -> None:
        try:
            self._unpacker.feed(data)
            for topic, value in self._unpacker:
                self._on_message(topic, value)
        except Exception as error:  # what msgpack raises for bad bytes has no class of its own
            self._end(f"the server sent something else than [topic, value]: {error!r}")
            self.transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._end("the server closed the connection")

    def _end(self, why: str) -> None:
        if not self.ended.called:
            self.ended.errback(CommandFailed(why, NO_CONNECTION))


def publication(topic: str, value: Any) -> bytes:
    data: bytes = msgpack.packb({"Publish": [[topic, value]]})
    return data


async def _connect(
    reactor: Any, address: tuple[str, int], on_message: Callable[[str, Any], None]
) -> MsgpackClient:
    client = MsgpackClient(on_message)
    try:
        await connectProtocol(HostnameEndpoint(reactor, *address), client)
    except (ConnectError, DNSLookupError) as error:
        raise CommandFailed(f"{address[0]}:{address[1]}: {error}", NO_CONNECTION) from None
    return client


@implementer(IPushProducer)
class Flood:
    """Writes bursts for as long as the transport takes them."""

    def __init__(self, reactor: Any, write: Callable[[], None]) -> None:
        self._reactor = reactor
        self._write = write
        self._call: Any = None

    def resumeProducing(self) -> None:
        if self._call is None:
            self._call = self._reactor.callLater(0, self._turn)

    def pauseProducing(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    stopProducing = pauseProducing

    def _turn(self) -> None:
        self._call = self._reactor.callLater(0, self._turn)
        self._write()  # which may pause this


address_option = click.option(
    "--address",
    type=HostAndPort(),
    default="127.0.0.1:36912",
    show_default=True,
    help="The msgpack door.",
)


@click.command(
    cls=Command,
    examples="""
rtmb test-client --number 30 --interval 0.01 --subscribe a
rtmb test-client --address localhost:36912 --number 4       as fast as they can
rtmb test-client --subscribe '*' --duration 10s --json
""",
)
@address_option
@click.option("--number", type=COUNT, default=1, show_default=True, help="Clients at once.")
@click.option("--interval", type=SECONDS, help="Time between a client's messages.")
@click.option("--subscribe", multiple=True, metavar="PATTERN", help="Glob; may be repeated.")
@click.option("--duration", type=SECONDS, help="End after this time.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a second.")
def test_client(
    address: tuple[str, int],
    number: int,
    interval: float | None,
    subscribe: tuple[str, ...],
    duration: float | None,
    as_json: bool,
) -> None:
    """Clients that publish to the msgpack door and receive from it, until Ctrl+C.

    Each spreads its messages evenly over the topics a to g. Every second a line tells how many
    were published and received.
    """

    async def main(reactor: Any) -> None:
        published = received = 0

        def receive(topic: str, value: Any) -> None:
            nonlocal received
            received += 1

        def load(client: MsgpackClient, index: int) -> Callable[[], None]:
            topics = cycle(TOPICS)
            numbers = iter(range(sys.maxsize))
            # Without an interval the same burst goes out again and again: it costs nothing to make.
            burst = b"".join(publication(t, index) for t in TOPICS * (BURST // len(TOPICS)))

            def one() -> None:
                nonlocal published
                client.publish(next(topics), next(numbers))
                published += 1

            def many() -> None:
                nonlocal published
                client.transport.write(burst)
                published += BURST

            return one if interval else many

        def report() -> None:
            nonlocal published, received
            if as_json:
                click.echo(f'{{"clients": {number}, "published": {published}, '
                           f'"received": {received}}}')  # fmt: skip
            else:
                click.echo(f"{number} clients: {published:,} published, {received:,} received")
            published = received = 0

        clients: list[MsgpackClient] = []
        loops: list[LoopingCall] = []
        finished: Deferred[None] = Deferred()

        def end(result: Any = None) -> None:
            if not finished.called:
                finished.callback(result)

        try:
            for index in range(number):
                client = await _connect(reactor, address, receive)
                clients.append(client)
                client.ended.addErrback(end)
                for pattern in subscribe:
                    client.subscribe(pattern)
                if interval:
                    loops.append(_every(reactor, interval, load(client, index), end))
                else:
                    flood = Flood(reactor, load(client, index))
                    client.transport.registerProducer(flood, True)
                    flood.resumeProducing()
            tell(f"{number} clients connected")
            loops.append(_every(reactor, 1.0, report, end))
            stop = reactor.callLater(duration, end) if duration else None
            await finished
        finally:
            for loop in loops:
                if loop.running:
                    loop.stop()
            if duration and stop is not None and stop.active():
                stop.cancel()
            for client in clients:
                client.transport.abortConnection()

    run(main)


def _every(
    reactor: Any, seconds: float, call: Callable[[], None], failed: Callable[[Any], None]
) -> LoopingCall:
    loop = LoopingCall(call)
    loop.clock = reactor
    loop.start(seconds, now=False).addErrback(failed)
    return loop


@click.command(
    cls=Command,
    examples="""
rtmb log-metrics
rtmb log-metrics --address localhost:36912 --json | jq 'select(.metric == "connections")'
""",
)
@address_option
@click.option("--count", type=COUNT, help="End after so many values.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line.")
def log_metrics(address: tuple[str, int], count: int | None, as_json: bool) -> None:
    """Print the metrics that the broker publishes about itself, as they come, until Ctrl+C."""
    import json
    from datetime import datetime

    async def main(reactor: Any) -> None:
        done: Deferred[None] = Deferred()
        seen = 0

        def receive(topic: str, value: Any) -> None:
            nonlocal seen
            if done.called:
                return
            metric = topic.removeprefix(METRICS.rstrip("*"))
            try:
                if as_json:
                    click.echo(json.dumps({"metric": metric, "value": value}, default=str))
                else:
                    shown = f"{value:,.10g}" if isinstance(value, (int, float)) else value
                    click.echo(f"{datetime.now():%H:%M:%S}  {metric:<40} {shown}")
            except BrokenPipeError:
                done.errback(Failure())
                return
            seen += 1
            if seen == count:
                done.callback(None)

        client = await _connect(reactor, address, receive)
        client.ended.addErrback(lambda why: None if done.called else done.errback(why))
        client.subscribe(METRICS)
        try:
            await done
        finally:
            client.transport.abortConnection()

    run(main)
