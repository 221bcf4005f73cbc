"""Tests for `rtmb.api`: what other packages may rely on, and the example that shows it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

import rtmb
import rtmb.api
import rtmb.broker
from rtmb.api import IClient, IDoor, IDoorService, ISubscriber, Settings, SettingsError
from rtmb.auth import AuthTable
from rtmb.test.support.memory import MemoryBroker, MemoryTransport

#: To take a name away from this list breaks doors that others have written.
NAMES = """
    LINGER Announcements Broker Credentials Hub IAuthenticator IClient IDoor IDoorService
    ISubscriber Listener Message Outbox Roster Session Settings SettingsError Subscription User
    from_raw is_pattern is_subject port_number to_raw
"""
EXAMPLE = Path(rtmb.__file__).resolve().parent.parent / "examples" / "echo_door"


class NamesTests(SynchronousTestCase):
    def test_names(self) -> None:
        self.assertEqual(sorted(rtmb.api.__all__), sorted(NAMES.split()))
        for name in NAMES.split():
            self.assertTrue(hasattr(rtmb.api, name), name)


class Peer:
    """The other end of one connection to the door of the example."""

    def __init__(self, service: Any) -> None:
        self.transport = MemoryTransport()
        self.protocol = service.factory.buildProtocol(None)
        self.transport.protocol = self.protocol
        self.protocol.makeConnection(self.transport)

    def send(self, *lines: str) -> list[str]:
        self.protocol.dataReceived("".join(line + "\n" for line in lines).encode())
        return self.heard()

    def heard(self) -> list[str]:
        data: bytes = self.transport.value()
        self.transport.clear()
        return data.decode().splitlines()

    @property
    def closed(self) -> bool:
        return self.transport.lost


def guests(**permissions: Any) -> AuthTable:
    guest = {"user": "guest", "password": "", "permissions": permissions}
    return AuthTable.from_table({"users": [guest], "no_auth_user": "guest"})


class ExampleTests(SynchronousTestCase):
    """`examples/echo_door`."""

    def setUp(self) -> None:
        if not EXAMPLE.is_dir():
            self.skipTest("the examples are not installed with the package")
        self.patch(sys, "path", [str(EXAMPLE), *sys.path])
        from echo_door import EchoDoor  # type: ignore[import-not-found]

        self.door = EchoDoor()
        self.patch(rtmb.broker, "plugged_in", lambda: [self.door])

    def start(self, table: dict[str, Any] | None = None, **settings: Any) -> MemoryBroker:
        self.memory = MemoryBroker(doors={"echo": table or {}}, **settings)
        self.service: Any = self.memory.broker.doors["echo"]
        return self.memory

    def peer(self) -> Peer:
        return Peer(self.service)

    def test_it_imports_the_api_only(self) -> None:
        for path in EXAMPLE.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                modules = [node.module] if isinstance(node, ast.ImportFrom) else []
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                for module in modules:
                    if str(module).split(".")[0] == "rtmb":
                        self.assertEqual(module, "rtmb.api", path)

    def test_what_it_provides(self) -> None:
        self.start()
        verifyObject(IDoor, self.door)
        verifyObject(IDoorService, self.service)
        client = self.peer().protocol
        verifyObject(ISubscriber, client)
        verifyObject(IClient, client)

    def test_a_line_reaches_all_doors_and_comes_back(self) -> None:
        memory = self.start()
        library = memory.library()
        library.send(b"SUB > 1\r\n")
        one, other = self.peer(), self.peer()
        self.assertEqual(one.send("echo.a hello there", "b only you"), ["echo.a hello there"])
        self.assertEqual(other.heard(), ["echo.a hello there"])
        expected = b"MSG echo.a 1 11\r\nhello there\r\nMSG b 1 8\r\nonly you\r\n"
        self.assertEqual(library.heard(), expected)
        library.send(b"PUB echo.b 2\r\nhi\r\n")
        self.assertEqual(one.heard(), ["echo.b hi"])
        self.assertEqual(one.send("*"), ["? a line is: subject text"])
        self.assertEqual(len(memory.broker.clients), 3)
        one.transport.loseConnection()
        self.assertEqual(len(memory.broker.clients), 2)

    def test_settings(self) -> None:
        for table, reason in (
            ({"subject": "a..b"}, "doors.echo.subject: not a pattern: 'a..b'"),
            ({"port": "x"}, "doors.echo.port: expected a port from 0 to 65535"),
            ({"prot": 1}, "doors.echo: unknown key prot"),
        ):
            error = self.assertRaises(SettingsError, self.start, table)
            self.assertEqual(str(error), reason)

    def test_permissions(self) -> None:
        self.start(auth=guests(publish={"deny": ["closed"]}, subscribe={"deny": ["echo.secret"]}))
        peer = self.peer()
        said = peer.send("closed 1", "echo.secret 2", "echo.a 3")
        self.assertEqual(said, ["? you may not publish on closed", "echo.a 3"])

    def test_reload(self) -> None:
        """Who may not subscribe any more is told so; who has no access any more must go."""
        self.start(auth=guests())
        peer = self.peer()
        broker = self.memory.broker
        broker.reload(Settings(auth=guests(subscribe={"deny": ["echo.>"]})))
        self.assertEqual(peer.heard(), ["? you may not subscribe here any more"])
        self.assertEqual(peer.send("echo.a 1"), [])
        self.assertEqual(self.peer().heard(), ["? you may not subscribe here"])
        broker.reload(Settings(auth=AuthTable.from_table({"token": "secret"})))
        self.assertEqual(peer.heard(), ["? Authorization Violation"])
        self.assertTrue(peer.closed)
        self.assertTrue(self.peer().closed)

    def test_lame_duck(self) -> None:
        self.start()
        peer = self.peer()
        gone: list[Any] = []
        self.memory.broker.enter_lame_duck().addCallback(gone.append)
        self.assertEqual(peer.heard(), ["? this broker is to stop; go elsewhere"])
        self.assertEqual(self.peer().heard(), ["? lame duck mode"])
        self.assertEqual(gone, [])
        self.memory.clock.advance(30)
        self.assertTrue(peer.closed)
        self.assertEqual(len(gone), 1)

    def test_who_does_not_read(self) -> None:
        """Publishers pause for a moment; over `max_pending` the client is cut off, and told of."""
        self.start(max_pending=8 << 20)
        slow, publisher = self.peer(), self.peer()
        slow.transport.stuck = True
        paused = False
        with capturedLogs() as logs:
            for _ in range(20):
                publisher.send(*["echo.a " + "x" * 10_000] * 50)
                paused = paused or publisher.transport.producerState == "paused"
                self.memory.clock.advance(1)
                self.assertEqual(publisher.transport.producerState, "producing")
        self.assertTrue(paused)
        self.assertTrue(slow.closed)
        self.assertFalse(publisher.closed)
        self.assertIn("slow consumer", "\n".join(str(formatEvent(event)) for event in logs))
        self.assertEqual(self.memory.broker.announcements.slow_consumers, {("echo", "close"): 1})
