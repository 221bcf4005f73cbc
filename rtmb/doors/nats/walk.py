"""The bulk walk: how the text door publishes millions of messages a second.

`BulkReceiver` is a `LineReceiver`: control lines come to `lineReceived`, a payload that is not
there yet is raw mode. `LineReceiver`'s own loop copies the rest of the buffer for each line, so
`dataReceived` here walks the chunk with an offset instead, and in front of it goes the walk proper:

- A ``PUB`` line is two dictionary hits: its start, ``PUB subject ``, is a `Known` with the route
  and, for each subscriber, the ready start of its ``MSG`` line; and its size. Lines that come again
  and again are one hit. From the size on, ``PUB`` and ``MSG`` are the same bytes, so a message is
  passed on as one slice, its tail. (benchmark: 1,000 subjects)
- A line that repeats is a run: a regular expression finds how far it goes, one `split` takes it
  apart into tails and one `join` for each subscriber puts it together again. (benchmarks: 1→1, 1→8,
  publish)
- Everything else leaves the walk and takes the plain path, which is all that `bulk = False` has.

What the walk may skip, it has checked before: a line enters the cache when the plain path has
published it (size, subject, permission), and a route dies when subscriptions change.
"""

from __future__ import annotations

import re
from typing import cast

from twisted.protocols.basic import LineReceiver

from rtmb.codecs import nats as wire
from rtmb.core.history import MESSAGE_COST, Topic
from rtmb.core.hub import Hub
from rtmb.core.message import Message
from rtmb.core.routing import QueueGroup, Route, Share, Subscription
from rtmb.interfaces import ISubscriber

#: How many subjects, and how many sizes, are kept ready: about 300 bytes each.
SUBJECT_CACHE = 65_536
#: How many whole lines are kept ready. More would not stay in the processor's cache, and there a
#: line is slower to find than its subject and its size (benchmark: 1,000 subjects).
LINE_CACHE = 2048
#: With fewer messages than this a run costs more than it saves.
_RUN = 4
#: Of messages larger than this, copying costs more than taking them one by one.
_RUN_SIZE = 4096
#: Runs of so many sizes are found on one subject. Each needs a pattern, which takes as long to make
#: as many messages, and traffic of more sizes seldom has runs.
_RUN_SIZES = 64
#: The most that is put together before it is sent, so that many subscribers of one burst do not
#: need many times its memory: bytes of runs, and pieces (a slot in a list each) of other messages.
_SPREAD = 16 << 20
_SPREAD_PIECES = 1 << 20
#: From this many subscribers on, the walk looks at that.
_WIDE = 64


class Known:
    """A subject that was seen before: its key is the ``PUB`` line up to the size."""

    __slots__ = ("keep", "keep_time", "route", "runs", "start", "topic")

    def __init__(self, start: bytes, route: Route, topic: Topic) -> None:
        self.start = start
        self.route = route
        self.topic = topic
        #: Two calls that keep a message.
        self.keep, self.keep_time = topic.ring.append, topic.times.append
        #: Finds runs of messages of one size, by size. None when runs do not pay: payloads hold
        #: the start of the line.
        self.runs: dict[int, re.Pattern[bytes]] | None = {}


class Member(Share):
    """A member of a queue group, ready to be sent to (benchmark: queue group, 8 subjects)."""

    __slots__ = ("batch", "start", "subscriber")

    def __init__(self, subscription: Subscription, subject: str) -> None:
        super().__init__(subscription)
        self.batch, self.start, self.subscriber = _target(subscription, subject)


class Plan:
    """A route as the walk needs it."""

    __slots__ = ("careful", "groups", "journal", "runs", "special", "wire")

    def __init__(self, route: Route, hub: Hub) -> None:
        #: The journal, if it keeps this subject.
        journal = hub.journal
        self.journal = journal if journal is not None and journal.wants(route.subject) else None
        # A client with one subscription that needs care takes that way for all: it is to get its
        # copies of a message in the order of its subscriptions.
        watched = {s.subscriber for s in route.plain if not _in_bulk(s)}
        served = tuple(s for s in route.plain if s.subscriber not in watched)
        #: Batch, ready start of ``MSG``, and subscriber, for those who just get the bytes.
        self.wire = tuple(_target(s, route.subject) for s in served)
        #: Those for whom the hub must look at each message.
        self.careful = tuple(s for s in route.plain if s.subscriber in watched)
        #: Each queue group, with what the walk needs of its members; nothing if some are not in
        #: bulk: then the hub looks.
        self.groups = tuple((group, _members(group, route.subject)) for group in route.groups)
        #: Whether there is more to do than to pass the bytes to the few in `wire`.
        wide = len(self.wire) >= _WIDE
        journaled = self.journal is not None
        self.special = bool(self.careful or route.groups or journaled or wide)
        #: Whether runs may be taken whole: not if the hub must look at each message, nor if a
        #: client would get the run of one of its subscriptions before that of another.
        members = [member for _, members in self.groups for member in members]
        receivers = [s.subscriber for s in served] + [m.subscriber for m in members]
        simple = not self.careful and all(members for _, members in self.groups)
        self.runs = simple and len(set(receivers)) == len(receivers)
        route.bulk = served
        route.shares = tuple(members)
        route.plan = self


def _in_bulk(subscription: Subscription) -> bool:
    return subscription.maximum is None and isinstance(subscription.subscriber, BulkReceiver)


def _members(group: QueueGroup, subject: str) -> tuple[Member, ...]:
    if not all(map(_in_bulk, group.members)):
        return ()
    return tuple(Member(member, subject) for member in group.members)


def _target(subscription: Subscription, subject: str) -> tuple[list[bytes], bytes, ISubscriber]:
    subscriber = subscription.subscriber
    batch: list[bytes] = subscriber.batch  # type: ignore[attr-defined]
    return batch, wire.msg_start(wire.to_wire(subject), subscription.key), subscriber


class BulkReceiver(LineReceiver):
    """A `LineReceiver` that publishes in bulk where it can.

    Whoever inherits it gives `lineReceived`, `payload_received` and `lineLengthExceeded`."""

    delimiter = b"\n"  # and `\r` before it may be there or not
    #: False: the plain path only. The tests run everything both ways.
    bulk = True

    hub: Hub
    door: str
    #: Where messages for this client are collected.
    batch: list[bytes]
    #: The subjects that this client may publish on in bulk, by the start of their lines, ``PUB
    #: subject ``; shared by all who may do the same.
    subjects: dict[bytes, Known]
    #: Sizes as lines end in them, ``128\r``, that are written plainly and not too large.
    sizes: dict[bytes, int]
    #: Whole lines: the subject, the size, and where in the line that stands.
    lines: dict[bytes, tuple[Known, int, int]]
    #: Set when the connection is to close: whatever else comes is not read.
    done = False
    #: When something last came from this client.
    last_input = 0.0
    #: Subscribers found to be far behind while this chunk was published.
    behind: list[ISubscriber]

    _publication: wire.Publication
    _line = b""

    def __init__(self) -> None:
        self.behind = []
        self._pieces: list[bytes] = []
        self._have = 0
        self._noted: list[str] = []
        self._noted_tails: list[bytes] = []

    def payload_received(self, publication: wire.Publication, payload: bytes) -> bool:
        """Publish; returns whether the same line may be published in bulk from now on."""
        raise NotImplementedError

    # Line mode

    def dataReceived(self, data: bytes) -> None:
        self.last_input = self.hub.clock()
        if self.done:
            return
        if not self.bulk:
            LineReceiver.dataReceived(self, data)
        elif self._busyReceiving:
            self._buffer += data
        else:
            self._busyReceiving = True
            try:
                self._receive(self._buffer + data if self._buffer else data)
            finally:
                self._busyReceiving = False
        start = self._buffer
        idle = self.line_mode and not (self._busyReceiving or self.paused or self.done)
        if start and idle and not wire.may_become_operation(start):
            self.lineReceived(start)  # no need to wait for its end to say that it is wrong

    def _receive(self, data: bytes) -> None:
        """What `LineReceiver.dataReceived` does, without copying the rest for each line."""
        self._buffer = b""
        pos, end = 0, len(data)
        while pos < end and not self.done and not self.paused:
            if not self.line_mode:
                pos = self._payload_walk(data, pos)
                continue
            if self.subjects:
                pos = self._walk(data, pos)
            eol = data.find(b"\n", pos)
            if eol < 0:
                if end - pos > self.MAX_LENGTH:
                    self.lineLengthExceeded(data[pos:])
                break
            line = data[pos:eol]
            pos = eol + 1
            if len(line) > self.MAX_LENGTH:
                self.lineLengthExceeded(line)
            else:
                self.lineReceived(line)
        if not self.done:
            self._buffer = data[pos:] + self._buffer

    def expect_payload(self, line: bytes, publication: wire.Publication) -> None:
        """A ``PUB`` or ``HPUB`` line has come: its payload is next."""
        self._line, self._publication = line, publication
        self._pieces, self._have = [], 0
        self.setRawMode()

    # Raw mode

    def _payload_walk(self, data: bytes, pos: int) -> int:
        """Take what the payload needs from a chunk, and not a byte more; returns where it ends."""
        size = self._publication.size
        if not self._have:
            end = pos + size
            if data[end : end + 2] == wire.CRLF:
                self._payload_done(data[pos:end])
                return end + 2
        missing = size + 1 - self._have if self._have <= size else 1
        piece = data[pos : pos + missing]
        self.rawDataReceived(piece)
        return pos + len(piece)

    def rawDataReceived(self, data: bytes) -> None:
        self._pieces.append(data)
        self._have += len(data)
        size = self._publication.size
        if self._have <= size:
            return
        whole = b"".join(self._pieces)
        if whole[size : size + 1] == b"\n":
            used = size + 1
        elif whole[size : size + 2] == b"\r\n":
            used = size + 2
        elif whole[size:] == b"\r":
            self._pieces = [whole]
            return
        else:
            self.payload_misfit()
            return
        self._payload_done(whole[:size])
        self.setLineMode(whole[used:])

    def payload_misfit(self) -> None:
        """The payload did not end where its size said."""
        raise NotImplementedError

    def _payload_done(self, payload: bytes) -> None:
        self._pieces, self._have = [], 0
        self.line_mode = 1
        publication, line = self._publication, self._line
        if self.payload_received(publication, payload):
            self._remember_line(line, publication)

    def _remember_line(self, line: bytes, publication: wire.Publication) -> None:
        """Let the walk have this line, if it is written the way the walk passes it on."""
        subject, reply, _, size = publication[:4]
        if reply is not None or line != b"PUB %b %d\r" % (subject, size):
            return
        start, end = b"PUB %b " % subject, b"%d\r" % size
        known = self.subjects.get(start)
        new = known is None or not known.route.live
        if not new and end in self.sizes:
            return
        self.forget_if_full()
        self.sizes[end] = size
        if new:
            hub, name = self.hub, wire.from_wire(subject)
            topic, route = hub.history.get(name), hub.trie.ready(name)
            if topic is not None and route is not None:
                self.subjects[start] = Known(start, route, topic)

    def forget_if_full(self) -> None:
        """Begin anew when most of what is kept may be of no more use. Only now and then: traffic
        with more lines than that does better with a part of them than with none."""
        for cache in (self.subjects, self.sizes):
            if len(cache) >= SUBJECT_CACHE:
                cache.clear()
        if len(self.lines) >= LINE_CACHE:
            self.lines.clear()

    # The walk

    def _walk(self, data: bytes, pos: int) -> int:
        """Publish as long as the lines are known and the messages are whole; returns where to go
        on. It does what `Hub.deliver` does, in bulk."""
        find, find_back, awake, now = data.find, data.rfind, self.hub.awake, self.last_input
        subjects, sizes, lines = self.subjects.get, self.sizes.get, self.lines.get
        by_line = True
        end_of_data = len(data)
        messages = total = in_runs = kept = spread = size_before = 0
        before: Known | None = None
        while True:
            eol = find(b"\n", pos)
            if eol < 0:
                break
            if by_line and (line := lines(data[pos:eol])) is not None:
                subject, size, start_of_tail = line
                start_of_tail += pos
            else:
                start_of_tail = find_back(b" ", pos, eol) + 1
                known = subjects(data[pos:start_of_tail])
                size = sizes(data[start_of_tail:eol], -1)
                if known is None or size < 0:
                    break
                subject = known
                if by_line:
                    by_line = len(self.lines) < LINE_CACHE  # or these lines are too many for it
                    if by_line:
                        self.lines[data[pos:eol]] = subject, size, start_of_tail - pos
            end = eol + size + 3
            if end > end_of_data or data[end - 1] != 10 or data[end - 2] != 13:
                break
            route = subject.route
            if not route.live:
                self.subjects.pop(subject.start, None)
                self.lines.pop(data[pos:eol], None)
                break
            plan: Plan = route.plan or Plan(route, self.hub)  # type: ignore[assignment]
            if subject is before and size == size_before and size <= _RUN_SIZE and plan.runs:
                count = self._run(subject, size, plan, data, pos, end - pos)
                if count:
                    messages += count
                    total += count * size
                    in_runs += count
                    kept += min(count, self.hub.history.depth) * (size + MESSAGE_COST)
                    pos += count * (end - pos)
                    before = None
                    continue
            before, size_before = subject, size
            tail = data[start_of_tail:end]
            subject.keep(tail)
            subject.keep_time(now)
            route.hits += 1
            route.bytes += size
            messages += 1
            total += size
            kept += size
            for batch, start, subscriber in plan.wire:
                if not batch:
                    awake.append(subscriber)
                batch.append(start)
                batch.append(tail)
            if plan.special:
                self._deliver_one(plan, route, tail, size)
                spread += len(plan.wire) * 2
                if spread > _SPREAD_PIECES:
                    spread = 0
                    self.behind += self.hub.flush()
            pos = end
        self._journalize()
        if messages:
            self.hub.count_in(messages, total, cast(ISubscriber, self))
            self.hub.remembered(kept + (messages - in_runs) * MESSAGE_COST)
        return pos

    def _run(self, known: Known, size: int, plan: Plan, data: bytes, pos: int, stride: int) -> int:
        """Publish a run of one line at once; returns how many messages it had, or 0 if it is too
        short to be worth it."""
        start_of_line = known.start
        if known.runs is None:
            return 0
        pattern = known.runs.get(size)
        if pattern is None:
            if len(known.runs) >= _RUN_SIZES:
                return 0
            whole = re.escape(start_of_line) + b"%d\r\n.{%d}\r\n" % (size, size)
            pattern = known.runs[size] = re.compile(b"(?s:" + whole + b")++")
        most = max(_RUN, _SPREAD // (stride * (len(plan.wire) or 1)))
        found = pattern.match(data, pos, pos + most * stride)
        count = (found.end() - pos) // stride if found is not None else 0
        if count < _RUN:
            return 0
        # The start of a line holds no line feed, so no find of it reaches from one message into
        # the next: if it is found as often as there are messages, it is found nowhere but at
        # their starts.
        tails = data[pos : pos + count * stride].split(start_of_line)
        if len(tails) != count + 1:
            known.runs = None
            return 0
        awake, topic, route = self.hub.awake, known.topic, known.route
        newest = tails[max(1, len(tails) - self.hub.history.depth) :]
        topic.ring.extend(newest)
        topic.times.extend([self.last_input] * len(newest))
        if plan.journal is not None:
            self._noted += [route.subject] * count
            self._noted_tails += tails[1:]
        route.hits += count
        route.bytes += count * size
        for batch, start, subscriber in plan.wire:
            if not batch:
                awake.append(subscriber)
            batch.append(start.join(tails))
        for group, members in plan.groups:
            self._run_to_group(group, members, tails, size)
        if len(plan.wire) * count * stride > _SPREAD // 2:
            self.behind += self.hub.flush()
        return count

    def _run_to_group(
        self, group: QueueGroup, members: tuple[Member, ...], tails: list[bytes], size: int
    ) -> None:
        """Deal a run out to the members of a queue group, in turn."""
        n = len(members)
        if any(m.subscriber.stalled for m in members):
            for tail in tails[1:]:
                self._deal(group, members, tail, size)
            return
        for step in range(min(n, len(tails) - 1)):
            member = members[(group.turn + step) % n]
            share = tails[1 + step :: n]
            if not member.batch:
                self.hub.awake.append(member.subscriber)
            member.batch.append(member.start + member.start.join(share))
            member.hits += len(share)
            member.bytes += len(share) * size
        group.turn = (group.turn + len(tails) - 1) % n

    def _deliver_one(self, plan: Plan, route: Route, tail: bytes, size: int) -> None:
        """Deliver one message to those who do not just get the bytes."""
        if plan.journal is not None:
            self._noted.append(route.subject)
            self._noted_tails.append(tail)
        if plan.careful:
            message = self._message(route.subject, tail)
            for subscription in plan.careful:
                self.hub.deliver_to(subscription, message)
        for group, members in plan.groups:
            if members:
                self._deal(group, members, tail, size)
            elif (chosen := group.next()) is not None:
                self.hub.deliver_to(chosen, self._message(route.subject, tail))
        if not route.live:  # somebody's last message: the route is gone, and what it counted
            self.hub.settle(route)

    def _deal(self, group: QueueGroup, members: tuple[Member, ...], tail: bytes, size: int) -> None:
        """Give one message to the member whose turn it is, as `QueueGroup.next` says."""
        at = group.turn % len(members)
        member = members[at]
        if member.subscriber.stalled:
            chosen = group.next()
            member = next(m for m in members if m.subscription is chosen)
        else:
            group.turn = at + 1
        batch = member.batch
        if not batch:
            self.hub.awake.append(member.subscriber)
        batch.append(member.start)
        batch.append(tail)
        member.hits += 1
        member.bytes += size

    def _journalize(self) -> None:
        """Give the journal what this walk noted for it (benchmark: journal)."""
        if self._noted and self.hub.journal is not None:
            self.hub.journal.extend(self._noted, self.last_input, self.door, self._noted_tails)
            self._noted, self._noted_tails = [], []

    def _message(self, subject: str, tail: bytes) -> Message:
        payload = tail[tail.index(b"\n") + 1 : -2]
        return Message(subject, payload, time=self.last_input, door=self.door)
