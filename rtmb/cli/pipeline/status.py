"""`rtmb pipeline status`: who reads the journal, and how far each is behind. Needs no Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rtmb.cli.pipeline import checks
from rtmb.cli.pipeline.types import Common, broker_options
from rtmb.spark.spans import span
from rtmb.spark.transport import BrokerError, JournalClient, UnreachableError


@click.command()
@broker_options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(servers: str, options: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """Show who reads the journal, how far behind each is, and who is about to lose messages.

    The exit status is 1 when someone is.

    \b
    rtmb pipeline status --servers http://127.0.0.1:8080
    """
    common = Common(servers, options)
    checks.broker(common)
    access = replace(checks.options(common).access, retries=0, timeout=checks.PATIENCE)
    try:
        journal = JournalClient(access).json("GET", "/journalz")["journal"]
    except (BrokerError, UnreachableError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(journal))
    else:
        _show(journal)
    if any(lease["warned"] or lease["lost"] for lease in journal["leases"]):
        raise click.exceptions.Exit(1)


def _show(journal: dict[str, Any]) -> None:
    console = Console()
    full = 100 * journal["bytes"] / journal["max_bytes"]
    console.print(
        f"journal of {', '.join(journal['patterns'])}: {journal['messages']:,} messages,"
        f" {full:.0f} % full, next {journal['next']:,}",
        highlight=False,
    )
    if not journal["leases"]:
        console.print("nobody reads it: no consumer holds a lease", style="dim")
        return
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("consumer", overflow="fold")
    for name in ("behind", "age", "reads/s", "comes/s", "caught up in", "loses in", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    for lease in sorted(journal["leases"], key=lambda lease: -lease["lag"]):
        table.add_row(
            lease["consumer"],
            f"{lease['lag']:,}",
            span(lease["lag_seconds"]),
            *("–" if lease[n] is None else f"{lease[n]:,.0f}" for n in ("taken", "incoming")),
            "now" if not lease["lag"] else _span(lease["catches_up"]),
            _span(lease["time_left"]),
            f"{lease['lost']:,}",
            style="bold red" if lease["warned"] or lease["lost"] else None,
        )
    console.print(table)


def _span(seconds: float | None) -> str:
    return "–" if seconds is None else span(seconds)
