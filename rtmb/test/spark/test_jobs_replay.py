"""The replay job: in order within a subject, at the pace it had or faster."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from datetime import timedelta

import pytest

from rtmb.test.support.processes import PATIENCE, RawClient
from rtmb.test.support.spark_jobs import (
    NINE,
    BrokerJobCase,
    row,
)

pytestmark = pytest.mark.slow


class ReplayTests(BrokerJobCase):
    def test_replay_in_order_and_at_its_pace(self) -> None:
        from rtmb.spark.jobs.replay import replay

        rows = [
            row(i, f"flow.{i % 3}", {"n": i}, NINE + timedelta(seconds=i * 0.1)) for i in range(30)
        ]
        rows += [
            row(90, "other", {"n": 90}, NINE),
            row(91, "flow.0", {"n": 91}, NINE - timedelta(1)),
        ]
        archive = self.archive(rows[10:20] + rows[:10], rows[20:])
        arrived: list[tuple[float, str, int]] = []

        def listen(client: RawClient) -> None:
            while len(arrived) < 30:
                head = client.read_until(b"\r\n").split()
                if head == [b"PING"]:
                    client.send(b"PONG\r\n")
                    continue
                size, whole = int(head[-2]), int(head[-1])
                body = b""
                while len(body) < whole + 2:
                    body += client.read_until(b"\n")
                number = json.loads(body[size:])["n"]
                arrived.append((time.time(), head[1].decode(), number))

        with RawClient(self.broker.port) as client:
            client.connect()
            client.subscribe("again.>")
            listener = threading.Thread(target=listen, args=[client], daemon=True)
            listener.start()
            count = replay(
                archive, self.there, subject="flow.*", since=NINE, prefix="again", speed=2.0
            )
            listener.join(PATIENCE)
        self.assertEqual((count, len(arrived)), (30, 30))
        for lane in range(3):
            found = [n for _, subject, n in arrived if subject == f"again.flow.{lane}"]
            self.assertEqual(found, list(range(lane, 30, 3)))
        begin = min(at - n * 0.05 for at, _, n in arrived)
        for at, _, n in arrived:
            self.assertLess(at - begin - n * 0.05, 1.0)  # the machine may be busy
        self.assertGreater(arrived[-1][0] - arrived[0][0], 29 * 0.05 - 0.02 - 0.5)

    def test_replay_as_fast_as_it_goes(self) -> None:
        from rtmb.spark.jobs.replay import replay

        rows = [row(i, f"flow.{i % 5}", {"n": i}, NINE + timedelta(minutes=i)) for i in range(500)]
        archive = self.archive(rows)
        began = time.monotonic()
        self.assertEqual(replay(archive, self.there, speed=0), 500)
        self.assertLess(time.monotonic() - began, 60)
        found = self.there.read(self.spark, subject="replay.>").orderBy("seq").collect()
        by_subject: defaultdict[str, list[int]] = defaultdict(list)
        for r in found:
            by_subject[r.subject].append(json.loads(bytes(r.data))["n"])
            self.assertEqual(r.headers["Seq"], str(by_subject[r.subject][-1]))
        for lane in range(5):
            self.assertEqual(by_subject[f"replay.flow.{lane}"], list(range(lane, 500, 5)))
