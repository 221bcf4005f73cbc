"""The broker as a process: options, signals, log, users, limits."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import bcrypt
import nats
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rtmb.config import FIELDS, Settings
from rtmb.test.processes import (
    PATIENCE,
    TWISTD,
    BrokerProcess,
    RawClient,
    WithProcesses,
    environment,
    need,
    twistd,
)
from rtmb.twistd import Options


def with_directory(test: unittest.TestCase) -> Path:
    place = Path(tempfile.mkdtemp(prefix="rtmb-"))
    test.addCleanup(shutil.rmtree, place, ignore_errors=True)
    return place


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
        self.place = with_directory(self)
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


class StartTests(WithProcesses):
    """Starting, and what can be wrong then."""

    def test_port_zero(self) -> None:
        """Port 0 picks a free port and the log says which: the broker answers there."""
        broker = self.start()
        self.assertNotIn(broker.port, (0, 4222))
        self.assertEqual(self.client(broker).info["port"], broker.port)

    def test_process_takes_options_from_all_places(self) -> None:
        """The running broker shows what file, environment and command line said."""
        broker = self.start(
            "--name",
            "from-line",
            env={"RTMB_NAME": "from-env", "RTMB_MAX_PAYLOAD": "3000"},
            config='name = "from-file"\nmax_payload = 2000\ntoken = "from-file"\n',
        )
        info = self.client(broker).info
        self.assertEqual(info["server_name"], "from-line")
        self.assertEqual(info["max_payload"], 3000)
        self.assertIs(info["auth_required"], True)

    def assert_refused(self, ended: subprocess.CompletedProcess[str], *words: str) -> None:
        self.assertEqual(ended.returncode, 1, ended)
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        self.assertEqual(len(lines), 1, ended.stderr)
        for word in words:
            self.assertIn(word, lines[0])
        self.assertNotIn("Traceback", ended.stdout + ended.stderr)

    def assert_cannot_listen(self, ended: subprocess.CompletedProcess[str], words: str) -> None:
        """By then twistd has its log open, and puts what goes to stderr there."""
        said = ended.stdout + ended.stderr
        self.assertEqual(ended.returncode, 1, ended)
        self.assertEqual(said.count(f"rtmb: cannot listen on {words}"), 1, said)
        self.assertNotIn("Traceback", said)

    def test_mistakes(self) -> None:
        """What is wrong with the settings is one line that names it, and exit status 1."""
        place = with_directory(self)
        cases: list[tuple[list[str], dict[str, str], str | None, list[str]]] = [
            (["--nonsense"], {}, None, ["nonsense"]),
            (["--port", "many"], {}, None, ["--port", "many"]),
            (["--port", "65536"], {}, None, ["--port", "65536"]),
            (["--max-payload", "-1"], {}, None, ["--max-payload", "-1"]),
            (["--log-format", "xml"], {}, None, ["--log-format", "text or json", "xml"]),
            (["--ping-interval", "0"], {}, None, ["--ping-interval", "0"]),
            (["--port"], {}, None, ["port"]),
            (["extra"], {}, None, []),
            (["--password", "secret"], {}, None, ["user"]),
            (["--tls-cert", "none.pem"], {}, None, ["tls_key"]),
            (["--config", "none.toml"], {}, None, ["none.toml", "No such file"]),
            ([], {"RTMB_CONFIG": "none.toml"}, None, ["none.toml", "No such file"]),
            ([], {"RTMB_MAX_PAYLAOD": "1"}, None, ["RTMB_MAX_PAYLAOD", "RTMB_MAX_PAYLOAD"]),
            ([], {"RTMB_PORT": "x"}, None, ["RTMB_PORT", "'x'"]),
            ([], {}, "prot = 1", ["prot", "did you mean port?"]),
            ([], {}, 'port = "x"', ["port", "'x'"]),
            ([], {}, "port = ", ["rtmb.toml", "Invalid value"]),
            ([], {}, "tls_first = 7", ["tls_first", "true or false"]),
            ([], {}, "[doors.nosuch]", ["doors.nosuch"]),
            ([], {}, '[[auth.users]]\nuser = "a"', ["auth.users[0]", "password"]),
            ([], {}, '[[auth.users]]\nuser = "a"\npasword = "b"', ["pasword"]),
            ([], {}, '[[auth.users]]\nnkey = "UABC"', ["auth.users[0].nkey"]),
            ([], {}, '[auth]\nno_auth_user = "x"', ["no_auth_user"]),
        ]
        for arguments, env, toml, words in cases:
            with self.subTest(arguments=arguments, env=env, toml=toml):
                given = list(arguments)
                if toml is not None:
                    (place / "rtmb.toml").write_text(toml)
                    given += ["--config", "rtmb.toml"]
                self.assert_refused(twistd(*given, env=env, cwd=place), *words)

    def test_mistakes_show_no_secret(self) -> None:
        """A secret of the wrong kind is not shown in the line that complains."""
        place = with_directory(self)
        for toml in ("password = 918273", "token = 918273"):
            with self.subTest(toml=toml):
                (place / "rtmb.toml").write_text(toml)
                ended = twistd("--config", "rtmb.toml", cwd=place)
                self.assert_refused(ended, "text in quotes")
                self.assertNotIn("918273", ended.stdout + ended.stderr)

    def test_port_in_use(self) -> None:
        """A port that someone else has is one clear line and exit status 1."""
        place = with_directory(self)
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = str(other.getsockname()[1])
            ended = twistd("--port", port, cwd=place)
        self.assert_cannot_listen(ended, f"127.0.0.1:{port}: Address already in use")

    def test_address_that_is_not_here(self) -> None:
        """An interface that this machine does not have is one clear line and exit status 1."""
        for interface in ("192.0.2.1", "no such host"):
            with self.subTest(interface=interface):
                ended = twistd("--port", "0", "--interface", interface, cwd=with_directory(self))
                self.assert_cannot_listen(ended, f"{interface}:0: ")

    def test_warns_when_open_to_all(self) -> None:
        """Listening beyond loopback without users is warned of, and with a token it is not."""
        warning = "no users are set"
        self.assertIn(warning, self.log_after_start("--interface", "0.0.0.0"))
        self.assertNotIn(warning, self.log_after_start("--interface", "0.0.0.0", "--token", "x"))
        self.assertNotIn(warning, self.log_after_start())

    def log_after_start(self, *arguments: str) -> str:
        broker = self.start(*arguments)
        self.client(broker)  # who is answered comes after the start
        broker.stop()
        return broker.log()

    def test_json_log(self) -> None:
        """`--log-format json` makes every line of the log a JSON object."""
        broker = self.start("--log-format", "json")
        self.client(broker).connect(name="somebody")
        broker.stop()
        lines = [json.loads(line) for line in broker.log().splitlines()]
        said = {line["message"]: line for line in lines}
        leaving = next(m for m in said if "somebody test disconnected" in m)
        self.assertEqual(said[leaving]["reason"], "the broker is stopping")
        self.assertEqual(said[leaving]["level"], "info")
        self.assertTrue(all(line["time"].endswith("+00:00") for line in lines), lines)

    def test_daemon(self) -> None:
        """Without -n twistd goes to the background, writes pid and log, and stops by its pid."""
        for log_format in ("text", "json"):
            with self.subTest(log_format=log_format):
                place = with_directory(self)
                log = self.run_daemon(place, "twistd.log", "--log-format", log_format)
                self.assertIn("text door", log)

    def test_daemon_with_json_and_no_logfile(self) -> None:
        """A daemon that was told no log file keeps twistd's own, for JSON lines too."""
        log = self.run_daemon(with_directory(self), None, "--log-format", "json")
        self.assertIn("text door", log)

    def run_daemon(self, place: Path, logfile: str | None, *arguments: str) -> str:
        """Start and stop a daemon; its log."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        chosen = [] if logfile is None else [f"--logfile={logfile}"]
        subprocess.run(
            [TWISTD, "--pidfile=rtmb.pid", *chosen, "rtmb", "--port", str(port), *arguments],
            cwd=place,
            env=environment(),
            timeout=PATIENCE,
            check=True,
        )
        # The parent returns when its child is a daemon that listens.
        pid = int((place / "rtmb.pid").read_text())
        ending = os.pidfd_open(pid)
        try:
            with RawClient(port) as client:
                client.connect()
                signal.pidfd_send_signal(ending, signal.SIGTERM)
                client.read_to_end()
            self.assertTrue(_ended(ending), "the daemon did not stop")
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(ending, signal.SIGKILL)
            os.close(ending)
        self.assertFalse((place / "rtmb.pid").exists())
        log = place / (logfile or "twistd.log")
        return log.read_text() if log.exists() else ""

    def test_holds_many_connections(self) -> None:
        """The descriptor limit is raised at start: 2,000 idle connections are held and served."""
        count = 2000
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count + 512
        need(self, hard == resource.RLIM_INFINITY or hard >= wanted, "too few descriptors allowed")
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        broker = self.start(soft_descriptors=256)
        clients = [self.client(broker) for _ in range(count)]
        self.assertEqual(clients[-1].info["client_id"], count)
        clients[0].subscribe("still.here")
        clients[-1].publish("still.here", b"yes")
        self.assertIn(b"yes", clients[0].read_until(b"yes\r\n"))
        for client in clients:
            client.settle()


def _ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], PATIENCE)[0])


class SignalTests(WithProcesses):
    """SIGTERM, SIGUSR2, SIGHUP."""

    def test_sigterm_drains(self) -> None:
        """At SIGTERM a client gets all that waits for it before it is closed, within 5 s."""
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                broker = self.start()
                slow = self.client(broker, receive_buffer=4096)
                slow.connect()
                slow.subscribe("queued")
                publisher = self.client(broker)
                publisher.connect()
                payload = b"x" * 100_000
                for _ in range(150):
                    publisher.publish("queued", payload)
                publisher.publish("queued", b"the last")
                broker.signal(number)
                broker.expect_log(r"\(TCP Port \d+ Closed\)")
                with self.assertRaises(ConnectionError):
                    RawClient(broker.port)
                got = slow.read_to_end(timeout=5)
                self.assertEqual(got.count(payload), 150)
                self.assertTrue(got.endswith(b"the last\r\n"))
                # twistd ends itself by the signal it was sent, as Unix asks.
                self.assertIn(broker.wait(5), (0, -number))

    def test_sigterm_does_not_wait_for_ever(self) -> None:
        """A client that does not read cannot keep the broker from stopping."""
        broker = self.start("--drain-timeout", "0.5")
        slow = self.client(broker, receive_buffer=4096)
        slow.connect()
        slow.subscribe("queued")
        publisher = self.client(broker)
        for _ in range(150):
            publisher.publish("queued", b"x" * 100_000)
        broker.signal(signal.SIGTERM)
        self.assertIn(broker.wait(5), (0, -signal.SIGTERM))

    def test_lame_duck(self) -> None:
        """At SIGUSR2 clients are told with `ldm`, closed over the grace time, and it ends."""
        broker = self.start("--lame-duck", "0.4")
        clients = [self.client(broker) for _ in range(4)]
        for client in clients:
            client.connect()
        broker.signal(signal.SIGUSR2)
        for client in clients:
            self.assertIs(client.read_info()["ldm"], True)
        with self.assertRaises(ConnectionError):
            RawClient(broker.port)
        for client in clients:
            self.assertEqual(client.read_to_end(), b"")
        self.assertEqual(broker.wait(), 0)

    def test_lame_duck_alone(self) -> None:
        """At SIGUSR2 a broker without clients ends at once, and a bare client is only closed."""
        broker = self.start()
        self.client(broker).close()
        broker.expect_log("disconnected")
        broker.signal(signal.SIGUSR2)
        self.assertEqual(broker.wait(5), 0)
        self.assertNotIn("Traceback", broker.log())
        broker = self.start("--lame-duck", "0.2")
        bare = self.client(broker)
        bare.settle()
        broker.signal(signal.SIGUSR2)
        self.assertEqual(bare.read_to_end(), b"")
        self.assertEqual(broker.wait(5), 0)

    def test_lame_duck_twice(self) -> None:
        """A second SIGUSR2 changes nothing: the clients are closed, the broker ends cleanly."""
        broker = self.start("--lame-duck", "0.5")
        client = self.client(broker)
        client.connect()
        broker.signal(signal.SIGUSR2)
        self.assertIs(client.read_info()["ldm"], True)
        broker.signal(signal.SIGUSR2)
        client.read_to_end()
        self.assertEqual(broker.wait(5), 0)
        self.assertNotIn("Traceback", broker.log())

    def test_sigterm_in_lame_duck(self) -> None:
        """SIGTERM cuts the grace time of a lame duck short."""
        broker = self.start("--lame-duck", "60")
        client = self.client(broker)
        client.connect()
        broker.signal(signal.SIGUSR2)
        self.assertIs(client.read_info()["ldm"], True)
        broker.signal(signal.SIGTERM)
        self.assertIn(broker.wait(5), (0, -signal.SIGTERM))
        self.assertNotIn("Traceback", broker.log())

    def test_sighup_reloads(self) -> None:
        """SIGHUP takes new users, permissions and limits and holds those connected to them."""
        broker = self.start(config=_USERS + _GONE)
        alice, gone = self.client(broker), self.client(broker)
        alice.connect(user="alice", **{"pass": "one"})
        alice.subscribe("open.>", "1")
        alice.subscribe("shut.>", "2")
        gone.connect(user="gone", **{"pass": "two"})
        broker.config.write_text(
            "max_payload = 1000\n"
            + _USERS.replace('subscribe.allow = [">"]', 'subscribe.deny = ["shut.>"]')
        )
        broker.signal(signal.SIGHUP)
        self.assert_ends_with(gone, b"-ERR 'Authorization Violation'\r\n")
        told = alice.read_until(b"\r\n") + alice.read_until(b"\r\n")
        self.assertIn(b"-ERR 'Permissions Violation for Subscription to \"shut.>\"'\r\n", told)
        self.assertIn(b'"max_payload":1000', told)
        alice.publish("shut.this", b"no")
        self.assertIn(b"MSG open.this 1 3\r\nyes", alice.publish("open.this", b"yes"))
        alice.send(b"PUB open.this 1001\r\n")
        self.assert_ends_with(alice, b"-ERR 'Maximum Payload Violation'\r\n")
        late = self.client(broker)
        late.send(b'CONNECT {"user":"gone","pass":"two"}\r\n')
        self.assert_ends_with(late, b"-ERR 'Authorization Violation'\r\n")

    def test_sighup_with_a_bad_file(self) -> None:
        """SIGHUP with a bad file keeps the old settings, and the log says what is wrong."""
        broker = self.start(config=_USERS)
        alice = self.client(broker)
        alice.connect(user="alice", **{"pass": "one"})
        for bad, said in (("prot = 1\n", "unknown key prot"), ("port = \n", "line 1")):
            broker.config.write_text(bad)
            broker.signal(signal.SIGHUP)
            broker.expect_log(f"not reloaded, the old settings stay: .*{said}")
        broker.config.unlink()
        broker.signal(signal.SIGHUP)
        broker.expect_log("not reloaded, the old settings stay: .*No such file")
        alice.settle()
        again = self.client(broker)
        again.connect(user="alice", **{"pass": "one"})


_USERS = """
[[auth.users]]
user = "alice"
password = "one"
permissions.subscribe.allow = [">"]
"""
_GONE = """
[[auth.users]]
user = "gone"
password = "two"
"""


def _checked(data: bytes) -> str:
    """An nkey's text: the bytes with their checksum, in base32."""
    crc = binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(data + crc).decode().rstrip("=")


class Nkey:
    """A user's nkey."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        kind, user = 18 << 3, 20 << 3
        prefix = bytes([kind | user >> 5, (user & 31) << 3])
        self.seed = _checked(prefix + self._key.private_bytes_raw())
        self.public = _checked(bytes([user]) + self._key.public_key().public_bytes_raw())

    def sign(self, nonce: str) -> str:
        return base64.urlsafe_b64encode(self._key.sign(nonce.encode())).decode().rstrip("=")


class AccessTests(WithProcesses):
    """Who may come in, and what they may do."""

    def assert_let_in(self, broker: BrokerProcess, **options: str) -> RawClient:
        client = self.client(broker)
        self.assertEqual(client.connect(**options), b"")
        return client

    def assert_refused(self, broker: BrokerProcess, **options: str) -> None:
        client = self.client(broker)
        client.send(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        self.assertEqual(client.read_to_end(), b"-ERR 'Authorization Violation'\r\n")

    def test_user_and_password(self) -> None:
        """--user and --password let in who knows both, and nobody else."""
        broker = self.start("--user", "alice", "--password", "opensesame")
        self.assert_let_in(broker, user="alice", **{"pass": "opensesame"})
        self.assert_refused(broker, user="alice", **{"pass": "opensesam"})
        self.assert_refused(broker, user="alice")
        self.assert_refused(broker, user="bob", **{"pass": "opensesame"})
        self.assert_refused(broker, user="bob", **{"pass": ""})
        self.assert_refused(broker)

    def test_nothing_before_connect(self) -> None:
        """Where users are set, an operation before CONNECT is a violation."""
        broker = self.start("--token", "t")
        client = self.client(broker)
        client.send(b"SUB > 1\r\n")
        self.assertEqual(client.read_to_end(), b"-ERR 'Authorization Violation'\r\n")

    def test_bcrypt(self) -> None:
        """A password may be set as its bcrypt hash; what follows CONNECT waits for the check."""
        hashed = bcrypt.hashpw(b"opensesame", bcrypt.gensalt(4)).decode()
        broker = self.start("--user", "alice", "--password", hashed)
        client = self.client(broker)
        client.send(
            b'CONNECT {"lang":"test","user":"alice","pass":"opensesame"}\r\n'
            b"SUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n"
        )
        self.assertEqual(client.read_until(b"PONG\r\n"), b"MSG a 1 2\r\nhi\r\nPONG\r\n")
        self.assert_refused(broker, user="alice", **{"pass": "wrong"})
        self.assert_refused(broker, user="alice", **{"pass": hashed})

    def test_token(self) -> None:
        """--token lets in who knows it, also when a client gives it as the user."""
        broker = self.start("--token", "opensesame")
        self.assert_let_in(broker, auth_token="opensesame")
        self.assert_let_in(broker, user="opensesame")
        self.assert_refused(broker, auth_token="wrong")
        self.assert_refused(broker)

    def test_nkey(self) -> None:
        """An nkey lets in who can sign the nonce with it, and each client's nonce is new."""
        nkey, other = Nkey(), Nkey()
        broker = self.start(config=f'[[auth.users]]\nnkey = "{nkey.public}"\n')
        client = self.client(broker)
        nonce = client.info["nonce"]
        client.connect(nkey=nkey.public, sig=nkey.sign(nonce))
        for public, signed in (
            (nkey.public, nkey.sign(nonce)),  # of another connection's nonce
            (nkey.public, ""),
            (other.public, None),
        ):
            again = self.client(broker)
            sig = other.sign(again.info["nonce"]) if signed is None else signed
            again.send(b"CONNECT %b\r\n" % json.dumps({"nkey": public, "sig": sig}).encode())
            self.assertEqual(again.read_to_end(), b"-ERR 'Authorization Violation'\r\n")

    def test_libraries(self) -> None:
        """nats-py gets in with an nkey, a user and password, and a token in its URL."""
        need(self, importlib.util.find_spec("nkeys"), "the nkeys package is not installed")
        nkey = Nkey()
        broker = self.start(
            config=f'[auth]\ntoken = "t0ken"\n[[auth.users]]\nnkey = "{nkey.public}"\n' + _USERS
        )

        async def work() -> None:
            for url, options in (
                (broker.url, {"nkeys_seed_str": nkey.seed}),
                (broker.url, {"user": "alice", "password": "one"}),
                (broker.url.replace("//", "//t0ken@"), {}),
            ):
                client = await nats.connect(url, allow_reconnect=False, **options)
                await client.flush()
                await client.close()

        asyncio.run(asyncio.wait_for(work(), PATIENCE))

    def test_no_auth_user(self) -> None:
        """Who gives no credentials is the no_auth_user, with its permissions."""
        broker = self.start(
            config='[auth]\nno_auth_user = "guest"\n[[auth.users]]\nuser = "guest"\n'
            'password = "g"\npermissions.publish.deny = [">"]\n' + _USERS
        )
        guest = self.assert_let_in(broker)
        self.assertEqual(
            guest.publish("a"), b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"
        )
        self.assert_refused(broker, user="guest", **{"pass": "wrong"})
        self.assertEqual(
            self.assert_let_in(broker, user="alice", **{"pass": "one"}).publish("a"), b""
        )

    def test_permissions(self) -> None:
        """Allow and deny lists hold for each direction, and say so with NATS's own words."""
        broker = self.start(
            config="""
[[auth.users]]
user = "alice"
password = "one"
permissions.publish.allow = ["orders.>", "any"]
permissions.publish.deny = ["orders.secret.>"]
permissions.subscribe.allow = ["orders.>", "work.* workers"]
permissions.subscribe.deny = ["orders.internal"]

[[auth.users]]
user = "root"
password = "two"
"""
        )
        alice = self.assert_let_in(broker, user="alice", **{"pass": "one"})
        for subject, good in (
            ("orders.new", True),
            ("orders.secret.x", False),
            ("other", False),
            ("orders", False),
        ):
            with self.subTest(publish=subject):
                error = f"-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n"
                self.assertEqual(alice.publish(subject), b"" if good else error.encode())
        for sid, (asked, good) in enumerate(
            {
                "orders.*": True,
                "orders.internal": False,
                "other": False,
                ">": False,
                "work.a": False,
                "work.a workers": True,
                "work.a others": False,
                "$LAST.other": False,
            }.items()
        ):
            with self.subTest(subscribe=asked):
                subject, _, queue = asked.partition(" ")
                using = f' using queue "{queue}"' if queue else ""
                error = f"-ERR 'Permissions Violation for Subscription to \"{subject}\"{using}'\r\n"
                expected = b"" if good else error.encode()
                self.assertEqual(alice.subscribe(asked, str(sid)), expected)
        root = self.assert_let_in(broker, user="root", **{"pass": "two"})
        root.publish("orders.internal", b"hidden")
        root.publish("orders.open", b"shown")
        self.assertEqual(alice.settle(), b"MSG orders.open 0 5\r\nshown\r\n")

    def test_authentication_timeout(self) -> None:
        """Who does not authenticate in time is told so and closed."""
        broker = self.start("--token", "t", "--auth-timeout", "0.3")
        silent = self.client(broker)
        inside = self.client(broker)
        inside.connect(auth_token="t")
        self.assertEqual(silent.read_to_end(), b"-ERR 'Authentication Timeout'\r\n")
        inside.settle()

    def test_maximum_connections(self) -> None:
        """One connection more than allowed is told so and closed; when one goes there is room."""
        broker = self.start("--max-connections", "2")
        one, other = self.client(broker), self.client(broker)
        third = self.client(broker, info=False)
        self.assert_ends_with(third, b"-ERR 'maximum connections exceeded'\r\n")
        other.settle()
        one.close()
        broker.expect_log("disconnected: client closed")
        self.client(broker).settle()

    def test_secrets_stay_out_of_the_log(self) -> None:
        """No password, token or signature reaches the log, whether it was right or wrong."""
        nkey = Nkey()
        signed = nkey.sign("something else")
        hashed = bcrypt.hashpw(b"s3cret-hashed", bcrypt.gensalt(4)).decode()
        config = (
            '[auth]\ntoken = "s3cret-token"\n[[auth.users]]\nuser = "alice"\n'
            f'password = "s3cret-password"\n[[auth.users]]\nuser = "bob"\npassword = "{hashed}"\n'
            f'[[auth.users]]\nnkey = "{nkey.public}"\n'
        )
        broker = self.start(config=config)
        self.assert_let_in(broker, user="alice", **{"pass": "s3cret-password"})
        self.assert_let_in(broker, user="bob", **{"pass": "s3cret-hashed"})
        self.assert_let_in(broker, auth_token="s3cret-token")
        self.assert_refused(broker, user="alice", **{"pass": "s3cret-wrong"})
        self.assert_refused(broker, user="bob", **{"pass": "s3cret-wrong"})
        self.assert_refused(broker, auth_token="s3cret-wrong")
        self.assert_refused(broker, nkey=nkey.public, sig=signed)
        for line in (
            b'CONNECT {"pass":"s3cret-broken"\r\n',
            b'CONNECT {"user":"alice","pass":"s3cret-broken","protocol":9}\r\n',
            b"CONNEKT s3cret-broken\r\n",
            b'CONNECT {"auth_token":"s3cret-broken' + b"x" * 5000 + b"\r\n",
        ):
            client = self.client(broker)
            client.send(line)
            client.read_to_end()
        broker.config.write_text(config + '[[auth.users]]\nuser = 5\npassword = "s3cret-new"\n')
        broker.signal(signal.SIGHUP)
        broker.expect_log("not reloaded")
        broker.stop()
        self.assertIn("authentication failed", broker.log())
        for secret in ("s3cret", hashed, signed):
            self.assertNotIn(secret, broker.log())

    def test_wrong_token_as_user_stays_out_of_the_log(self) -> None:
        """A token given as the user, which is allowed, is not logged when it is wrong."""
        broker = self.start("--token", "s3cret-token")
        self.assert_refused(broker, user="s3cret-toke")
        broker.stop()
        self.assertNotIn("s3cret", broker.log())


class SlowConsumerTests(WithProcesses):
    """One client that never reads."""

    def test_never_reads(self) -> None:
        """It is closed and logged with who and subject; neighbours get all; memory is bounded."""
        need(self, Path("/proc/self/status").exists(), "this system does not tell memory in /proc")
        limit, count = 8 << 20, 1000
        broker = self.start("--max-pending", str(limit), "--history", "0")
        payload = b"x" * 100_000
        deaf = self.client(broker, receive_buffer=4096)
        deaf.connect(name="deaf-one")
        deaf.subscribe("flood.>")
        neighbour = self.client(broker)
        neighbour.connect()
        neighbour.subscribe("flood.*")
        publisher = self.client(broker)
        publisher.connect()
        before = broker.rss()
        received = 0
        message = len(b"MSG flood.now 1 100000\r\n\r\n") + len(payload)

        def read() -> None:
            nonlocal received
            neighbour.socket.settimeout(PATIENCE)
            while received < count * message and (data := neighbour.socket.recv(1 << 20)):
                received += len(data)

        reader = threading.Thread(target=read)
        reader.start()
        peak = before
        for _ in range(count):
            publisher.publish("flood.now", payload)
            peak = max(peak, broker.rss())
        reader.join(PATIENCE)
        self.assertEqual(received, count * message)
        found = broker.expect_log(r"slow consumer: (.*): (\d+) bytes waiting, at (\S+): close")
        self.assertIn(b"deaf-one", found[1])
        self.assertEqual(found[3], b"flood.now")
        self.assertEqual(broker.log().count("slow consumer: "), 1)
        broker.expect_log("deaf-one.* disconnected: slow consumer")
        neighbour.settle()
        # The limit, and as much again for copies on their way.
        self.assertLess(peak - before, 3 * limit)
