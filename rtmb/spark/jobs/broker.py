"""The broker as the jobs see it: its address, and what goes with every read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from rtmb.spark.options import SINK, SOURCE, Option, SparkOptions, read
from rtmb.spark.reading import ARROW_SCHEMA
from rtmb.spark.transport import client, path


@dataclass(frozen=True)
class Payloads:
    """What payloads a job expects, and what becomes of messages with others: the options `schema`,
    `mode` and `deadLetter` of the source."""

    schema: str = ""
    mode: str = "permissive"
    dead_letter: str = ""

    def __post_init__(self) -> None:
        if self.mode != "permissive" and not self.schema:
            raise ValueError(f"mode {self.mode} needs a schema: which payloads are right?")
        if (self.mode == "deadLetter") != bool(self.dead_letter):
            raise ValueError("mode deadLetter goes with a subject for the dead letters")

    @property
    def checked(self) -> bool:
        """Whether any message is turned away."""
        return self.mode != "permissive"


#: All is welcome.
ANY = Payloads()


@dataclass(frozen=True)
class Broker:
    """Where the journal is, and options of the source and the sink such as credentials."""

    servers: str = "http://127.0.0.1:8080"
    options: Mapping[str, str] = field(default_factory=dict)

    def given(
        self, known: tuple[Option, ...], options: Mapping[str, object] | None = None
    ) -> dict[str, str]:
        """Options for the source or the sink. What only the other of the two knows is left out."""
        mine = {option.name.lower() for option in known}
        others = {option.name.lower() for option in (*SOURCE, *SINK)} - mine
        own = {name: str(value) for name, value in (options or {}).items() if value is not None}
        whole = {"servers": self.servers, **own, **self.options}
        return {name: value for name, value in whole.items() if name.lower() not in others}

    def sink_options(self) -> SparkOptions:
        """The sink's, for calls that are not Spark's."""
        return read(self.given(SINK), SINK)

    def bounds(self) -> dict[str, Any]:
        """The journal's epoch, its first message and the number that the next will have."""
        found: dict[str, Any] = client(self.sink_options().access).json(
            "GET", path("journal", "position", at="earliest")
        )
        return found

    def stream(self, spark: SparkSession, payloads: Payloads = ANY, **options: object) -> DataFrame:
        """The journal from a position on, for ever; messages with the payloads that are wanted."""
        reader = spark.readStream.format("rtmb")
        if not payloads.checked:
            return reader.options(**self.given(SOURCE, options)).load()
        options |= {"schema": payloads.schema, "mode": payloads.mode}
        options |= {"deadLetter": payloads.dead_letter or None}
        options["metadata"] = ",".join(f"_{name}" for name in ARROW_SCHEMA.names)
        found = reader.options(**self.given(SOURCE, options)).load()
        return found.select(*(found[f"_{name}"].alias(name) for name in ARROW_SCHEMA.names))

    def read(self, spark: SparkSession, **options: object) -> DataFrame:
        """The journal as it is now."""
        return spark.read.format("rtmb").options(**self.given(SOURCE, options)).load()

    def publish(self, messages: DataFrame, **options: object) -> None:
        """Publish a frame with the columns `subject`, `data` and, if there, `headers`."""
        messages.write.format("rtmb").mode("append").options(**self.given(SINK, options)).save()
