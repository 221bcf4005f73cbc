"""`rtmb pipeline run FILE`: several jobs in one session, described in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rtmb.cli.pipeline.task import Task, perform
from rtmb.cli.pipeline.types import Common, session_options

#: What the file may have beside its jobs.
_KEYS = ("servers", "options", "master", "job")


class FileError(click.ClickException):
    """The file is wrong; the text says where and how."""


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--once", is_flag=True, help="Every job does what is there and ends.")
@session_options
def run(file: Path, once: bool, json: bool, log: str | None, master: str | None) -> None:
    """Run the jobs that FILE describes, in one Spark session.

    A job is a table [[job]] whose type is a command and whose other keys are that command's
    options, without the dashes; subject is its argument.

    \b
    rtmb pipeline run pipeline.toml
    """
    found = read(file)
    common = Common(master=master or found.get("master"), json=json, log=log)
    tasks = [
        replace(task, common=replace(task.common, master=common.master, json=json, log=log))
        for task in tasks_of(found, file.name, once, common.master)
    ]
    perform(tasks, common, file.stem)


def read(file: Path) -> dict[str, Any]:
    """The file, if it is one of jobs."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{file.name} is no TOML: {error}") from None
    for key in found:
        if key not in _KEYS:
            raise FileError(f"{file.name}: no key {key}; there are {', '.join(_KEYS)}")
    jobs = found.get("job")
    if not isinstance(jobs, list) or not jobs:
        raise FileError(f"{file.name}: there is no [[job]] in it")
    return found


def tasks_of(found: Mapping[str, Any], name: str, once: bool, master: str | None) -> Iterator[Task]:
    """The jobs as the tasks that their commands would be."""
    from rtmb.cli.pipeline import JOBS

    places: set[str | None] = set()
    shared = []
    if "servers" in found:
        shared += ["--servers", str(found["servers"])]
    for key, value in found.get("options", {}).items():
        shared += ["--option", f"{key}={value}"]
    if master is not None:
        shared += ["--master", master]
    for number, job in enumerate(found["job"], 1):
        given = dict(job)
        kind = given.pop("type", None)
        where = f"{name}, job {number}" + (f" ({kind})" if kind else "")
        if kind not in JOBS:
            raise FileError(f"{where}: type must be one of {', '.join(JOBS)}")
        command = JOBS[kind]
        if once and any(parameter.name == "once" for parameter in command.params):
            given["once"] = True
        try:
            context = command.make_context(kind, [*shared, *_arguments(given)])
            with context:
                task: Task = command.invoke(context)
        except click.UsageError as error:
            raise FileError(f"{where}: {error.format_message()}") from None
        if task.place is not None and task.place in places:
            raise FileError(f"{where}: {task.place} is a job's already, and each needs its own")
        places.add(task.place)
        yield task


def _arguments(job: Mapping[str, Any]) -> list[str]:
    """Keys and values as they would stand on the command line."""
    found = []
    for key, value in job.items():
        if key in ("master", "json", "log"):
            raise click.UsageError(f"{key} is of the session: give it to `rtmb pipeline run`")
        if value is True:
            found.append(f"--{key}")
        elif value is False:
            found.append(f"--no-{key}")
        elif key not in ("subject", "sql"):
            for each in value if isinstance(value, list) else [value]:
                found.append(f"--{key}={each}")
    arguments = [str(job[key]) for key in ("sql", "subject") if key in job]
    return [*found, "--", *arguments]
