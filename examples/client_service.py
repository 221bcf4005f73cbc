"""A service that answers what time it is, and stays connected whatever happens to the broker:
``NATS_URL=nats://127.0.0.1:4222 twistd -ny examples/client_service.py``."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from twisted.application.service import Application

from rtmb.client import ClientService, Message


def tell_time(message: Message) -> None:
    message.respond(datetime.now(UTC).isoformat())


application = Application("clock")
service = ClientService(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"), name="clock example")
service.client.subscribe("time.now", queue="clocks", callback=tell_time)
service.setServiceParent(application)
