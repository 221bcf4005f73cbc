"""How the jobs get a Spark session, and what they say when there is no Spark to get it from."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    "spark.log.level": "ERROR",
}

#: Else a command would begin with a page of what Spark thinks of itself.
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


def session(name: str, master: str | None = None) -> SparkSession:
    """A session for a job; the one there is, if there is one.

    Under `spark-submit` the master and the settings given to it stand.
    """
    check()
    from pyspark.conf import SparkConf
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(f"rtmb {name}")
    settings = dict(_SETTINGS)
    if not submitted:
        builder = builder.master(master or LOCAL)
        settings["spark.driver.extraJavaOptions"] = (
            f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
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
    return builder.getOrCreate()


@contextmanager
def running(name: str, master: str | None = None) -> Iterator[SparkSession]:
    """A session for a job, which is stopped at its end. What fails in Spark is a `JobError`."""
    spark = session(name, master)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from rtmb.spark.transport import BrokerError, UnreachableError

    try:
        yield spark
    except (PySparkException, Py4JError) as error:
        raise JobError(_plain(str(error))) from error
    except (BrokerError, UnreachableError) as error:
        raise JobError(str(error)) from error
    finally:
        spark.stop()


def _plain(message: str) -> str:
    """Of an exception that came through Java and Python again, the part that says something: the
    last line of the innermost Python traceback, or all that is not a stack trace."""
    causes = re.findall(r"^(?:[a-z_]+\.)*[A-Z]\w*Error: (.+)$", message, re.MULTILINE)
    if causes:
        return str(causes[-1])
    told = message.partition("\n\tat ")[0].partition("\n\nJVM stacktrace")[0]
    return told.strip()
