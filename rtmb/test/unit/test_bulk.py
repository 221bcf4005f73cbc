"""Tests for `rtmb.doors.nats.walk`: the walk must not differ from the plain path in anything."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rtmb.core.segments import Selection
from rtmb.core.subjects import OWN
from rtmb.doors.nats import walk as bulk
from rtmb.test.support.journal import rows_of, written
from rtmb.test.support.memory import MemoryBroker, Peer


def pub(subject: bytes, payload: bytes) -> bytes:
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)


names = st.sampled_from([b"a", b"b", b"a.b"])
payloads = st.sampled_from([b"", b"x", b"yy", b"PUB a 1\r\n", b"\r\n", b"PUB a 9\r\n"])
patterns = st.sampled_from([b"a", b"b", b"*", b">", b"a.*", b"$LAST.a", b"$REPLAY.3.>"])
said = st.one_of(
    st.builds(lambda s, p, n: pub(s, p) * n, names, payloads, st.sampled_from([1, 1, 2, 5, 12])),
    st.builds(lambda p, s: b"SUB %b %d\r\n" % (p, s), patterns, st.integers(1, 4)),
    st.builds(lambda p, s: b"SUB %b q %d\r\n" % (p, s), patterns, st.integers(1, 4)),
    st.builds(lambda s: b"UNSUB %d\r\n" % s, st.integers(1, 4)),
    st.builds(lambda s, n: b"UNSUB %d %d\r\n" % (s, n), st.integers(1, 4), st.integers(1, 9)),
    st.builds(lambda s, p: b"PUB %b r %d\r\n%b\r\n" % (s, len(p), p), names, payloads),
    st.just(b"HPUB a 12 13\r\nNATS/1.0\r\n\r\nh\r\n"),
    st.just(b"PING\r\n"),
    st.just(b"PUB a.* 1\r\nx\r\n"),
)
kinds = st.sampled_from(["bare", "library", "quiet", "verbose", "silent"])


class Scene:
    """Some clients of one broker, and all that can be seen of what they did."""

    def __init__(self, bulk: bool, kinds: list[str], history: int) -> None:
        self.broker = MemoryBroker(bulk=bulk, history=history, journal=("a", "a.>"))
        self.peers: list[Peer] = [self._peer(kind) for kind in kinds]
        self.heard = [b""] * len(kinds)

    def _peer(self, kind: str) -> Peer:
        if kind == "library":
            return self.broker.library()
        if kind == "quiet":
            return self.broker.library(echo=False)
        if kind == "verbose":
            return self.broker.connect(b'CONNECT {"verbose":true}\r\n')
        return self.broker.connect()

    def say(self, who: int, data: bytes, cut: int) -> None:
        at = cut % (len(data) + 1)
        for part in (data[:at], data[at:]):
            self.peers[who].protocol.dataReceived(part)
        self.heard = [h + p.heard() for h, p in zip(self.heard, self.peers, strict=True)]

    def seen(self) -> dict[str, Any]:
        hub = self.broker.hub
        totals = hub.totals

        def counts(c: Any) -> tuple[int, ...]:
            return c.in_msgs, c.in_bytes, c.out_msgs, c.out_bytes

        return {
            "heard": self.heard,
            "totals": counts(totals),
            "clients": [counts(p.protocol.counters) for p in self.peers],
            "closed": [p.closed for p in self.peers],
            "topics": {
                t.name: (t.messages, t.bytes, [(m.payload, m.reply) for m in t.newest(99)])
                for t in hub.history
            },
            "journal": self.journaled(),
            "delivered": sorted((s.key, s.pattern, s.delivered) for s in hub.trie),
        }

    def journaled(self) -> list[tuple[Any, ...]]:
        journal = self.broker.hub.journal
        assert journal is not None
        everything = Selection((">", f"{OWN}>"))
        rows = rows_of(written(journal.read(1, journal.next, everything)))
        return [tuple(str(value) for value in row.values()) for row in rows]


class EquivalenceTests(SynchronousTestCase):
    @settings(max_examples=200, deadline=None)
    @given(
        st.lists(kinds, min_size=1, max_size=4),
        st.lists(
            st.tuples(st.integers(0, 3), st.lists(said, min_size=1, max_size=8), st.integers(0)),
            max_size=8,
        ),
        st.sampled_from([0, 2, 100]),
    )
    def test_walk_and_plain_path_agree(
        self, kinds: list[str], steps: list[tuple[int, list[bytes], int]], history: int
    ) -> None:
        """Whatever is said by whom, cut anywhere: the same is heard, kept and counted."""
        fast, plain = Scene(True, kinds, history), Scene(False, kinds, history)
        for who, parts, cut in steps:
            for scene in (fast, plain):
                scene.say(who % len(kinds), b"".join(parts), cut)
        self.assertEqual(fast.seen(), plain.seen())


class WalkTests(SynchronousTestCase):
    def test_lines_are_bounded(self) -> None:
        self.patch(bulk, "LINE_CACHE", 10)
        self.patch(bulk, "SUBJECT_CACHE", 10)
        broker = MemoryBroker()
        peer = broker.connect()
        for i in range(50):
            peer.send(pub(b"s.%d" % i, b"x" * i) + pub(b"s", b"x" * i) * 2)
        for cache in (broker.factory.lines, broker.factory.subjects, broker.factory.sizes):
            self.assertLessEqual(len(cache), 10)

    def test_a_walk_is_taken(self) -> None:
        """These tests compare two paths indeed: repeated lines do not reach the plain one."""
        broker = MemoryBroker()
        peer = broker.connect()
        peer.send(pub(b"a", b"x"))
        lines: list[bytes] = []
        self.patch(peer.protocol, "lineReceived", lines.append)
        peer.send(pub(b"a", b"y") * 10)
        self.assertEqual(lines, [])
        self.assertEqual(broker.hub.totals.in_msgs, 11)

    def test_runs_stop_paying_when_payloads_hold_the_line(self) -> None:
        """Such payloads cannot make the walk search the same bytes again and again."""
        broker = MemoryBroker()
        peer = broker.connect()
        peer.send(pub(b"a", b"PUB a 9\r\n") * 10)
        self.assertIsNone(broker.factory.subjects[b"PUB a "].runs)

    def test_large_messages_are_not_taken_as_runs(self) -> None:
        """They would be copied more often; the walk takes them one by one."""
        broker = MemoryBroker()
        peer, large = broker.connect(b"SUB a 1\r\n"), b"x" * (bulk._RUN_SIZE + 1)
        heard = peer.send(pub(b"a", large) * 10)
        self.assertEqual(heard, b"MSG a 1 4097\r\n%b\r\n" % large * 10)
        self.assertEqual(broker.factory.subjects[b"PUB a "].runs, {})

    def test_patterns_are_bounded(self) -> None:
        """Runs of ever new sizes do not cost a pattern each; what is heard is the same."""
        self.patch(bulk, "_RUN_SIZES", 2)
        broker = MemoryBroker()
        peer = broker.connect(b"SUB a 1\r\n")
        sizes = [1, 2, 3, 4]
        said = b"".join(pub(b"a", b"x" * size) * 5 for size in sizes)
        wanted = b"".join(b"MSG a 1 %d\r\n%b\r\n" % (n, b"x" * n) * 5 for n in sizes)
        for _ in range(3):
            self.assertEqual(peer.send(said), wanted)
        runs = broker.factory.subjects[b"PUB a "].runs
        assert runs is not None
        self.assertEqual(sorted(runs), [1, 2])

    def test_wide_fan_out_is_sent_in_portions(self) -> None:
        """A burst to many subscribers does not need the burst times the subscribers in memory."""
        self.patch(bulk, "_SPREAD", 20_000)
        self.patch(bulk, "_SPREAD_PIECES", 1_000)
        broker = MemoryBroker()
        peers = [broker.connect(b"SUB > 1\r\n") for _ in range(100)]
        publisher = broker.connect()
        worst = 0
        flush = broker.hub.flush

        def watching() -> Any:
            nonlocal worst
            worst = max(worst, sum(len(b) for p in peers for b in p.protocol.batch))
            return flush()

        self.patch(broker.hub, "flush", watching)
        publisher.send(pub(b"a", b"x" * 20) * 500 + (pub(b"a", b"1") + pub(b"b", b"2")) * 200)
        self.assertLess(worst, 60_000)
        self.assertEqual({p.heard().count(b"MSG") for p in peers}, {900})
