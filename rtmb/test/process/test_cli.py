"""The `rtmb` command as people and scripts use it: real processes against real servers."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from rtmb import __version__, cli, compiled
from rtmb.config import FIELDS
from rtmb.test.support.certificates import Authority
from rtmb.test.support.commands import Running, WithServer, rtmb, shared
from rtmb.test.support.files import folder
from rtmb.test.support.processes import (
    BrokerProcess,
    RawClient,
    environment,
)
from rtmb.test.support.users import Nkey

COMMANDS = [name for group in cli.COMMANDS.values() for name in group]


class HelpTests(SynchronousTestCase):
    def command(self, name: str) -> click.Command:
        found = cli.rtmb.get_command(click.Context(cli.rtmb), name)
        assert found is not None
        return found

    def test_the_list_loads_nothing(self) -> None:
        """Each command is listed, and none is imported for that, nor for Tab."""
        code = (
            "import sys; from click.testing import CliRunner; from rtmb.cli import rtmb\n"
            "shown = CliRunner().invoke(rtmb, ['--help']).output\n"
            "tab = [item.value for item in rtmb.shell_complete(rtmb.make_context('rtmb', [],"
            " resilient_parsing=True), 're')]\n"
            "print(shown, tab, 'twisted' in sys.modules, 'rich' in sys.modules)"
        )
        found = subprocess.run(
            [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
        )
        for name in COMMANDS:
            self.assertRegex(found.stdout, rf"(?m)^  {name} +[A-Z]")
        last = found.stdout.splitlines()[-1]
        self.assertIn("['request', 'reply', 'record', 'replay'] False False", last, found.stderr)

    def test_version(self) -> None:
        said = rtmb("--version").stdout.decode()
        self.assertEqual(said, f"rtmb {__version__} ({compiled.form()})\n")
        said = rtmb("--version", env={"RTMB_PURE": "1"}).stdout.decode()
        self.assertEqual(said, f"rtmb {__version__} (pure Python)\n")

    def test_help_teaches_by_example(self) -> None:
        for name in COMMANDS:
            if name in ("completion", "pipeline"):
                continue
            shown = CliRunner().invoke(cli.rtmb, [name, "--help"]).output
            self.assertRegex(shown, rf"(?m)^Examples:\n(.+\n)*?  .*rtmb {name}", name)

    def test_the_examples_are_right(self) -> None:
        """Each example is taken by the command that it shows."""
        directory = folder(self)
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(directory)
        checked = 0
        for name in COMMANDS:
            for line in getattr(self.command(name), "examples", "").strip().splitlines():
                words = shlex.split(re.split(r" {3,}| [|<>]+ ", line)[0])
                if "|" in words:  # `echo hello | rtmb pub …`, quoted or not
                    words = words[words.index("|") + 1 :]
                if "rtmb" not in words:
                    words = shlex.split(line)[shlex.split(line).index("rtmb") :]
                _, called, *arguments = words[words.index("rtmb") :]
                for word in arguments:
                    if "json" in word and not word.startswith("-"):
                        Path(word).touch()
                self.command(called).make_context(called, arguments)
                checked += 1
        self.assertGreater(checked, 40)

    def test_serve_has_every_option(self) -> None:
        shown = CliRunner().invoke(cli.rtmb, ["serve", "--help"]).output
        for name in FIELDS:
            self.assertIn(f"--{name.replace('_', '-')}", shown)

    def test_completion(self) -> None:
        for shell in ("bash", "zsh", "fish"):
            found = CliRunner().invoke(cli.rtmb, ["completion", shell])
            self.assertEqual(found.exit_code, 0)
            self.assertIn("_RTMB_COMPLETE", found.output)
        tab = rtmb(env={"_RTMB_COMPLETE": "bash_complete", "COMP_WORDS": "rtmb sub --re",
                        "COMP_CWORD": "2"})  # fmt: skip
        self.assertEqual(tab.stdout.decode().split(), ["plain,--replay"])

    def test_a_wrong_word_is_status_2(self) -> None:
        for arguments in (
            ["nonsense"],
            ["pub"],
            ["pub", "a b"],
            ["pub", "a.*"],
            ["sub", "a..b"],
            ["sub", "a", "--timeout", "soon"],
            ["sub", "a", "--raw", "--json"],
            ["sub", "a", "--last", "--replay", "2"],
            ["pub", "a", "--header", "novalue"],
            ["pub", "a", "--header", "Name=two\nlines"],
            ["pub", "a", "-s", "http://127.0.0.1"],
            ["reply", "a"],
            ["reply", "a", "--echo", "--exec", "cat"],
            ["replay", "/no/such/file"],
            ["test-client", "--address", "nowhere"],
            ["bench", "--rate", "10", "--size", "4"],
            ["bench", "--messages", "10", "--duration", "1"],
            ["bench", "-s", "ws://127.0.0.1"],
            ["top", "--http", "127.0.0.1:8080"],
            ["completion", "csh"],
        ):
            found = rtmb(*arguments)  # in a process of its own: some of them run the reactor
            self.assertEqual(found.returncode, 2, f"{arguments}: {found}")


class ServeTests(SynchronousTestCase):
    def test_it_is_the_service(self) -> None:
        with Running("serve", "--port", "0", "--no-http", "--no-msgpack", "--name", "hugo") as it:
            found = it.out.expect(rb"text door: nats://127.0.0.1:(\d+)")
            with RawClient(int(found[1])) as client:
                self.assertEqual(client.info["server_name"], "hugo")
            self.assertEqual(it.interrupt(), -signal.SIGINT)  # the shell calls it 130
            self.assertEqual(it.err.data, b"")

    def test_a_wrong_value_is_one_line(self) -> None:
        found = rtmb("serve", "--port", "many")
        self.assertEqual(found.returncode, 1)
        self.assertEqual(
            found.stderr, b"rtmb: --port: expected a port from 0 to 65535, not 'many'\n"
        )


def guarded() -> BrokerProcess:
    return BrokerProcess(
        config="""
        [[auth.users]]
        user = "alice"
        password = "secret"
        permissions.publish.allow = ["open.>"]
        permissions.subscribe.deny = ["closed.>"]
        """
    )


class AccessTests(WithServer):
    """A server that asks who we are."""

    def start(self) -> BrokerProcess:
        return shared(guarded)

    def setUp(self) -> None:
        super().setUp()
        self.env |= {"NATS_USER": "alice", "NATS_PASSWORD": "secret"}

    def test_let_in(self) -> None:
        self.check("pub", "open.x", "hello")
        del self.env["NATS_USER"], self.env["NATS_PASSWORD"]
        self.env["NATS_URL"] = self.server.url.replace("://", "://alice:secret@")
        self.check("pub", "open.x", "hello")

    def test_a_wrong_password(self) -> None:
        self.fails(4, r"nats://127.0.0.1:\d+: .*Authorization Violation.*", "pub", "open.x",
                   "--password", "wrong")  # fmt: skip
        found = self.rtmb("bench", "--password", "wrong")
        self.assertEqual(found.returncode, 4)
        self.assertRegex(found.stderr, rb"\Artmb: 127.0.0.1:\d+: the server said .*Authorization")

    def test_what_is_not_allowed(self) -> None:
        self.fails(1, "(?i:permissions violation for publish to) .closed.x.", "pub", "closed.x")
        self.fails(
            1, "(?i:permissions violation for subscription to) .closed.x.", "sub", "closed.x"
        )

    def test_secrets_are_not_shown(self) -> None:
        self.env["NATS_URL"] = "nats://alice:secret@127.0.0.1:1"
        self.fails(4, r"nats://127.0.0.1:1: .*refused.*", "pub", "open.x")


class SecureTests(SynchronousTestCase):
    def test_tls_and_an_nkey(self) -> None:
        """A server that wants our certificate and our signature."""
        place = folder(self)
        ours = Authority()
        (place / "ca.pem").write_bytes(ours.pem)
        for name in ("server", "client"):
            certificate, key = ours.issue(name)
            (place / f"{name}.pem").write_bytes(certificate)
            (place / f"{name}.key").write_bytes(key)
        nkey = Nkey()
        (place / "seed").write_text(f"the seed\n{nkey.seed}\n")
        (place / "wrong").write_text(Nkey().seed)
        ca, cert, private = (str(place / name) for name in ("ca.pem", "client.pem", "client.key"))
        with BrokerProcess(
            *("--tls-cert", str(place / "server.pem"), "--tls-key", str(place / "server.key")),
            *("--tls-ca", ca, "--tls-verify"),
            config=f'[[auth.users]]\nnkey = "{nkey.public}"\n',
        ) as broker:
            with_ca = ["pub", "x", "-s", f"tls://localhost:{broker.port}", "--tls-ca", ca]
            with_cert = [*with_ca, "--tls-cert", cert, "--tls-key", private]
            for status, arguments in (
                (0, [*with_cert, "--nkey", str(place / "seed")]),
                (4, [*with_cert, "--nkey", str(place / "wrong")]),
                (4, [*with_ca, "--nkey", str(place / "seed")]),
                (2, [*with_cert, "--nkey", ca]),
                (2, [*with_ca, "--tls-cert", cert]),
                (2, [*with_ca, "--tls-cert", cert, "--tls-key", str(place / "seed")]),
            ):
                found = rtmb(*arguments)
                self.assertEqual(found.returncode, status, found)
                self.assertNotIn(b"Traceback", found.stderr)
            # `bench` makes its load without the client, and knows all of that too.
            bench = ["bench", "--messages", "2000", "--json", *with_cert[2:]]
            for status, seed in ((0, "seed"), (4, "wrong")):
                found = rtmb(*bench, "--nkey", str(place / seed))
                self.assertEqual(found.returncode, status, found)
                self.assertNotIn(b"Traceback", found.stderr)


class NoServerTests(SynchronousTestCase):
    def test_one_line_and_status_4(self) -> None:
        for arguments in (
            ["pub", "x"],
            ["sub", "x"],
            ["request", "x"],
            ["reply", "x", "--echo"],
            ["record", "x", "-o", str(folder(self) / "x")],
        ):
            found = rtmb(*arguments, "-s", "nats://127.0.0.1:1")
            self.assertEqual(found.returncode, 4, arguments)
            self.assertRegex(found.stderr, rb"\Artmb: nats://127.0.0.1:1: [^\n]*refused[^\n]*\n\Z")
        for command in ("test-client", "log-metrics"):
            found = rtmb(command, "--address", "127.0.0.1:1")
            self.assertEqual(found.returncode, 4)
            self.assertRegex(found.stderr, rb"\Artmb: 127.0.0.1:1: [^\n]*refused[^\n]*\n\Z")


def measured() -> BrokerProcess:
    return BrokerProcess("--metrics-interval", "0.3")


class MsgpackDoorTests(WithServer):
    def start(self) -> BrokerProcess:
        server = shared(measured)
        port = server.expect_log(r"msgpack door: \S*?:(\d+)")[1].decode()
        self.address = f"127.0.0.1:{port}"
        return server

    def test_clients_publish_over_the_topics_and_receive(self) -> None:
        watcher = self.client()
        for sid, topic in enumerate("abcdefg", 1):
            watcher.subscribe(topic, str(sid))
        arguments = ["--number", "3", "--interval", "0.01", "--subscribe", "a", "--subscribe", "b"]
        with self.running("test-client", "--address", self.address, "--json", *arguments) as it:
            found = it.out.expect(rb"(\{.*\})\n")
            self.assertEqual(it.interrupt(), 130)
        said = json.loads(found[1])
        self.assertEqual(said["clients"], 3)
        self.assertGreater(said["published"], 100)
        # Two of seven topics, to each of three clients.
        self.assertLess(abs(said["received"] / said["published"] - 6 / 7), 0.2)
        seen = watcher.settle()
        counts = [seen.count(b"MSG %c " % topic) for topic in b"abcdefg"]
        self.assertGreater(min(counts), 10)
        self.assertLess(max(counts) - min(counts), 10)

    def test_as_fast_as_they_can(self) -> None:
        # A broker of its own: what it has not dealt with yet would reach the other tests' clients.
        with BrokerProcess() as broker:
            port = broker.expect_log(r"msgpack door: \S*?:(\d+)")[1].decode()
            address = f"127.0.0.1:{port}"
            found = rtmb("test-client", "--address", address, "--duration", "1.5s", "--json")
        self.assertEqual(found.returncode, 0, found)
        self.assertGreater(json.loads(found.stdout)["published"], 5000)

    def test_the_server_goes(self) -> None:
        with BrokerProcess() as other:
            port = other.expect_log(r"msgpack door: \S*?:(\d+)")[1].decode()
            with self.running("test-client", "--address", f"127.0.0.1:{port}", "--interval",
                              "1") as it:  # fmt: skip
                it.err.expect(b"1 clients connected")
                other.kill()
                self.assertEqual(it.wait(), 4)
                self.assertIn(b"rtmb: the server closed the connection\n", it.err.data)

    def test_metrics(self) -> None:
        found = rtmb("log-metrics", "--address", self.address, "--json", "--count", "40")
        self.assertEqual(found.returncode, 0, found)
        metrics = [json.loads(line) for line in found.stdout.splitlines()]
        self.assertTrue({"connections", "commands_total"} <= {m["metric"] for m in metrics})
        found = rtmb("log-metrics", "--address", self.address, "--count", "3")
        self.assertRegex(found.stdout.decode(), r"\A(\d\d:\d\d:\d\d  \S+ +[\d,.]+\n){3}\Z")
