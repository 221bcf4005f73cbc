"""The load client is part of the package: `rtmb bench` measures with it too."""

from rtmb.cli.load import (
    PING,
    PONG,
    Address,
    BenchmarkError,
    Connection,
    Message,
    Route,
    Sender,
    delivered_bytes,
    paced_latencies,
    ping_pong_latencies,
    publish_frames,
    pump,
)

__all__ = [
    "PING",
    "PONG",
    "Address",
    "BenchmarkError",
    "Connection",
    "Message",
    "Route",
    "Sender",
    "delivered_bytes",
    "paced_latencies",
    "ping_pong_latencies",
    "publish_frames",
    "pump",
]
