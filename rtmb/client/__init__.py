"""A NATS client for Twisted, for rtmb and nats-server alike.

::

    client = await connect("nats://127.0.0.1:4222")
    subscription = client.subscribe("weather.*")
    client.publish("weather.oslo", "rain")
    async for message in subscription:
        print(message.subject, message.text)

All that takes time returns a Deferred, which can be awaited. docs/client.md tells the rest.
"""

from rtmb.client.client import Client, connect
from rtmb.client.errors import (
    AuthenticationFailed,
    BadSubject,
    BufferFull,
    ClientError,
    ConnectionClosed,
    ConnectionFailed,
    Disconnected,
    NoResponders,
    PayloadTooLarge,
    PermissionViolation,
    RequestTimeout,
    ServerError,
    SubscriptionEnded,
    Timeout,
)
from rtmb.client.events import Event
from rtmb.client.message import Headers, Message
from rtmb.client.options import ClientOptions, Stats
from rtmb.client.service import ClientService
from rtmb.client.subscription import Subscription

__all__ = [
    "AuthenticationFailed",
    "BadSubject",
    "BufferFull",
    "Client",
    "ClientError",
    "ClientOptions",
    "ClientService",
    "ConnectionClosed",
    "ConnectionFailed",
    "Disconnected",
    "Event",
    "Headers",
    "Message",
    "NoResponders",
    "PayloadTooLarge",
    "PermissionViolation",
    "RequestTimeout",
    "ServerError",
    "Stats",
    "Subscription",
    "SubscriptionEnded",
    "Timeout",
    "connect",
]
