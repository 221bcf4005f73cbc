"""The architecture, checked: which layer may know which. docs/architecture.md tells the same."""

from __future__ import annotations

import ast
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import rtmb

#: What each layer may import of rtmb, besides itself and the package's own facts (`rtmb`). A layer
#: is a set of modules and packages; the longest name that fits decides.
LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "facts": ({"rtmb"}, set()),
    "seams": ({"rtmb.interfaces"}, set()),
    "core": ({"rtmb.core"}, {"seams", "codecs"}),
    "codecs": ({"rtmb.codecs"}, {"core"}),
    "settings": ({"rtmb.config", "rtmb.auth", "rtmb.logs", "rtmb.tls"}, {"seams", "core"}),
    "telling": ({"rtmb.announcements", "rtmb.clients", "rtmb.pulse"}, {"seams", "core"}),
    "doors, shared": (
        {"rtmb.doors.session", "rtmb.doors.listener", "rtmb.doors.outbox"},
        {"seams", "core", "codecs", "settings", "telling"},
    ),
    "nats door": (
        {"rtmb.doors.nats"},
        {"seams", "core", "codecs", "settings", "telling", "doors, shared"},
    ),
    "msgpack door": (
        {"rtmb.doors.msgpack"},
        {"seams", "core", "codecs", "settings", "telling", "doors, shared"},
    ),
    "http door": (
        {"rtmb.doors.http"},
        # NATS clients come in by it as well, over WebSockets.
        {"seams", "core", "codecs", "settings", "telling", "doors, shared", "nats door"},
    ),
    "doors": ({"rtmb.doors"}, {"seams", "nats door", "msgpack door", "http door"}),
    "broker": (
        {"rtmb.broker"},
        {"seams", "core", "settings", "telling", "doors, shared", "doors"},
    ),
    # What other packages' doors import; nothing of rtmb itself does.
    "api": (
        {"rtmb.api"},
        {"seams", "core", "settings", "telling", "doors, shared", "broker"},
    ),
    "process": ({"rtmb.process"}, set()),
    "twistd": ({"rtmb.twistd"}, {"broker", "settings", "process"}),
    "client": ({"rtmb.client"}, {"codecs", "core"}),
    "command line": (
        {"rtmb.cli", "rtmb.__main__", "rtmb.spark.jobs.__main__"},
        {"client", "codecs", "core", "settings", "broker", "twistd", "testing", "spark"},
    ),
    "testing": (
        {"rtmb.testing", "rtmb.pytest_plugin"},
        {"broker", "settings", "core", "codecs", "client", "nats door", "seams"},
    ),
    # Runs where there is no broker: on Spark's own machines. It may use what is pure.
    "spark": ({"rtmb.spark"}, {"core", "codecs", "settings", "client"}),
}


def layer_of(module: str) -> str:
    owners = {name: layer for layer, (names, _) in LAYERS.items() for name in names}
    while module not in owners:
        module = module.rpartition(".")[0]
    return owners[module]


def imported(tree: ast.Module) -> set[str]:
    """What a module imports when it is loaded, not what only the type checker reads."""
    found: set[str] = set()
    for node in tree.body:
        for part in ast.walk(node) if not _is_type_checking(node) else ():
            if isinstance(part, ast.Import):
                found.update(alias.name for alias in part.names)
            elif isinstance(part, ast.ImportFrom) and part.module:
                found.update(f"{part.module}.{alias.name}" for alias in part.names)
    return {name for name in found if name.split(".")[0] == "rtmb"}


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


class LayoutTests(SynchronousTestCase):
    def test_layers(self) -> None:
        root = Path(rtmb.__file__).parent
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            if "test" in parts:
                continue
            name = ".".join(parts).removesuffix(".__init__")
            layer = layer_of(name)
            allowed = LAYERS[layer][1] | {layer, "facts"}
            for other in sorted(imported(ast.parse(path.read_text()))):
                self.assertIn(layer_of(other), allowed, f"{name} ({layer}) imports {other}")

    def test_no_door_imports_twisted_in_the_core(self) -> None:
        """The core has no sockets and no reactor, the codecs no I/O."""
        root = Path(rtmb.__file__).parent
        for path in [*(root / "core").glob("*.py"), *(root / "codecs").glob("*.py")]:
            self.assertNotIn("twisted", path.read_text().replace("twisted.internet.task", ""))

    def test_the_plugin_is_one_service_maker(self) -> None:
        """twisted.plugin needs the folder to be no package."""
        import twisted.plugins

        found = [Path(p) for p in twisted.plugins.__path__ if (Path(p) / "rtmb_plugin.py").exists()]
        self.assertTrue(found)
