"""`rtmb test-client` and `rtmb log-metrics`: clients of the msgpack door."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import datetime
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

    load = _Load(number, interval, subscribe, as_json)
    run(lambda reactor: load.run(reactor, address, duration), prints=True)


class _Load:
    """Clients that publish and receive, and what they counted in the last second."""

    def __init__(
        self, number: int, interval: float | None, patterns: tuple[str, ...], as_json: bool
    ) -> None:
        self._number = number
        self._interval = interval
        self._patterns = patterns
        self._as_json = as_json
        self._published = self._received = 0
        self._clients: list[MsgpackClient] = []
        self._loops: list[LoopingCall] = []
        self._finished: Deferred[None] = Deferred()

    async def run(self, reactor: Any, address: tuple[str, int], duration: float | None) -> None:
        stop = None
        try:
            for index in range(self._number):
                await self._start_client(reactor, address, index)
            tell(f"{self._number} clients connected")
            self._loops.append(_every(reactor, 1.0, self._report, self._end))
            stop = reactor.callLater(duration, self._end) if duration else None
            await self._finished
        finally:
            for loop in self._loops:
                if loop.running:
                    loop.stop()
            if stop is not None and stop.active():
                stop.cancel()
            for client in self._clients:
                client.transport.abortConnection()

    def _end(self, result: Any = None) -> None:
        if not self._finished.called:
            self._finished.callback(result)

    async def _start_client(self, reactor: Any, address: tuple[str, int], index: int) -> None:
        client = await _connect(reactor, address, self._receive)
        self._clients.append(client)
        client.ended.addErrback(self._end)
        for pattern in self._patterns:
            client.subscribe(pattern)
        if self._interval:
            publish = self._publish_one(client)
            self._loops.append(_every(reactor, self._interval, publish, self._end))
        else:
            flood = Flood(reactor, self._publish_burst(client, index))
            client.transport.registerProducer(flood, True)
            flood.resumeProducing()

    def _publish_one(self, client: MsgpackClient) -> Callable[[], None]:
        topics, numbers = itertools.cycle(TOPICS), itertools.count()

        def publish() -> None:
            client.publish(next(topics), next(numbers))
            self._published += 1

        return publish

    def _publish_burst(self, client: MsgpackClient, index: int) -> Callable[[], None]:
        # The same burst goes out again and again: it costs nothing to make.
        burst = b"".join(publication(t, index) for t in TOPICS * (BURST // len(TOPICS)))

        def publish() -> None:
            client.transport.write(burst)
            self._published += BURST

        return publish

    def _receive(self, topic: str, value: Any) -> None:
        self._received += 1

    def _report(self) -> None:
        facts = {
            "clients": self._number, "published": self._published, "received": self._received
        }  # fmt: skip
        if self._as_json:
            click.echo(json.dumps(facts))
        else:
            counts = f"{self._published:,} published, {self._received:,} received"
            click.echo(f"{self._number} clients: {counts}")
        self._published = self._received = 0


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

    run(main, prints=True)
