"""Tests for `rtmb.config`: what the environment gives, and what it does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twisted.logger import LogEvent, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

import rtmb
from rtmb import config
from rtmb.config import Settings, SettingsError

#: What Kubernetes sets in a pod beside Services named rtmb (with two ports) and rtmb-http.
SERVICE_LINKS = {
    "RTMB_SERVICE_HOST": "10.0.0.1",
    "RTMB_SERVICE_PORT": "4222",
    "RTMB_SERVICE_PORT_NATS": "4222",
    "RTMB_SERVICE_PORT_HTTP": "8080",
    "RTMB_PORT": "tcp://10.0.0.1:4222",
    "RTMB_PORT_4222_TCP": "tcp://10.0.0.1:4222",
    "RTMB_PORT_4222_TCP_PROTO": "tcp",
    "RTMB_PORT_4222_TCP_PORT": "4222",
    "RTMB_PORT_4222_TCP_ADDR": "10.0.0.1",
    "RTMB_HTTP_SERVICE_HOST": "10.0.0.2",
    "RTMB_HTTP_SERVICE_PORT": "8080",
    "RTMB_HTTP_PORT": "tcp://10.0.0.2:8080",
    "RTMB_HTTP_PORT_8080_TCP": "tcp://10.0.0.2:8080",
    "RTMB_HTTP_PORT_8080_TCP_PROTO": "tcp",
    "RTMB_HTTP_PORT_8080_TCP_PORT": "8080",
    "RTMB_HTTP_PORT_8080_TCP_ADDR": "10.0.0.2",
}


class EnvironmentTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.lines: list[tuple[str, str]] = []
        observer: Any = self.observe  # a function is an observer to Twisted, if not to mypy
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def observe(self, event: LogEvent) -> None:
        if event.get("log_namespace") == "rtmb.config":
            self.lines.append((event["log_level"].name, formatEvent(event)))

    def load(self, environment: Mapping[str, str], **given: str) -> Settings:
        return config.load(given, None, environment)

    def test_service_links_are_skipped(self) -> None:
        """Kubernetes's own variables are none of ours, and one line says which were skipped."""
        self.assertEqual(self.load(SERVICE_LINKS), Settings())
        ((level, line),) = self.lines
        self.assertEqual(level, "info")
        for variable in SERVICE_LINKS:
            self.assertIn(f" {variable}", line.replace(",", ""))

    def test_options_beside_service_links(self) -> None:
        settings = self.load({**SERVICE_LINKS, "RTMB_MSGPACK_PORT": "1", "RTMB_TOKEN": "x"})
        self.assertEqual((settings.port, settings.msgpack_port), (4222, 1))
        self.assertEqual(settings.token, "x")

    def test_an_unknown_variable_is_a_warning(self) -> None:
        settings = self.load({"RTMB_MAX_PAYLAOD": "1", "RTMB_NAME": "x"})
        self.assertEqual(settings.name, "x")
        line = "environment: unknown variable RTMB_MAX_PAYLAOD; did you mean RTMB_MAX_PAYLOAD?"
        self.assertEqual(self.lines, [("warn", line)])

    def test_what_is_given_is_not_read(self) -> None:
        """Whatever stands in the environment for an option of the command line: nobody looks."""
        self.assertEqual(self.load({"RTMB_PORT": "nonsense"}, port="5").port, 5)
        self.assertEqual(self.lines, [])
        with self.assertRaisesRegex(SettingsError, "RTMB_PORT: expected a port.*'nonsense'"):
            self.load({"RTMB_PORT": "nonsense"})


class ExampleTests(SynchronousTestCase):
    def test_the_example_file_is_the_one_in_the_repository(self) -> None:
        path = Path(rtmb.__file__).parents[1] / "rtmb.example.toml"
        if path.exists():  # not where the package is installed
            self.assertEqual(path.read_text(), config.example())
