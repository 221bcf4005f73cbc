"""The architecture, checked: who may import whom. docs/architecture.md tells the same."""

from __future__ import annotations

import ast
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import rtmb

#: Each module may import those above it.
ORDER = [
    "rtmb",
    "rtmb.interfaces",
    "rtmb.subjects",
    "rtmb.globs",
    "rtmb.message",
    "rtmb.packed",
    "rtmb.wire",
    "rtmb.client.errors",
    "rtmb.client.address",
    "rtmb.client.options",
    "rtmb.client.outgoing",
    "rtmb.client.confirmations",
    "rtmb.client.message",
    "rtmb.client.requests",
    "rtmb.client.subscription",
    "rtmb.client.websocket",
    "rtmb.client.connection",
    "rtmb.client.client",
    "rtmb.client.service",
    "rtmb.client",
    "rtmb.auth",
    "rtmb.config",
    "rtmb.logs",
    "rtmb.frames",
    "rtmb.history",
    "rtmb.segments",
    "rtmb.journal",
    "rtmb.hub",
    "rtmb.system",
    "rtmb.doors.listener",
    "rtmb.doors.outbox",
    "rtmb.doors.bulk",
    "rtmb.doors.events",
    "rtmb.doors.answers",
    "rtmb.doors.access",
    "rtmb.doors.streams",
    "rtmb.doors.sockets",
    "rtmb.doors.sse",
    "rtmb.doors.rest",
    "rtmb.doors.feed",
    "rtmb.doors.msgpack",
    "rtmb.doors.nats",
    "rtmb.doors.websocket",
    "rtmb.doors.journal",
    "rtmb.doors.dashboard",
    "rtmb.doors.metrics",
    "rtmb.doors.monitor",
    "rtmb.doors.http",
    "rtmb.doors",
    "rtmb.service",
    "rtmb.cli",
    "rtmb.cli.options",
    "rtmb.cli.runner",
    "rtmb.cli.serve",
    "rtmb.cli.form",
    "rtmb.cli.link",
    "rtmb.cli.messages",
    "rtmb.cli.reply",
    "rtmb.cli.recording",
    "rtmb.cli.load",
    "rtmb.cli.worker",
    "rtmb.cli.bench",
    "rtmb.cli.lbroker",
    "rtmb.cli.top",
    "rtmb.__main__",
    "rtmb.testing.process",
    "rtmb.testing.inside",
    "rtmb.testing.memory",
    "rtmb.testing.__main__",
    "rtmb.testing",
    "rtmb.pytest_plugin",
    "rtmb.spark.transport",
    "rtmb.spark.options",
    "rtmb.spark.sink",
    "rtmb.spark.source",
    "rtmb.spark",
    "rtmb.spark.jobs.session",
    "rtmb.spark.jobs.files",
    "rtmb.spark.jobs.messages",
    "rtmb.spark.jobs.broker",
    "rtmb.spark.jobs.store",
    "rtmb.spark.jobs.streams",
    "rtmb.spark.jobs.archive",
    "rtmb.spark.jobs.rollup",
    "rtmb.spark.jobs.charts",
    "rtmb.spark.jobs.query",
    "rtmb.spark.jobs.replay",
    "rtmb.spark.jobs.report",
    "rtmb.spark.jobs.page",
    "rtmb.spark.jobs",
    "rtmb.cli.pipeline",
    "rtmb.spark.jobs.__main__",
]


def imported(tree: ast.Module) -> set[str]:
    """What a module imports when it is loaded, not what only the type checker reads."""
    found: set[str] = set()
    for node in tree.body:
        for part in ast.walk(node) if not _is_type_checking(node) else ():
            if isinstance(part, ast.Import):
                found.update(alias.name for alias in part.names)
            elif isinstance(part, ast.ImportFrom) and part.module:
                for alias in part.names:
                    whole = f"{part.module}.{alias.name}"
                    found.add(whole if whole in ORDER else part.module)
    return {name for name in found if name.split(".")[0] == "rtmb"}


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


class LayoutTests(SynchronousTestCase):
    def test_imports_point_up(self) -> None:
        root = Path(rtmb.__file__).parent
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            if "test" in parts:
                continue
            name = ".".join(parts).removesuffix(".__init__")
            self.assertIn(name, ORDER, "a new module needs its place in ORDER")
            above = ORDER[: ORDER.index(name)]
            for other in imported(ast.parse(path.read_text())):
                self.assertIn(other, above, f"{name} imports {other}")

    def test_the_plugin_is_one_service_maker(self) -> None:
        """twisted.plugin needs the folder to be no package."""
        import twisted.plugins

        found = [Path(p) for p in twisted.plugins.__path__ if (Path(p) / "rtmb_plugin.py").exists()]
        self.assertTrue(found)
