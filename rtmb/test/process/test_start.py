"""How the broker starts as a process: options, log, ports, descriptors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

from rtmb import __version__, compiled
from rtmb.test.support.files import folder
from rtmb.test.support.processes import (
    PATIENCE,
    TWISTD,
    RawClient,
    WithProcesses,
    environment,
    need,
    twistd,
)

#: For a broker whose ports are found in its log.
FREE_PORTS = ("--port", "0", "--http-port", "0", "--msgpack-port", "0")


def _ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], PATIENCE)[0])


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

    def test_variables_that_are_no_options(self) -> None:
        """A broker in a pod starts whatever Kubernetes sets, and says what it did not read."""
        broker = self.start(
            env={
                "RTMB_PORT": "tcp://10.0.0.1:4222",
                "RTMB_HTTP_PORT": "tcp://10.0.0.1:8080",
                "RTMB_SERVICE_HOST": "10.0.0.1",
                "RTMB_MAX_PAYLAOD": "1",
            },
        )
        self.client(broker)
        broker.expect_log(r"RTMB_HTTP_PORT, RTMB_PORT, RTMB_SERVICE_HOST skipped: Kubernetes")
        broker.expect_log(r"unknown variable RTMB_MAX_PAYLAOD; did you mean RTMB_MAX_PAYLOAD\?")

    def test_tells_whether_it_is_compiled(self) -> None:
        for env, form in (({}, compiled.form()), ({"RTMB_PURE": "1"}, "pure Python")):
            broker = self.start(env=env)
            broker.expect_log(rf"rtmb {__version__} on Python [\d.]+, {form}\b")
            with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/varz") as answer:
                self.assertEqual(json.load(answer)["form"], form)
            shown = twistd("--version", env=env, cwd=folder(self)).stdout
            self.assertEqual(shown, f"rtmb {__version__} ({form})\n")

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
        place = folder(self)
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
        place = folder(self)
        for toml in ("password = 918273", "token = 918273"):
            with self.subTest(toml=toml):
                (place / "rtmb.toml").write_text(toml)
                ended = twistd("--config", "rtmb.toml", cwd=place)
                self.assert_refused(ended, "text in quotes")
                self.assertNotIn("918273", ended.stdout + ended.stderr)

    def test_port_in_use(self) -> None:
        """A port that someone else has is one clear line and exit status 1."""
        place = folder(self)
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = str(other.getsockname()[1])
            ended = twistd("--port", port, cwd=place)
        self.assert_cannot_listen(ended, f"127.0.0.1:{port}: Address already in use")

    def test_address_that_is_not_here(self) -> None:
        """An interface that this machine does not have is one clear line and exit status 1."""
        for interface in ("192.0.2.1", "no such host"):
            with self.subTest(interface=interface):
                ended = twistd("--port", "0", "--interface", interface, cwd=folder(self))
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
                place = folder(self)
                log = self.run_daemon(place, "twistd.log", "--log-format", log_format)
                self.assertIn("text door", log)

    def test_daemon_with_json_and_no_logfile(self) -> None:
        """A daemon that was told no log file keeps twistd's own, for JSON lines too."""
        log = self.run_daemon(folder(self), None, "--log-format", "json")
        self.assertIn("text door", log)

    def run_daemon(self, place: Path, logfile: str | None, *arguments: str) -> str:
        """Start and stop a daemon; its log."""
        chosen = [] if logfile is None else [f"--logfile={logfile}"]
        subprocess.run(
            [TWISTD, "--pidfile=rtmb.pid", *chosen, "rtmb", *FREE_PORTS, *arguments],
            cwd=place,
            env=environment(),
            # It loads twistd once and the broker twice, and the machine may be busy.
            timeout=5 * PATIENCE,
            check=True,
        )
        # The parent returns when its child is a daemon that listens.
        log = place / (logfile or "twistd.log")
        port = re.search(r"text door: nats://127\.0\.0\.1:(\d+)", log.read_text())
        assert port is not None
        pid = int((place / "rtmb.pid").read_text())
        ending = os.pidfd_open(pid)
        try:
            with RawClient(int(port[1])) as client:
                client.connect()
                signal.pidfd_send_signal(ending, signal.SIGTERM)
                client.read_to_end()
            self.assertTrue(_ended(ending), "the daemon did not stop")
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(ending, signal.SIGKILL)
            os.close(ending)
        self.assertFalse((place / "rtmb.pid").exists())
        return log.read_text()

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
