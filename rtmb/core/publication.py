"""One message on its way through the hub, where it lies: a part of the bytes that were read."""

from __future__ import annotations

from rtmb.core import raw
from rtmb.core.message import Message
from rtmb.core.subjects import from_raw, to_raw

#: A message as it is kept: its payload, if that is all there is to it; with reply and headers; or
#: the object, if a door made one that knows more.
Entry = bytes | tuple[bytes, bytes | None, bytes | None] | Message

#: From this size on a payload is not copied to each subscriber, but sent from where it lies: as
#: bytes of its own, of which there is one copy for history and all subscribers.
WHOLE = 8192
_WHOLE = WHOLE


class Publication:
    """What `Hub.pass_on` passes on. Doors that read many messages at a time make one of these for
    all of them, and set it anew for each."""

    __slots__ = ("_message", "_payload", "data", "door", "end", "headers", "reply", "size", "start",
                 "subject", "time")  # fmt: skip

    def __init__(self, time: float, door: str) -> None:
        #: When it came: one object for all messages of a chunk, so that history can share it.
        self.time = time
        self.door = door
        self.subject = b""
        self.reply: bytes | None = None
        #: The header block, as it stands on the wire, or None.
        self.headers: bytes | None = None
        #: Where the payload lies; a `start` below 0: nobody has needed it yet, see `lay_out`.
        self.data = b""
        self.start = 0
        self.end = 0
        #: Bytes of payload and headers.
        self.size = 0
        self._payload: bytes | None = None
        self._message: Message | None = None

    def place(
        self,
        subject: bytes,
        reply: bytes | None,
        headers: bytes | None,
        data: bytes,
        start: int,
        end: int,
    ) -> None:
        """Be another message."""
        self.subject = subject
        self.reply = reply
        self.headers = headers
        self.size = end - start
        if headers is not None:
            self.size += len(headers)
        self._message = None
        if end - start >= _WHOLE:
            self.data = data if end - start == len(data) else raw.cut(data, start, end)
            self._payload = self.data
            self.start = 0
            self.end = len(self.data)
        else:
            self._payload = None
            self.data = data
            self.start = start
            self.end = end

    def place_message(self, message: Message) -> None:
        """Be a message that somebody has made."""
        self.subject = to_raw(message.subject)
        self.reply = None if message.reply is None else to_raw(message.reply)
        self.headers = message.headers
        self.size = message.size
        self.door = message.door
        self._message = message
        # To make bytes of a value takes longer than all the rest, and often nobody wants them
        # (benchmark: msgpack).
        self._payload = None
        self.start = -1

    def lay_out(self) -> None:
        """Make the payload of a message that somebody has made."""
        self.data = self._payload = self.message().payload
        self.start = 0
        self.end = len(self.data)

    def payload(self) -> bytes:
        """The payload as bytes of its own, which may be kept."""
        if self.start < 0:
            self.lay_out()
        if self._payload is None:
            self._payload = raw.cut(self.data, self.start, self.end)
        return self._payload

    def message(self) -> Message:
        """The message as an object, for those who want one: the same for all of them."""
        if self._message is None:
            self._message = Message(
                from_raw(self.subject),
                self.payload(),
                reply=None if self.reply is None else from_raw(self.reply),
                headers=self.headers,
                time=self.time,
                door=self.door,
                size=self.size,
            )
        return self._message

    def entry(self) -> Entry:
        """The message as history keeps it: no more than there is to it."""
        if self._message is not None and not self._message.plain:
            return self._message
        if self.reply is None and self.headers is None:
            return self.payload()
        return self.payload(), self.reply, self.headers
