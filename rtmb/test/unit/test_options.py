"""Tests for `rtmb.config` and `rtmb.twistd`: each setting by option, environment and file."""

from __future__ import annotations

import json
import os
import unittest
from collections.abc import Mapping
from typing import Any
from unittest import mock

from rtmb.config import FIELDS, Settings
from rtmb.test.support.files import folder
from rtmb.twistd import Options

#: Of each option: the value in the file, in the environment, on the command line (None: a switch),
#: and what must be there beside it.
FILE = "file"  # stands for the path of a file that exists
TABLE: dict[str, tuple[Any, str, str | None, dict[str, Any]]] = {
    "interface": ("127.0.0.2", "127.0.0.3", "127.0.0.4", {}),
    "port": (1, "2", "3", {}),
    "name": ("a", "b", "c", {}),
    "user": ("a", "b", "c", {"password": "x"}),
    "password": ("a", "b", "c", {"user": "x"}),
    "token": ("a", "b", "c", {}),
    "auth_timeout": (1.5, "2.5", "3.5", {}),
    "tls_cert": (FILE + "1", FILE + "2", FILE + "3", {"tls_key": FILE}),
    "tls_key": (FILE + "1", FILE + "2", FILE + "3", {"tls_cert": FILE}),
    "tls_ca": (FILE + "1", FILE + "2", FILE + "3", {"tls_cert": FILE, "tls_key": FILE}),
    "tls_verify": (
        True, "false", None, {"tls_cert": FILE, "tls_key": FILE, "tls_ca": FILE}
    ),
    "tls_first": (True, "false", None, {"tls_cert": FILE, "tls_key": FILE}),
    "max_payload": (1000, "2KiB", "3KB", {}),
    "max_connections": (1, "2", "3", {}),
    "max_control_line": ("1K", "2048", "3072", {}),
    "max_pending": ("2MiB", "3MiB", "4MiB", {}),
    "max_subscriptions": (1, "2", "3", {}),
    "ping_interval": (1, "2.5", "3", {}),
    "ping_max": (1, "3", "4", {}),
    "history": (1, "2", "0", {}),
    "history_bytes": ("1MiB", "2MiB", "0", {}),
    "drain_timeout": (1, "2", "3", {}),
    "lame_duck": (1, "2", "3", {}),
    "log_format": ("json", "text", "json", {}),
    "http_port": (1, "2", "3", {}),
    "no_http": (True, "false", None, {}),
    "api_key": ("a", "b", "c", {}),
    "cors_origin": (["https://a.example"], "https://b.example,https://c.example", "*", {}),
    "ws_queue": (1, "2", "3", {}),
    "ws_stuck": (1, "2", "3", {}),
    "msgpack_port": (1, "2", "3", {}),
    "no_msgpack": (True, "false", None, {}),
    "msgpack_buffer": (1, "2", "3", {}),
    "msgpack_buffer_bytes": ("1MiB", "2MiB", "3MiB", {}),
    "metrics_interval": (1, "2", "3", {}),
    "journal": (["a.>", "b"], "c d", "e.*", {}),
    "journal_bytes": ("1MiB", "2MiB", "3MiB", {}),
    "journal_messages": (1, "2", "3", {}),
    "dedup_window": (1, "2", "3", {}),
}  # fmt: skip


class OptionTests(unittest.TestCase):
    """Every option from each of its places."""

    def load(self, file: Mapping[str, Any], env: Mapping[str, str], *arguments: str) -> Settings:
        path = self.place / "rtmb.toml"
        path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in file.items()))
        options = Options()
        options.parseOptions(["--config", str(path), *arguments])
        clean = {k: v for k, v in os.environ.items() if not k.startswith("RTMB_")}
        with mock.patch.dict(os.environ, clean | dict(env), clear=True):
            return options.load()

    def real(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith(FILE):
            path = self.place / value
            path.touch()
            return str(path)
        return value

    def test_table_is_whole(self) -> None:
        """No option can be added without a place in the table of this test."""
        self.assertEqual(set(TABLE), set(FIELDS))

    def test_places_and_precedence(self) -> None:
        """Every option can be given in all places; the command line wins, then the environment."""
        self.place = folder(self)
        for name, (in_file, in_env, given, beside) in TABLE.items():
            parse = FIELDS[name].metadata["parse"]
            flag, variable = "--" + name.replace("_", "-"), f"RTMB_{name.upper()}"
            beside = {k: self.real(v) for k, v in beside.items()}
            in_file, in_env, given = map(self.real, (in_file, in_env, given))
            arguments = [flag] if given is None else [flag, given]
            on_line = True if given is None else parse(given)
            cases: list[tuple[str, Settings, Any]] = [
                ("file", self.load({name: in_file, **beside}, {}), parse(in_file)),
                ("environment", self.load(beside, {variable: in_env}), parse(in_env)),
                ("command line", self.load(beside, {}, *arguments), on_line),
                (
                    "environment over file",
                    self.load({name: in_file, **beside}, {variable: in_env}),
                    parse(in_env),
                ),
                (
                    "command line over both",
                    self.load({name: in_file, **beside}, {variable: in_env}, *arguments),
                    on_line,
                ),
            ]
            for place, settings, expected in cases:
                with self.subTest(name=name, place=place):
                    self.assertEqual(getattr(settings, name), expected)
