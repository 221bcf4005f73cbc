"""`rtmb pub`, `sub`, `request`, `reply`, `record` and `replay` against rtmb and nats-server."""

from __future__ import annotations

import base64
import fcntl
import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import termios
import time
from pathlib import Path
from typing import Any

from rtmb.test.support.commands import RTMB, WithServer, shared
from rtmb.test.support.files import folder
from rtmb.test.support.processes import NATS_SERVER, PATIENCE, NatsServerProcess, environment, need


class MessageTests(WithServer):
    """What works with rtmb; the same tests run against nats-server below."""

    def test_published_is_printed(self) -> None:
        with self.subscribed("greet.*", "others", "--count", "3") as sub:
            self.assertEqual(self.check("pub", "greet.world", "hello"), b"")
            self.check("pub", "others", "-H", "A=1", "-H", "A=2", "-H", "B=x y", "--reply", "back")
            self.check("pub", "greet.all", "-", stdin=b"one\ntwo\n")
            self.assertEqual(sub.wait(), 0)
            lines = sub.out.data.decode().splitlines()
        clock = r"\d\d:\d\d:\d\d\.\d{3}"
        self.assertRegex(lines[0], rf"^{clock}  greet.world  hello$")
        self.assertRegex(lines[1], rf"^{clock}  others  → back  A: 1  A: 2  B: x y  $")
        self.assertRegex(lines[2], rf"^{clock}  greet.all$")
        self.assertEqual(lines[3:], ["one", "two"])

    def test_json_holds_all_of_a_message(self) -> None:
        with self.subscribed("json", "--json", "--count", "2") as sub:
            self.check("pub", "json", '{"id": 1}', "-H", "A=1", "-H", "A=2", "--reply", "back")
            self.check("pub", "json", "-", stdin=b"\xff\x00\n")
            self.assertEqual(sub.wait(), 0)
            first, second = map(json.loads, sub.out.data.splitlines())
        self.assertRegex(first.pop("time"), r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
        self.assertEqual(
            first,
            {"subject": "json", "reply": "back", "headers": {"A": ["1", "2"]},
             "payload": '{"id": 1}'},
        )  # fmt: skip
        self.assertEqual(base64.b64decode(second["payload_base64"]), b"\xff\x00\n")
        self.assertNotIn("payload", second)

    def test_raw_is_the_payload(self) -> None:
        with self.subscribed("raw", "--raw", "--count", "2") as sub:
            self.check("pub", "raw", "-", stdin=b"\xff\x00")
            self.check("pub", "raw")
            self.assertEqual(sub.wait(), 0)
            self.assertEqual(sub.out.data, b"\xff\x00\n\n")

    def test_what_others_send_does_not_reach_the_terminal_raw(self) -> None:
        with self.subscribed("evil", "--count", "1") as sub:
            self.check("pub", "evil", "-", "-H", "X=\x1b[31m", stdin=b"a\x1b[2Jb\x07\x9b\xc2\x9b")
            sub.wait()
            shown = sub.out.data
        self.assertNotRegex(shown, rb"\x1b|\x07|\x9b")
        self.assertIn(rb"X: \x1b[31m  a\x1b[2Jb\x07\x9b\x9b", shown)

    def test_many_with_a_template(self) -> None:
        with self.subscribed("many", "--raw", "--count", "20000") as sub:
            self.check("pub", "many", '{"n": {n}}', "--template", "--count", "20000")
            self.assertEqual(sub.wait(), 0)
            numbers = [json.loads(line)["n"] for line in sub.out.data.splitlines()]
        self.assertEqual(numbers, list(range(1, 20001)))

    def test_every(self) -> None:
        with self.subscribed("tick", "--json", "--count", "3") as sub:
            self.check("pub", "tick", "--every", "100ms", "--count", "3")
            sub.wait()
            times = [json.loads(line)["time"][-10:-1] for line in sub.out.data.splitlines()]
        first, _, third = (float(t) for t in times)
        self.assertGreaterEqual((third - first) % 60, 0.19)

    def test_a_queue_shares(self) -> None:
        with (
            self.subscribed("work", "--queue", "q", "--raw") as one,
            self.subscribed("work", "--queue", "q", "--raw") as two,
        ):
            self.check("pub", "work", "x", "--count", "100")
            end = time.monotonic() + PATIENCE
            while (n := len(one.out.data + two.out.data)) < 200 and time.monotonic() < end:
                time.sleep(0.02)
            self.assertEqual(n, 200)
            self.assertTrue(one.out.data)
            self.assertTrue(two.out.data)

    def test_timeout(self) -> None:
        found = self.rtmb("sub", "silence", "--timeout", "100ms")
        self.assertEqual((found.returncode, found.stdout), (0, b""))
        found = self.rtmb("sub", "silence", "--timeout", "100ms", "--count", "2")
        self.assertEqual(found.returncode, 1)
        self.assertIn(b"rtmb: 0 of 2 messages within 0.1 s\n", found.stderr)

    def test_ctrl_c(self) -> None:
        with self.subscribed("silence") as sub:
            self.assertEqual(sub.interrupt(), 130)
            self.assertEqual(sub.err.data, b"rtmb: subscribed to silence\n")

    def test_ctrl_c_before_there_is_a_payload(self) -> None:
        for command in ("pub", "request"):
            process = subprocess.Popen(
                [*RTMB, command, "x", "-"],
                env=environment(self.env),
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            with process:
                self.addCleanup(process.kill)
                assert process.stdin is not None
                assert process.stderr is not None
                process.stdin.write(b"x")
                process.stdin.flush()
                self.wait_until_read(process.stdin.fileno())
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(PATIENCE), 130)
                self.assertEqual(process.stderr.read(), b"")

    def wait_until_read(self, pipe: int) -> None:
        """Wait until nothing is left in a pipe: who reads it has got it and waits for more."""
        end = time.monotonic() + PATIENCE
        while fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) != bytes(4):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def test_sigterm(self) -> None:
        with self.subscribed("silence") as sub:
            sub.process.terminate()
            self.assertEqual(sub.wait(), 143)

    def test_head(self) -> None:
        """`rtmb sub x | head -1` ends when nobody reads on, and does not complain."""
        sub = subprocess.Popen(
            [*RTMB, "sub", "head"],
            env=environment(self.env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.addCleanup(sub.kill)
        assert sub.stdout is not None
        assert sub.stderr is not None
        self.assertEqual(sub.stderr.readline(), b"rtmb: subscribed to head\n")
        self.check("pub", "head", "one")
        self.assertIn(b"one", sub.stdout.readline())
        sub.stdout.close()
        self.check("pub", "head", "two")
        self.assertEqual(sub.wait(PATIENCE), 141)
        self.assertEqual(sub.stderr.read(), b"")
        sub.stderr.close()

    # request and reply

    def test_request(self) -> None:
        with self.running("reply", "upper.*", "--exec", 'tr a-z A-Z; echo "$MESSAGE_SUBJECT"',
                          "--count", "3") as reply:  # fmt: skip
            reply.err.expect(b"answering on")
            self.assertEqual(self.check("request", "upper.x", "hello"), b"HELLOupper.x\n")
            self.assertEqual(self.check("request", "upper.y", "a", "--raw"), b"Aupper.y\n")
            found = json.loads(self.check("request", "upper.z", "-", "--json", stdin=b"b"))
            self.assertEqual(found["payload"], "Bupper.z\n")
            self.assertEqual(reply.wait(), 0)

    def test_raw_answer_is_exact(self) -> None:
        payload = bytes(range(256)) * 100
        with self.running("reply", "echo", "--echo", "--count", "1") as reply:
            reply.err.expect(b"answering on")
            self.assertEqual(self.check("request", "echo", "-", "--raw", stdin=payload), payload)

    def test_the_status_of_the_command_is_told(self) -> None:
        with self.running("reply", "fails", "--exec", "echo no >&2; exit 7", "--count", "1") as it:
            it.err.expect(b"answering on")
            found = json.loads(self.check("request", "fails", "--json"))
            self.assertEqual(found["headers"], {"Exit-Status": ["7"]})
            it.wait()
            self.assertIn(b"\nno\n", it.err.data)
            self.assertIn(b"status 7, for a message on fails", it.err.data)

    def test_a_command_that_hangs_is_killed(self) -> None:
        with self.running("reply", "hangs", "--exec", "exec sleep 600", "--exec-timeout", "200ms",
                          "--count", "1") as it:  # fmt: skip
            it.err.expect(b"answering on")
            found = json.loads(self.check("request", "hangs", "--json", "--timeout", "20s"))
            self.assertEqual(found["headers"], {"Exit-Status": ["137"]})

    def test_an_answer_too_large_is_none(self) -> None:
        with self.running("reply", "large", "--exec", "head -c 3000000 /dev/zero",
                          "--count", "1") as it:  # fmt: skip
            it.err.expect(b"answering on")
            found = json.loads(self.check("request", "large", "--json", "--timeout", "20s"))
            self.assertEqual(found["payload"], "")
            self.assertNotEqual(found["headers"], {"Exit-Status": ["0"]})

    def test_so_many_commands_at_once(self) -> None:
        gate = folder(self) / "gate"
        os.mkfifo(gate)
        command = f"echo begin >&2; read line < {gate}; echo end >&2"
        with self.running("reply", "slow", "--exec", command, "--workers", "1",
                          "--count", "2") as reply:  # fmt: skip
            reply.err.expect(b"answering on")
            client = self.client()
            client.send(b"PUB slow back 0\r\n\r\nPUB slow back 0\r\n\r\n")
            for n in (1, 2):
                reply.err.expect(rb"(begin\n(end\n)?){%d}" % n)
                gate.write_text("go\n")
                reply.err.expect(rb"(begin\nend\n){%d}" % n)
            self.assertEqual(reply.wait(), 0)
            self.assertEqual(reply.err.data.split(b"\n", 1)[1], b"begin\nend\n" * 2)

    def test_nobody_answers(self) -> None:
        self.fails(3, "nobody answers on nobody.home", "request", "nobody.home", "x")

    def test_no_answer_in_time(self) -> None:
        self.client().subscribe("mute")
        self.fails(1, "no answer on mute within 0.2 s", "request", "mute", "--timeout", "200ms")

    def test_several_answers(self) -> None:
        with (
            self.running("reply", "all", "--echo") as one,
            self.running("reply", "all", "--echo") as two,
        ):
            one.err.expect(b"answering on")
            two.err.expect(b"answering on")
            found = self.check("request", "all", "x", "--raw", "--replies", "2")
            self.assertEqual(found, b"x\nx\n")
            found = self.check("request", "all", "y", "--raw", "--replies", "0", "--timeout", "1")
            self.assertEqual(found, b"y\ny\n")
            self.fails(1, "2 of 3 answers within 1 s", "request", "all", "--raw", "--replies", "3",
                       "--timeout", "1")  # fmt: skip

    # record and replay

    def recording(self, *lines: object) -> str:
        path = folder(self) / "made.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in [{"rtmb": 1}, *lines]))
        return str(path)

    def replayed(self, pattern: str, count: int, *arguments: str) -> list[dict[str, Any]]:
        with self.subscribed(pattern, "--json", "--count", str(count)) as sub:
            found = self.rtmb("replay", *arguments)
            self.assertEqual(found.returncode, 0, found)
            sub.wait()
            return [json.loads(line) for line in sub.out.data.splitlines()]

    def test_recorded_is_replayed(self) -> None:
        for name in ("it.jsonl", "it.jsonl.gz"):
            path = str(folder(self) / name)
            with self.running("record", "rec.>", "-o", path) as record:
                record.err.expect(b"recording rec.>")
                self.check("pub", "rec.a", "tëxt", "-H", "A=1", "-H", "A=2", "--reply", "back")
                self.check("pub", "rec.b", "-", stdin=b"\x00\xff")
                # What has come is in the file soon, while the recording goes on.
                end = time.monotonic() + PATIENCE
                while b"3" not in _lines(path) and time.monotonic() < end:
                    time.sleep(0.05)
                self.assertEqual(record.interrupt(), 130)
                self.assertTrue(record.err.data.endswith(f"2 messages in {path}\n".encode()))
            data = gzip.decompress(Path(path).read_bytes()) if name.endswith("gz") else Path(
                path).read_bytes()  # fmt: skip
            start, first, second = map(json.loads, data.splitlines())
            self.assertEqual(start["rtmb"], 1)
            self.assertEqual(start["patterns"], ["rec.>"])
            self.assertEqual(
                (first["subject"], first["payload"], first["reply"]), ("rec.a", "tëxt", "back")
            )
            self.assertEqual(second["payload_base64"], "AP8=")
            self.assertLess(first["t"], second["t"])
            one, two = self.replayed(
                "test.rec.*", 2, path, "--subject-prefix", "test", "--speed", "max"
            )
            self.assertEqual((one["payload"], one["headers"]), ("tëxt", {"A": ["1", "2"]}))
            self.assertNotIn("reply", one)
            self.assertEqual(two["payload_base64"], "AP8=")

    def test_timing_is_kept(self) -> None:
        path = self.recording(
            {"t": 60.0, "subject": "time.a", "payload": ""},
            {"t": 60.6, "subject": "time.b", "payload": ""},
        )
        for speed, least in (("1x", 0.59), ("2x", 0.29)):
            one, two = self.replayed("time.*", 2, path, "--speed", speed)
            passed = (float(two["time"][-10:-1]) - float(one["time"][-10:-1])) % 60
            self.assertTrue(least <= passed < least + 0.25, f"{passed} at {speed}")

    def test_loop(self) -> None:
        path = self.recording({"t": 0, "subject": "loop", "payload": "x"})
        with (
            self.subscribed("loop", "--raw", "--count", "5") as sub,
            self.running("replay", path, "--loop") as replay,
        ):
            self.assertEqual(sub.wait(), 0)
            self.assertEqual(replay.interrupt(), 130)

    def test_a_file_is_not_overwritten(self) -> None:
        path = self.recording()
        self.fails(1, f"{path} exists; --force replaces it", "record", "x", "-o", path)
        found = self.rtmb("record", "x", "-o", path, "--force", "--duration", "100ms")
        self.assertEqual(found.returncode, 0)

    def test_record_to_standard_output(self) -> None:
        with self.running("record", "std", "-o", "-", "--count", "1") as record:
            record.err.expect(b"recording")
            self.check("pub", "std", "x")
            self.assertEqual(record.wait(), 0)
            [line] = record.out.data.splitlines()  # messages and nothing else: | jq .subject
            self.assertEqual(json.loads(line)["subject"], "std")
        path = folder(self) / "piped.jsonl"
        path.write_bytes(record.out.data)
        [message] = self.replayed("std", 1, str(path))
        self.assertEqual(message["payload"], "x")

    def test_a_file_that_is_cut_off(self) -> None:
        lines = [{"t": 0, "subject": "cut", "payload": f"{n} {n * 7919}"} for n in range(500)]
        whole = Path(self.recording(*lines)).read_bytes()
        directory = folder(self)
        plain_cut, packed_cut = directory / "cut.jsonl", directory / "cut.jsonl.gz"
        plain_cut.write_bytes(whole[:-20])
        packed_cut.write_bytes(gzip.compress(whole)[:-200])
        for path in (plain_cut, packed_cut):
            with self.subscribed("cut", "--raw") as sub:
                found = self.rtmb("replay", str(path))
                self.assertEqual(found.returncode, 0)
                said = found.stderr.decode()
                self.assertIn(f"rtmb: {path} is cut off ", said)
                count = int(re.findall(r"(\d+) messages published", said)[0])
                sub.out.expect(rb"(?m)^%d " % (count - 1))
                self.assertEqual(sub.out.data.count(b"\n"), count)
            if path is plain_cut:
                self.assertEqual(count, 499)
            else:
                self.assertTrue(100 < count < 500, count)

    def test_what_is_no_recording(self) -> None:
        good = {"t": 0, "subject": "x", "payload": ""}
        path = self.recording(good, {"t": 0, "subject": "x.*", "payload": ""}, good)
        self.fails(1, f"{path}, line 3: no subject to publish on", "replay", path)
        Path(path).write_text("hello\n")
        self.fails(1, f"{path} is no recording of rtmb", "replay", path)
        Path(path).write_text('{"rtmb": 2}\n')
        self.fails(1, f"{path} has version 2, and only 1 is known", "replay", path)
        packed = path + ".gz"
        Path(packed).write_text("hello\n")
        self.fails(1, f"{packed}: Not a gzipped file .*", "replay", packed)


def _lines(path: str) -> bytes:
    """How many whole lines a recording has at this moment."""
    count = 0
    try:
        with gzip.open(path) if path.endswith(".gz") else Path(path).open("rb") as file:
            for line in file:
                count += line.endswith(b"\n")
    except (EOFError, FileNotFoundError):
        pass
    return b"%d" % count


class NatsServerTests(MessageTests):
    """The same against the real nats-server."""

    def start(self) -> NatsServerProcess:
        need(self, Path(NATS_SERVER).exists(), "no nats-server here")
        return shared(NatsServerProcess)

    def test_it_has_no_last_values(self) -> None:
        self.fails(
            1, "--last and --replay need rtmb, and the server is another", "sub", "x", "--last"
        )


class HistoryTests(WithServer):
    def test_last_and_replay(self) -> None:
        for word in ("one", "two", "three"):
            self.check("pub", "hist", word)
        for arguments, expected in (
            (["--last", "--count", "1"], b"three\n"),
            (["--replay", "2", "--count", "2"], b"two\nthree\n"),
        ):
            found = self.rtmb("sub", "hist", "--raw", *arguments)
            self.assertEqual((found.returncode, found.stdout), (0, expected))

    def test_the_past_is_told_from_the_present(self) -> None:
        for word in ("one", "two"):
            self.check("pub", "told.apart", word)
        for option in (["--last"], ["--replay", "2"]):
            count = len(option) + 1
            arguments = ["told.apart", *option, "--count", str(count)]
            with self.subscribed(*arguments) as pretty, self.subscribed(*arguments, "--json") as it:
                self.check("pub", "told.apart", "live")
                self.assertEqual((pretty.wait(), it.wait()), (0, 0))
            lines = pretty.out.data.decode().splitlines()
            for line in lines[:-1]:
                self.assertRegex(line, r"^earlier       told\.apart  (one|two|live)$")
            self.assertRegex(lines[-1], r"^\d\d:\d\d:\d\d\.\d{3}  told\.apart  live$")
            messages = [json.loads(line) for line in it.out.data.splitlines()]
            marks = [message.get("replayed", False) for message in messages]
            self.assertEqual(marks, [True] * (count - 1) + [False])

    def test_head_ends_it(self) -> None:
        """`rtmb sub x --last | head -1` ends though nothing more comes that could be printed."""
        self.check("pub", "head", "x")
        line = f"{shlex.join(RTMB)} sub head --last --raw | head -1; echo ${{PIPESTATUS[0]}}"
        found = subprocess.run(
            ["bash", "-c", line],
            env=environment(self.env),
            capture_output=True,
            timeout=2 * PATIENCE,
            check=True,
        )
        self.assertEqual(found.stdout, b"x\n141\n")
        self.assertNotIn(b"Traceback", found.stderr)
