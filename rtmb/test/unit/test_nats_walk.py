"""Tests for `rtmb.doors.nats.walk`: it must not differ in anything from line mode and raw mode."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rtmb.core.publication import WHOLE
from rtmb.core.segments import Selection
from rtmb.core.subjects import OWN
from rtmb.doors.nats import walk
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

    def __init__(self, walking: bool, kinds: list[str], history: int) -> None:
        self.broker = MemoryBroker(walking=walking, history=history, journal=("a", "a.>"))
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
            "delivered": sorted((s.key, s.pattern, s.delivered) for s in hub.routing),
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
    def test_walk_and_lines_agree(
        self, kinds: list[str], steps: list[tuple[int, list[bytes], int]], history: int
    ) -> None:
        """Whatever is said by whom, cut anywhere: the same is heard, kept and counted."""
        walked, lines = Scene(True, kinds, history), Scene(False, kinds, history)
        for who, parts, cut in steps:
            for scene in (walked, lines):
                scene.say(who % len(kinds), b"".join(parts), cut)
        self.assertEqual(walked.seen(), lines.seen())


class WalkTests(SynchronousTestCase):
    def test_a_walk_is_taken(self) -> None:
        """These tests compare two ways indeed: what the walk takes does not reach line mode."""
        broker = MemoryBroker()
        peer = broker.connect()
        lines: list[bytes] = []
        self.patch(peer.protocol, "lineReceived", lines.append)
        peer.send(b"SUB a 1\r\n" + pub(b"a", b"y") * 10 + b"UNSUB 1\r\nPING\r\n")
        self.assertEqual(lines, [b"PING\r"])
        self.assertEqual(broker.hub.totals.in_msgs, 10)
        self.assertEqual(broker.hub.totals.out_msgs, 10)

    def test_permissions_are_remembered_within_bounds(self) -> None:
        """A user with permissions is not asked about each message; what is known is bounded."""
        self.patch(walk, "MOST_ALLOWED", 3)
        broker = MemoryBroker()
        peer = broker.connect()
        asked: list[str] = []

        def may(subject: str) -> bool:
            asked.append(subject)
            return subject != "no"

        peer.protocol.walk.may_publish = may
        peer.send(pub(b"a", b"") * 5)
        self.assertEqual(asked, ["a"])
        for i in range(10):
            peer.send(pub(b"s.%d" % i, b""))
        self.assertLessEqual(len(peer.protocol.walk.allowed), 3)
        heard = peer.send(pub(b"no", b"x") + pub(b"a", b""))
        self.assertEqual(heard, b"-ERR 'Permissions Violation for Publish to \"no\"'\r\n")
        self.assertEqual(broker.hub.totals.in_msgs, 16)

    def test_large_payloads(self) -> None:
        """From some size on they are sent from where they lie; whole or in parts it is the same."""
        broker = MemoryBroker()
        peer, other = broker.connect(b"SUB a 1\r\n"), broker.connect(b"SUB > 2\r\n")
        for size in (WHOLE - 1, WHOLE, WHOLE + 1, 600_000):
            payload = bytes(i % 251 for i in range(size))
            for cut in (0, 1, size // 2, size + 9):
                said = pub(b"a", payload) + pub(b"a", b"small")
                heard = peer.send(said[:cut]) + peer.send(said[cut:])
                wanted = b"MSG a 1 %d\r\n%b\r\nMSG a 1 5\r\nsmall\r\n" % (size, payload)
                self.assertEqual(heard, wanted)
                self.assertEqual(other.heard(), wanted.replace(b"MSG a 1", b"MSG a 2"))
                newest = broker.hub.newest("a", 2)
                self.assertEqual([m.payload for m in newest], [payload, b"small"])

    def test_wide_fan_out_is_sent_in_portions(self) -> None:
        """A burst to many subscribers does not need the burst times the subscribers in memory."""
        broker = MemoryBroker()
        broker.hub.spread = 20_000
        peers = [broker.connect(b"SUB > 1\r\n") for _ in range(100)]
        publisher = broker.connect()
        worst = 0
        send = peers[-1].protocol.flush

        def watching() -> bool:
            nonlocal worst
            worst = max(worst, sum(p.protocol.batch.size() for p in peers))
            return send()

        self.patch(peers[-1].protocol, "flush", watching)
        publisher.send(pub(b"a", b"x" * 20) * 500 + (pub(b"a", b"1") + pub(b"b", b"2")) * 200)
        self.assertLess(worst, 60_000)
        self.assertGreater(worst, 10_000)
        self.assertEqual({p.heard().count(b"MSG") for p in peers}, {900})
