"""A connection for the time of a command, with what happens to it told to the person."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import click

from rtmb.cli.options import Target
from rtmb.cli.runner import tell
from rtmb.cli.tls_files import client_tls
from rtmb.client import Client, Event, ServerError, connect
from rtmb.client.address import parse_url

#: Bytes that may wait to be sent before a fast publisher waits.
ENOUGH = 1 << 20


class CommandConnection:
    """A client, and what the server complained about."""

    def __init__(self, on_complaint: Callable[[Exception], object] | None = None) -> None:
        self.client: Client
        self._complaints: list[Exception] = []
        self._on_complaint = on_complaint

    def event(self, event: Event) -> None:
        if event.name in ("disconnected", "reconnected", "slow_reader", "lame_duck"):
            tell(str(event))
        elif event.name == "error" and isinstance(event.error, ServerError):
            self._complaints.append(event.error)
            if self._on_complaint is not None:
                self._on_complaint(event.error)

    async def confirm(self) -> None:
        """Wait until the server has dealt with all that was sent; raise what it did not like."""
        await self.client.flush()
        if self._complaints:
            raise self._complaints[0]

    async def make_room(self) -> None:
        """For a fast publisher: wait until the server has taken most of it."""
        if self.client.pending > ENOUGH:
            await self.client.ready()


@asynccontextmanager
async def connected(
    target: Target,
    reactor: Any,
    name: str,
    *,
    reconnect: bool = True,
    on_complaint: Callable[[Exception], object] | None = None,
) -> AsyncIterator[CommandConnection]:
    """Connect, and close at the end, whatever the end is."""
    connection = CommandConnection(on_complaint)
    url, *others = target.url.split(",")
    try:
        address, *_ = [parse_url(each) for each in (url, *others)]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    connection.client = await connect(
        url,
        servers=others,
        name=f"rtmb {name}",
        user=target.user,
        password=target.password,
        token=target.token,
        nkey_seed=target.nkey_seed,
        tls=client_tls(target.tls_ca, target.tls_cert, target.tls_key, address.host),
        reconnect=reconnect,
        on_event=connection.event,
        reactor=reactor,
    )
    try:
        yield connection
    finally:
        await connection.client.close()


def is_rtmb(client: Client) -> bool:
    return str(client.server_info.get("go", "")).startswith("python")
