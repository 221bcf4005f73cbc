"""Clients that were not made for this broker: nats-py, nats.js, telnet and nc, all for real."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import unittest
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from rtmb.test.processes import PATIENCE, BrokerProcess, Tail, Typist, environment, need

_NATS_JS = Path(__file__).with_name("nats_js")


def in_loop(work: Callable[[], Awaitable[None]]) -> None:
    """Run in an asyncio loop of its own: the broker is in another process."""

    async def limited() -> None:
        await asyncio.wait_for(work(), 3 * PATIENCE)

    asyncio.run(limited())


async def take(subscription: Any, count: int) -> list[Msg]:
    return [await subscription.next_msg(timeout=PATIENCE) for _ in range(count)]


async def payloads(subscription: Any, count: int) -> list[bytes]:
    return [message.data for message in await take(subscription, count)]


class WithBroker(unittest.TestCase):
    """A broker for each test."""

    def setUp(self) -> None:
        self.broker = BrokerProcess()
        self.addCleanup(self.broker.stop)


class NatsPyTests(WithBroker):
    """nats-py, unchanged."""

    def with_client(self, work: Callable[[Client], Awaitable[None]]) -> None:
        async def whole() -> None:
            client = await nats.connect(self.broker.url, allow_reconnect=False)
            try:
                await work(client)
            finally:
                await client.close()

        in_loop(whole)

    def test_publish_and_subscribe(self) -> None:
        """A message that is published reaches who subscribed, as it was."""

        async def work(client: Client) -> None:
            subscription = await client.subscribe("py.plain")
            await client.publish("py.plain", b"hello")
            (message,) = await take(subscription, 1)
            self.assertEqual((message.subject, message.data), ("py.plain", b"hello"))

        self.with_client(work)

    def test_wildcards(self) -> None:
        """`*` stands for one token and `>` for all that follow."""

        async def work(client: Client) -> None:
            one = await client.subscribe("py.w.*")
            rest = await client.subscribe("py.w.>")
            await client.publish("py.w.a.b", b"deep")
            await client.publish("py.w.a", b"flat")
            self.assertEqual(await payloads(one, 1), [b"flat"])
            self.assertEqual(await payloads(rest, 2), [b"deep", b"flat"])

        self.with_client(work)

    def test_queue_group(self) -> None:
        """Of three workers in a queue group each message reaches one, and all have work."""

        async def work(client: Client) -> None:
            got: list[list[bytes]] = [[], [], []]

            def worker(mine: list[bytes]) -> Callable[[Msg], Awaitable[None]]:
                async def receive(message: Msg) -> None:
                    mine.append(message.data)

                return receive

            for mine in got:
                await client.subscribe("py.work", queue="workers", cb=worker(mine))
            sent = [b"%d" % i for i in range(30)]
            for data in sent:
                await client.publish("py.work", data)
            await client.drain()
            self.assertEqual(sorted(itertools.chain(*got)), sorted(sent))
            self.assertTrue(all(got), got)

        self.with_client(work)

    def test_request_and_reply(self) -> None:
        """A request gets the answer of the one who serves the subject."""

        async def work(client: Client) -> None:
            async def answer(message: Msg) -> None:
                await message.respond(b"got " + message.data)

            await client.subscribe("py.ask", cb=answer)
            reply = await client.request("py.ask", b"this", timeout=PATIENCE)
            self.assertEqual(reply.data, b"got this")

        self.with_client(work)

    def test_request_without_responders(self) -> None:
        """A request that nobody serves fails at once and does not wait for its timeout."""

        async def work(client: Client) -> None:
            with self.assertRaises(NoRespondersError):
                await client.request("py.nobody", b"", timeout=PATIENCE)

        self.with_client(work)

    def test_headers(self) -> None:
        """Headers arrive beside the payload."""

        async def work(client: Client) -> None:
            subscription = await client.subscribe("py.headers")
            await client.publish("py.headers", b"with", headers={"Colour": "blue", "Size": "5"})
            (message,) = await take(subscription, 1)
            self.assertEqual(message.headers, {"Colour": "blue", "Size": "5"})
            self.assertEqual(message.data, b"with")

        self.with_client(work)

    def test_drain(self) -> None:
        """A client that drains handles everything sent before, then is closed."""

        async def work(client: Client) -> None:
            got: list[bytes] = []

            async def receive(message: Msg) -> None:
                got.append(message.data)

            drained = await nats.connect(self.broker.url)
            await drained.subscribe("py.drain", cb=receive)
            await drained.flush()
            for i in range(100):
                await client.publish("py.drain", b"%d" % i)
            await client.flush()
            await drained.drain()
            self.assertEqual(len(got), 100)
            self.assertTrue(drained.is_closed)

        self.with_client(work)

    def test_auto_unsubscribe(self) -> None:
        """`unsubscribe(limit)` ends a subscription after so many messages."""

        async def work(client: Client) -> None:
            got: list[bytes] = []

            async def receive(message: Msg) -> None:
                got.append(message.data)

            counted = await client.subscribe("py.auto", cb=receive)
            await counted.unsubscribe(limit=3)
            other = await client.subscribe("py.auto")
            for i in range(5):
                await client.publish("py.auto", b"%d" % i)
            self.assertEqual(len(await payloads(other, 5)), 5)
            self.assertEqual(got, [b"0", b"1", b"2"])

        self.with_client(work)

    def test_last_values(self) -> None:
        """`$LAST.<pattern>` gives the newest value of each subject, then what is new."""

        async def work(client: Client) -> None:
            for place in ("oslo", "rome"):
                await client.publish(f"py.weather.{place}", b"old")
                await client.publish(f"py.weather.{place}", b"new")
            await client.flush()
            subscription = await client.subscribe("$LAST.py.weather.*")
            await client.publish("py.weather.oslo", b"newest")
            found = [(m.subject, m.data) for m in await take(subscription, 3)]
            self.assertEqual(
                sorted(found[:2]), [("py.weather.oslo", b"new"), ("py.weather.rome", b"new")]
            )
            self.assertEqual(found[2], ("py.weather.oslo", b"newest"))

        self.with_client(work)

    def test_replay(self) -> None:
        """`$REPLAY.<n>.<subject>` gives the last n messages in order, then what is new."""

        async def work(client: Client) -> None:
            for i in range(5):
                await client.publish("py.log", b"%d" % i)
            await client.flush()
            subscription = await client.subscribe("$REPLAY.3.py.log")
            await client.publish("py.log", b"live")
            self.assertEqual(await payloads(subscription, 4), [b"2", b"3", b"4", b"live"])

        self.with_client(work)

    def test_largest_payload(self) -> None:
        """A payload of 1 MiB, the most that the default allows, arrives whole."""

        async def work(client: Client) -> None:
            subscription = await client.subscribe("py.large")
            data = os.urandom(1 << 20)
            await client.publish("py.large", data)
            self.assertTrue(await payloads(subscription, 1) == [data])

        self.with_client(work)


class NatsPyReconnectTests(unittest.TestCase):
    """nats-py and a broker that dies."""

    def test_reconnect(self) -> None:
        """After the broker was killed and has come back, subscriptions work as before."""

        async def work() -> None:
            back = asyncio.Event()

            async def reconnected() -> None:
                back.set()

            async def quiet(error: Exception) -> None:
                pass

            broker = BrokerProcess()
            try:
                client = await nats.connect(
                    broker.url,
                    reconnect_time_wait=0.05,
                    max_reconnect_attempts=-1,
                    reconnected_cb=reconnected,
                    error_cb=quiet,
                )
                subscription = await client.subscribe("py.again")
                await client.publish("py.again", b"before")
                self.assertEqual(await payloads(subscription, 1), [b"before"])
                broker.kill()
                port = broker.port
                broker.stop()
                broker = BrokerProcess(port=port)
                await asyncio.wait_for(back.wait(), PATIENCE)
                await client.publish("py.again", b"after")
                self.assertEqual(await payloads(subscription, 1), [b"after"])
                await client.close()
            finally:
                broker.stop()

        in_loop(work)


@functools.cache
def _installed() -> tuple[Path | None, str]:
    """Where the script stands beside an installed nats.js, or why it does not."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        return None, "node and npm are not installed"
    package = _NATS_JS / "package.json"
    if not package.is_file():
        return None, "the nats.js script is not installed with this package"
    cache = (
        os.environ.get("TEST_CACHE")
        or os.environ.get("XDG_CACHE_HOME")
        or os.path.join(tempfile.gettempdir(), f"rtmb-test-cache-{os.getuid()}")
    )
    version = hashlib.sha256(package.read_bytes()).hexdigest()[:12]
    place = Path(cache) / "rtmb-nats-js" / version
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "installed").is_file():
        shutil.copy(package, place)
        try:
            subprocess.run(
                [npm, "install", "--no-audit", "--no-fund"],
                cwd=place,
                capture_output=True,
                check=True,
                timeout=120,
            )
        except (subprocess.SubprocessError, OSError):
            return None, "npm could not install nats.js"
        (place / "installed").touch()
    for script in _NATS_JS.glob("*.mjs"):
        shutil.copy(script, place)
    return place, ""


@functools.cache
def _results(place: Path) -> dict[str, Any]:
    """What the script told of each feature; it runs once for all tests."""
    with BrokerProcess() as broker:
        ended = subprocess.run(
            ["node", "client.mjs", broker.url],
            cwd=place,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
            check=False,
        )
    if ended.returncode:
        raise AssertionError(ended.stderr)
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    return {one["feature"]: one["result"] for one in told}


class NatsJsTests(unittest.TestCase):
    """nats.js, unchanged, in node."""

    def setUp(self) -> None:
        self.place, reason = _installed()
        need(self, self.place, reason)

    @property
    def results(self) -> dict[str, Any]:
        assert self.place is not None
        return _results(self.place)

    def test_publish_and_subscribe(self) -> None:
        """A message that is published reaches who subscribed, as it was."""
        self.assertEqual(self.results["publish_subscribe"], ["hello"])

    def test_wildcards(self) -> None:
        """`*` stands for one token and `>` for all that follow."""
        self.assertEqual(self.results["wildcard"], {"one": ["flat"], "rest": ["deep", "flat"]})

    def test_queue_group(self) -> None:
        """Of three workers in a queue group each message reaches one, and all have work."""
        got = self.results["queue_group"]
        self.assertEqual(sorted(map(int, itertools.chain(*got))), list(range(30)))
        self.assertTrue(all(got), got)

    def test_request_and_reply(self) -> None:
        """A request gets the answer of the one who serves the subject."""
        self.assertEqual(self.results["request_reply"], "42")

    def test_request_without_responders(self) -> None:
        """A request that nobody serves fails at once and does not wait for its timeout."""
        self.assertEqual(self.results["no_responders"], "503")

    def test_headers(self) -> None:
        """Headers arrive beside the payload, a repeated one with all its values."""
        self.assertEqual(self.results["headers"], {"colours": ["blue", "green"], "payload": "with"})

    def test_drain(self) -> None:
        """A client that drains handles everything sent before, then is closed."""
        self.assertEqual(self.results["drain"], {"got": 100, "closed": True})

    def test_auto_unsubscribe(self) -> None:
        """`unsubscribe(max)` ends a subscription after so many messages."""
        self.assertEqual(self.results["auto_unsubscribe"], {"got": ["0", "1", "2"], "closed": True})

    def test_last_values(self) -> None:
        """`$LAST.<pattern>` gives the newest value of each subject."""
        self.assertEqual(
            self.results["last"], [["js.weather.oslo", "new"], ["js.weather.rome", "new"]]
        )

    def test_replay(self) -> None:
        """`$REPLAY.<n>.<subject>` gives the last n messages in order, then what is new."""
        self.assertEqual(self.results["replay"], ["2", "3", "4", "live"])

    def test_largest_payload(self) -> None:
        """A payload of 1 MiB, the most that the default allows, arrives whole."""
        self.assertIs(self.results["large_payload"], True)

    def test_reconnect(self) -> None:
        """After the broker was killed and has come back, subscriptions work as before."""
        assert self.place is not None
        broker = BrokerProcess()
        node = subprocess.Popen(
            ["node", "client.mjs", broker.url, "reconnect"],
            cwd=self.place,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert node.stdout is not None
        tail = Tail(node.stdout.fileno())
        try:
            tail.expect(b'"ready"')
            broker.kill()
            port = broker.port
            broker.stop()
            broker = BrokerProcess(port=port)
            tail.expect(rb'"feature":"reconnect","result":\["after"\]')
            self.assertEqual(node.wait(PATIENCE), 0)
        finally:
            node.kill()
            node.wait()
            tail.join()
            node.stdout.close()
            broker.stop()


# A base that is itself no test case, so that no runner runs it.
if TYPE_CHECKING:
    _TypedBase = WithBroker
else:
    _TypedBase = object


class Typed(_TypedBase):
    """The transcripts that people type by hand. Subclasses say into which program."""

    program = ""
    terminal = False

    def setUp(self) -> None:
        need(self, shutil.which(self.program), f"{self.program} is not installed")
        super().setUp()

    def typist(self) -> Typist:
        """Someone who has just connected."""
        found = Typist([self.program, "127.0.0.1", str(self.broker.port)], terminal=self.terminal)
        self.addCleanup(found.__exit__)
        found.sees("INFO {")
        return found

    def test_first_steps(self) -> None:
        """CONNECT, SUB, PUB, UNSUB and PING answer as the first seed's example says."""
        someone = self.typist()
        someone.types("CONNECT {}")
        someone.sees("PING\n")
        someone.types("PONG", "SUB foo.bar sid1", "PUB foo.bar 12", "Hello World!")
        someone.sees("MSG foo.bar sid1 12\nHello World!\n")
        someone.types("UNSUB sid1", "PUB foo.bar 5", "again", "PING")
        someone.sees("PONG\n")
        self.assertNotIn("MSG foo.bar sid1 5", someone.output())
        self.assertNotIn("-ERR", someone.output())

    def test_unsubscribe_after_more(self) -> None:
        """`UNSUB sid max` lets max more messages through, for someone who types."""
        someone = self.typist()
        someone.types("CONNECT {}", "SUB few.of 1", "PUB few.of 1", "a")
        someone.sees("MSG few.of 1 1\na\n")
        someone.types("UNSUB 1 2")
        for payload in "bc":
            someone.types("PUB few.of 1", payload)
            someone.sees(f"MSG few.of 1 1\n{payload}\n")
        someone.types("PUB few.of 1", "d", "PING")
        someone.sees("PONG\n")
        self.assertEqual(someone.output().count("MSG"), 3)

    def test_ping_comes_after_connect(self) -> None:
        """The broker asks PING right after CONNECT, and answers PING in any case of letters."""
        someone = self.typist()
        someone.types("connect {}")
        someone.sees("PING\n")
        someone.types("pong", "ping")
        someone.sees("PONG\n")

    def test_wildcards(self) -> None:
        """`foo.*` gets foo.bar and not foo.bar.test, which `foo.>` does get."""
        someone = self.typist()
        someone.types("CONNECT {}", "SUB foo.* 10", "PUB foo.bar.test 4", "deep")
        someone.types("PUB foo.bar 4", "flat")
        someone.sees("MSG foo.bar 10 4\nflat\n")
        self.assertNotIn("MSG foo.bar.test", someone.output())
        someone.types("SUB foo.> 11", "PUB foo.bar.test 5", "again")
        someone.sees("MSG foo.bar.test 11 5\nagain\n")

    def test_queue_workers(self) -> None:
        """Of two workers in a queue group one gets `first` and the other `second`."""
        one, other, publisher = self.typist(), self.typist(), self.typist()
        one.types("sub top.stevenbai.blog workers 3", "PING")
        one.sees("PONG\n")
        other.types("sub top.stevenbai.blog workers 4", "PING")
        other.sees("PONG\n")
        publisher.types("pub top.stevenbai.blog 5", "first", "pub top.stevenbai.blog 6", "second")
        publisher.types("PING")
        publisher.sees("PONG\n")
        for worker in (one, other):
            worker.types("PING")
            worker.sees("PONG\n")
        got = {one.output().count("MSG"), other.output().count("MSG")}
        self.assertEqual(got, {1})
        both = one.output() + other.output()
        self.assertRegex(both, r"MSG top\.stevenbai\.blog [34] 5\nfirst\n")
        self.assertRegex(both, r"MSG top\.stevenbai\.blog [34] 6\nsecond\n")

    def test_mistakes(self) -> None:
        """A sid that is taken or unknown is told to someone who types, who may go on."""
        someone = self.typist()
        someone.types("CONNECT {}", "SUB foo 1", "SUB foo 1")
        someone.sees("-ERR 'Subscription ID already exists'\n")
        someone.types("UNSUB 9")
        someone.sees("-ERR 'Subscription ID does not exist'\n")
        someone.types("PING")
        someone.sees("PONG\n")


class TelnetTests(Typed, WithBroker):
    """telnet, at a terminal."""

    program = "telnet"
    terminal = True


class NetcatTests(Typed, WithBroker):
    """nc, whose lines end in a bare LF."""

    program = "nc"
