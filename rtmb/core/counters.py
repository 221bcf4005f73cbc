"""What is counted: messages, bytes, and changes of subscriptions."""

from __future__ import annotations


class Counters:
    """Messages and payload bytes, in (published) and out (delivered), and how often a subscription
    was made or ended."""

    __slots__ = ("changes", "in_bytes", "in_msgs", "out_bytes", "out_msgs")

    def __init__(self) -> None:
        self.in_msgs = 0
        self.in_bytes = 0
        self.out_msgs = 0
        self.out_bytes = 0
        self.changes = 0

    def add(self, other: Counters) -> None:
        self.in_msgs += other.in_msgs
        self.in_bytes += other.in_bytes
        self.out_msgs += other.out_msgs
        self.out_bytes += other.out_bytes
        self.changes += other.changes
