"""nats.js at the text door, in a real node."""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import unittest
from pathlib import Path
from typing import Any

from rtmb.test.support.npm import with_nats_js
from rtmb.test.support.processes import PATIENCE, BrokerProcess, Tail, environment


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
        self.place = with_nats_js(self)

    @property
    def results(self) -> dict[str, Any]:
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
