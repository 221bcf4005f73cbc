"""`rtmb serve`: the twistd service, in the foreground, with the options of `rtmb.config`."""

from __future__ import annotations

import sys
from typing import Any

import click
from twisted.scripts import twistd

from rtmb import config
from rtmb.cli.options import Command

_METAVARS = {
    config.whole: "N",
    config.positive: "N",
    config.port_number: "PORT",
    config.size: "SIZE",
    config.positive_size: "SIZE",
    config.seconds: "SECONDS",
}


def _default(value: Any) -> str:
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20}MiB"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _option(name: str) -> click.Option:
    field = config.FIELDS[name]
    flag, text = "--" + name.replace("_", "-"), field.metadata["help"]
    if isinstance(field.default, bool):
        return click.Option([flag, name], is_flag=True, help=f"{text}.")
    several = isinstance(field.default, tuple)
    if several:
        text += "; may be repeated"
    shown = f"  [{_default(field.default)}]" if field.default not in ("", ()) else ""
    metavar = _METAVARS.get(field.metadata["parse"], "TEXT")
    return click.Option([flag, name], multiple=several, metavar=metavar, help=f"{text}.{shown}")


def serve(config: str | None, **given: Any) -> None:
    """Run the broker in the foreground until Ctrl+C.

    It is `twistd -n rtmb` with the same options. Each option is also a key of the TOML file
    (--max-payload is max_payload) and a variable of the environment (RTMB_MAX_PAYLOAD); the command
    line wins over the environment, and that over the file. SIZE may be written 4096, 64KiB or 1MiB.
    """
    arguments = ["-n", "--pidfile=", "rtmb"]
    if config:
        arguments += ["--config", config]
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value not in (None, False, ()):
            for each in value if isinstance(value, tuple) else (value,):
                arguments += [flag, each]
    sys.argv = ["twistd", *arguments]
    twistd.run()


serve_command = Command(
    "serve",
    callback=serve,
    help=serve.__doc__,
    params=[
        click.Option(["-c", "--config"], metavar="FILE", help="TOML file with settings."),
        *map(_option, config.FIELDS),
    ],
    examples="""
rtmb serve                                      on 127.0.0.1, port 4222
rtmb serve --port 0                             on a free port; the log says which
rtmb serve --interface 0.0.0.0 --config rtmb.toml
RTMB_TOKEN=secret rtmb serve --max-payload 4MiB
rtmb serve --journal 'orders.>' --journal 'sensors.*'
""",
)
