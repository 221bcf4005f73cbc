"""Where bytes become control lines and payloads: a `LineReceiver` that copies nothing for a line.

`LineReceiver`'s contract stays: line mode for control lines, raw mode for a payload that is not
there yet. Its own loop copies the rest of the buffer for each line; `dataReceived` here goes
through the chunk with an offset, and lets the walk take the publications that are whole.
"""

from __future__ import annotations

from twisted.protocols.basic import LineReceiver

from rtmb.codecs import nats as codec
from rtmb.core.hub import Hub
from rtmb.doors.nats.walk import Walk


class Receiver(LineReceiver):
    """Whoever inherits it gives `lineReceived`, `payload_received`, `payload_misfit` and
    `lineLengthExceeded`."""

    delimiter = b"\n"  # and `\r` before it may be there or not
    #: False: every publication goes through line mode and raw mode. The tests run all both ways.
    walking = True

    hub: Hub
    door: str
    walk: Walk
    #: Whether publications may be taken by the walk: not before it is known who this is.
    may_walk = False
    #: Set when the connection is to close: whatever else comes is not read.
    done = False
    #: When something last came from this client.
    last_input = 0.0

    _publication: codec.PublishArguments

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._have = 0

    def payload_received(self, publication: codec.PublishArguments, payload: bytes) -> None:
        """A publication is there as a whole."""
        raise NotImplementedError

    def payload_misfit(self) -> None:
        """The payload did not end where its size said."""
        raise NotImplementedError

    # Line mode

    def dataReceived(self, data: bytes) -> None:
        self.last_input = self.hub.clock()
        if self.done:
            return
        if not self.walking:
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
        if start and idle and not codec.may_become_operation(start):
            self.lineReceived(start)  # no need to wait for its end to say that it is wrong

    def _receive(self, data: bytes) -> None:
        """What `LineReceiver.dataReceived` does, without copying the rest for each line."""
        self._buffer = b""
        pos, end = 0, len(data)
        while pos < end and not self.done and not self.paused:
            if not self.line_mode:
                pos = self._take_payload(data, pos)
                continue
            if self.may_walk:
                pos = self.walk.go(data, pos, self.last_input, self.door)
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

    def expect_payload(self, publication: codec.PublishArguments) -> None:
        """A ``PUB`` or ``HPUB`` line has come: its payload is next."""
        self._publication = publication
        self._pieces, self._have = [], 0
        self.setRawMode()

    # Raw mode

    def _take_payload(self, data: bytes, pos: int) -> int:
        """Take what the payload needs from a chunk, and not a byte more; returns where it ends."""
        size = self._publication.size
        if not self._have:
            end = pos + size
            if data[end : end + 2] == codec.CRLF:
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
        elif whole[size : size + 2] == codec.CRLF:
            used = size + 2
        elif whole[size:] == b"\r":
            self._pieces = [whole]
            return
        else:
            self.payload_misfit()
            return
        self._payload_done(whole[:size])
        self.setLineMode(whole[used:])

    def _payload_done(self, payload: bytes) -> None:
        self._pieces, self._have = [], 0
        self.line_mode = 1
        self.payload_received(self._publication, payload)
