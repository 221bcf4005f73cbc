"""How the jobs get a Spark session, and what they say when there is no Spark to get it from."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What Spark 4 needs at least.
OLDEST_JAVA = 17

LOCAL = "local[*]"

#: What differs from Spark's defaults everywhere. A streamed batch is small: two hundred shuffle
#: tasks would cost more than its data, and adaptive plans are not for streams. Hours of the archive
#: are hours of UTC.
_SETTINGS = {
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}

#: Else a command would begin with a page of what Spark thinks of itself. With a file to log to,
#: it may say what it likes.
_LOGGING = Path(__file__).with_name("log4j2.properties")

#: On one machine nobody else need see the driver.
_LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


class JobError(RuntimeError):
    """A job cannot go on; the text is one that people understand."""


class NoSparkError(JobError):
    """Spark cannot run here; the text says why and what to do."""


def java() -> str | None:
    """The java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    if home:
        found = Path(home) / "bin" / "java"
        return str(found) if found.is_file() else None
    return shutil.which("java")


def _java_version(program: str) -> int:
    done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else 0


def check() -> None:
    """Raise NoSparkError unless Spark can start here."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise NoSparkError("pyspark and pyarrow are needed: pip install 'rtmb[spark]'")
    remedy = (
        f"install Java {OLDEST_JAVA} or newer (on Debian: apt install openjdk-17-jre-headless)"
        " or set JAVA_HOME"
    )
    program = java()
    if program is None:
        where = "in JAVA_HOME" if os.environ.get("JAVA_HOME") else "on the PATH"
        raise NoSparkError(f"Spark runs on Java, and there is none {where}: {remedy}")
    version = _java_version(program)
    if version < OLDEST_JAVA:
        raise NoSparkError(f"{program} is Java {version or 'of no known version'}: {remedy}")


def session(name: str, master: str | None = None, log: Path | None = None) -> SparkSession:
    """A session for a job; the one there is, if there is one.

    Under `spark-submit` the master and the settings given to it stand. With `log`, all that Spark
    and its workers print goes to that file.
    """
    check()
    from pyspark.conf import SparkConf
    from pyspark.sql import SparkSession

    submitted = _submitted()
    builder = SparkSession.builder.appName(f"rtmb {name}")
    settings = {**_SETTINGS, "spark.log.level": "WARN" if log else "ERROR"}
    if not submitted:
        builder = builder.master(master or LOCAL)
        settings["spark.driver.extraJavaOptions"] = (
            f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
            + (" -Drtmb.level=warn -Drtmb.traces=warn" if log else "")
        )
        if (master or LOCAL).startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            # Else the first python3 on the PATH, which need not have rtmb.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            settings |= _LOOPBACK
        elif "PYTHONPATH" in os.environ:  # what the driver can import, the workers shall too
            settings["spark.executorEnv.PYTHONPATH"] = os.environ["PYTHONPATH"]
    elif master is not None:
        builder = builder.master(master)
    given = SparkConf() if submitted else None
    for key, value in settings.items():
        if given is None or not given.contains(key):
            builder = builder.config(key, value)
    with _printing_to(log):
        return builder.getOrCreate()


def _submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def _printing_to(log: Path | None) -> Iterator[None]:
    """What is started meanwhile prints its errors to a file, for as long as it lives."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    ours = os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 2)
        yield
        sys.stderr.flush()
    finally:
        os.dup2(ours, 2)
        os.close(file)
        os.close(ours)


@contextmanager
def running(name: str, master: str | None = None, log: str | None = None) -> Iterator[SparkSession]:
    """A session for a job, which is stopped at its end. What fails in Spark is a `JobError` of one
    line, which names the file that has all of it: `log`, or a temporary one, which is deleted when
    nothing failed."""
    check()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from rtmb.spark.reading import DataLossError
    from rtmb.spark.transport import BrokerError, UnreachableError

    # It prints, as JSON, what is raised as well.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    place: Path | None = None
    if log is not None or not _submitted():
        place = Path(log or Path(tempfile.gettempdir()) / f"rtmb-{name}-{os.getpid()}.log")
    spark = None
    try:
        spark = session(name, master, place)
        yield spark
    except (PySparkException, Py4JError, BrokerError, DataLossError, UnreachableError) as error:
        plain = plain_text(str(error)) or type(error).__name__
        if place is None:
            raise JobError(plain) from error
        with place.open("a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        raise JobError(f"{plain} (all that Spark said: {place})") from error
    else:
        if log is None and place is not None:
            place.unlink(missing_ok=True)
    finally:
        if spark is not None:
            with suppress(Py4JError, OSError):  # its Java may have gone before
                spark.stop()


def plain_text(message: str) -> str:
    """Of an exception that came through Java and Python again, the line that says something: the
    last of the innermost Python traceback, or the first that is not one of a stack.

    >>> plain_text("[X_NOT_FOUND] No table `x`. SQLSTATE: 42P01; line 1 pos 14;\\n'Project [*]")
    'No table `x`.'
    """
    causes = re.findall(r"^(?:\w+\.)*[A-Z]\w*(?:Error|Exception): (.+)$", message, re.MULTILINE)
    python = [c for c in causes if "Traceback (most recent call last)" in message]
    told = python[-1] if python else message.partition("\n\tat ")[0]
    told = told.partition("\n\nJVM stacktrace")[0].strip().partition("\n")[0]
    told = re.sub(r"^\[[A-Z0-9_.]+\] ", "", told)
    told = re.sub(r"^Query \[id = .*?\] terminated with exception: ", "", told)
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", told)
