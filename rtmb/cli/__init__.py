"""The `rtmb` command. Each of its commands is a module here, loaded when it is asked for: starting
Python costs enough as it is. docs/cli.md is the manual."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem, get_completion_class

from rtmb import __version__, compiled


class Place(NamedTuple):
    """Where a command is, and what the list of commands says of it."""

    module: str
    name: str
    help: str


COMMANDS = {
    "Run": {
        "serve": Place("rtmb.cli.serve", "serve_command", "Run the broker."),
        "top": Place("rtmb.cli.top", "top", "Watch connections, subjects and rates."),
    },
    "Messages": {
        "pub": Place("rtmb.cli.messages", "pub", "Publish."),
        "sub": Place("rtmb.cli.messages", "sub", "Subscribe and print what comes."),
        "request": Place("rtmb.cli.messages", "request", "Ask, and print the answer."),
        "reply": Place("rtmb.cli.reply", "reply", "Answer requests."),
        "record": Place("rtmb.cli.recording", "record", "Write what is published to a file."),
        "replay": Place("rtmb.cli.recording", "replay", "Publish a recording with its timing."),
    },
    "Measure": {
        "bench": Place("rtmb.cli.bench", "bench", "Measure rates and latencies."),
        "test-client": Place("rtmb.cli.msgpack_commands", "test_client", "Load the msgpack door."),
        "log-metrics": Place(
            "rtmb.cli.msgpack_commands", "log_metrics", "Print the broker's metrics."
        ),
    },
    "More": {
        "pipeline": Place("rtmb.cli.pipeline", "pipeline", "Run Spark jobs on the journal."),
        "completion": Place("rtmb.cli", "completion", "Print a script for the shell's Tab key."),
    },
}
_PLACES = {name: place for commands in COMMANDS.values() for name, place in commands.items()}


class LazyGroup(click.Group):
    """Knows its commands by name, and loads the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _PLACES.get(cmd_name)
        if place is None:
            return None
        try:
            module = import_module(place.module)
        except ModuleNotFoundError as error:
            message = f"{cmd_name} needs the package {error.name}, which is not installed"
            raise click.ClickException(message) from None
        command: click.Command = getattr(module, place.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, place.help) for name, place in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Ctrl+C ends a command with the same status before and after its reactor runs."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click does it, but loads nothing: someone is waiting with a finger on Tab."""
        commands = [
            CompletionItem(name, help=place.help)
            for name, place in _PLACES.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


def _tell_version(context: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"rtmb {__version__} ({compiled.form()})")
        context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`rtmb COMMAND --help` shows examples. The server is given by --server or NATS_URL.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_tell_version,
    help="Show the version, and whether it runs compiled, and exit.",
)
def rtmb() -> None:
    """A real-time message broker, and all that goes with it."""


@click.command(epilog="For bash: echo 'eval \"$(rtmb completion bash)\"' >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands and options."""
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(rtmb, {}, "rtmb", "_RTMB_COMPLETE").source())


def main() -> None:
    """The console script."""
    rtmb(prog_name="rtmb" if sys.argv[0].endswith("__main__.py") else None)
