"""The architecture, checked: which layer may know which. docs/architecture.md tells the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import rtmb

#: What each layer may import of rtmb, besides itself and the package's own facts (`rtmb`). A layer
#: is a set of modules and packages; the longest name that fits decides.
LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "facts": ({"rtmb"}, set()),
    "seams": ({"rtmb.interfaces"}, set()),
    "core": ({"rtmb.core"}, {"seams"}),
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
        {"broker", "settings", "core", "codecs", "client", "nats door", "doors, shared", "seams"},
    ),
    # Runs where there is no broker: on Spark's own machines. It may use what is pure.
    "spark": ({"rtmb.spark"}, {"core", "codecs", "settings", "client"}),
}


def layer_of(module: str) -> str:
    owners = {name: layer for layer, (names, _) in LAYERS.items() for name in names}
    while module not in owners:
        module = module.rpartition(".")[0]
    return owners[module]


def imported(tree: ast.Module, package: str = "rtmb") -> set[str]:
    """What a module imports of a package when it is loaded, not what only the type checker reads;
    of all packages if none is named."""
    found: set[str] = set()
    for node in tree.body:
        for part in ast.walk(node) if not _is_type_checking(node) else ():
            if isinstance(part, ast.Import):
                found.update(alias.name for alias in part.names)
            elif isinstance(part, ast.ImportFrom) and part.module:
                found.update(f"{part.module}.{alias.name}" for alias in part.names)
    return {name for name in found if not package or name.split(".")[0] == package}


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


#: No file is longer, nor any function: what is longer does more than one thing.
MOST_LINES_OF_A_FILE = 450
MOST_LINES_OF_A_FUNCTION = 60
#: But for these, each with its reason.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

ROOT = Path(rtmb.__file__).parents[1]
TESTS = ROOT / "rtmb" / "test"


def sources(*folders: str) -> dict[str, str]:
    """The text of each module below some folders, by its path."""
    found = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return {str(path.relative_to(ROOT)): path.read_text() for path in found}


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


class SizeTests(SynchronousTestCase):
    everywhere = ("rtmb", "twisted", "benchmarks", "examples")

    def test_files(self) -> None:
        long = {
            path: lines
            for path, text in sources(*self.everywhere).items()
            if (lines := text.count("\n")) > MOST_LINES_OF_A_FILE and path not in LONG_FILES
        }
        self.assertEqual(long, {})

    def test_functions(self) -> None:
        long = {}
        for path, text in sources(*self.everywhere).items():
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    lines = (node.end_lineno or 0) - node.lineno + 1
                    if lines > MOST_LINES_OF_A_FUNCTION:
                        long[f"{path}: {node.name}"] = lines
        self.assertEqual({k: v for k, v in long.items() if k not in LONG_FUNCTIONS}, {})

    def test_the_first_line_says_what_a_module_holds(self) -> None:
        for path, text in sources(*self.everywhere).items():
            if text:
                self.assertTrue(ast.get_docstring(ast.parse(text)), path)


class ContributingTests(SynchronousTestCase):
    def test_it_names_what_is_there(self) -> None:
        text = (ROOT / "CONTRIBUTING.md").read_text()
        named = re.findall(r"`((?:rtmb|docs|benchmarks|examples)/[\w./]+)`", text)
        self.assertGreater(len(named), 30)
        self.assertEqual([name for name in named if not (ROOT / name).exists()], [])


class TestsTests(SynchronousTestCase):
    """The tests are sorted by what they need."""

    def test_each_is_in_its_place(self) -> None:
        for path in TESTS.rglob("test_*.py"):
            self.assertIn(path.parent.name, {"unit", "process", "browser", "spark"}, path)
            self.assertEqual(path.parents[1], TESTS)

    def test_what_several_need_is_in_support(self) -> None:
        """A test that another test imports is run by nobody alone."""
        for path, text in sources("rtmb/test").items():
            for name in imported(ast.parse(text)):
                if name.startswith("rtmb.test."):
                    self.assertTrue(name.startswith("rtmb.test.support."), f"{path} imports {name}")

    def test_folders_go_with_their_test(self) -> None:
        """What trial's `mktemp` makes stays, under pytest in the folder where it runs."""
        for path, text in sources("rtmb/test").items():
            self.assertNotIn("self.mktemp" + "(", text, f"{path}: use `folder` of support/files.py")

    def test_unit_tests_need_no_socket_and_no_process(self) -> None:
        outside = {"subprocess", "socket", "threading", "asyncio", "pyspark", "selenium"}
        before: set[str] = set()
        while before != outside:
            before = set(outside)
            for path, text in sources("rtmb/test/support").items():
                if self.reaches(text, outside):
                    outside.add(path.removesuffix(".py").replace("/", "."))
        self.assertIn("rtmb.test.support.commands", outside)
        for path, text in sources("rtmb/test/unit").items():
            self.assertEqual(self.reaches(text, outside), set(), path)

    def reaches(self, text: str, modules: set[str]) -> set[str]:
        """Those of the modules that a source imports."""
        names = imported(ast.parse(text), package="")
        return {m for m in modules if any(n == m or n.startswith(f"{m}.") for n in names)}
