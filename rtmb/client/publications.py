"""What may be published, and how it stands on the wire."""

from __future__ import annotations

from rtmb.client.errors import BadSubject
from rtmb.client.requests import INBOX
from rtmb.codecs import nats as wire
from rtmb.core.subjects import is_pattern, is_subject, to_raw

#: The longest subject: a line of the protocol has 4096 bytes, and holds more than the subject.
_MAX_SUBJECT = 1024
#: How many subjects' ready-made beginnings of PUB are kept.
_MOST_STARTS = 4096


class PublicationStarts(dict[str, bytes]):
    """The beginning of PUB for each subject, checked and made when it is first asked for
    (benchmarks/client.py, publish)."""

    def __missing__(self, subject: str) -> bytes:
        start = wire.pub_start(subject_bytes(subject))
        if not subject.startswith(INBOX):  # those do not come twice
            if len(self) >= _MOST_STARTS:
                self.clear()
            self[subject] = start
        return start


def subject_bytes(subject: str) -> bytes:
    """A subject to publish on, as it stands on the wire."""
    if not is_subject(subject) or not _fits(subject):
        raise BadSubject(f"cannot publish to {_shortened(subject)}")
    return to_raw(subject)


def check_subscription(pattern: str, queue: str | None) -> None:
    """Whether this can be subscribed to."""
    if not is_pattern(pattern) or not _fits(pattern):
        raise BadSubject(f"cannot subscribe to {_shortened(pattern)}")
    if queue is not None and not (is_pattern(queue) and _fits(queue)):
        raise BadSubject(f"not a queue's name: {_shortened(queue)}")


def payload_bytes(payload: object) -> bytes:
    """A payload that is not bytes yet: text becomes UTF-8, buffers are copied."""
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    raise TypeError(f"a payload is bytes or text, not {type(payload).__name__}")


def _fits(text: str) -> bool:
    return len(to_raw(text)) <= _MAX_SUBJECT


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "…")
