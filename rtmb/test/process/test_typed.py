"""What people type into telnet and nc, with the real programs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from rtmb.test.support.processes import (
    Typist,
    WithBroker,
    need,
)

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
