"""Which modules are compiled to C, and whether they are here.

They are Python: one source runs both ways. `pip install` compiles them where a C compiler is at
hand (setup.py reads the list from here); where it cannot, or with RTMB_PURE=1, they are installed
as they are. RTMB_PURE=1 in the environment of a running program leaves compiled modules aside.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path

#: Every module that is compiled. The types of what it declares are in the .pxd file beside it.
MODULES: tuple[str, ...] = (
    "rtmb.core.counters",
    "rtmb.core.publication",
    "rtmb.core.subscriptions",
    "rtmb.core.routing",
    "rtmb.core.history",
    "rtmb.core.journal_writer",
    "rtmb.core.hub",
    "rtmb.core.batch",
    "rtmb.doors.msgpack.outlet",
    "rtmb.doors.msgpack.publisher",
    "rtmb.doors.nats.outlet",
    "rtmb.doors.nats.walk",
)


class _Sources:
    """Finds the source of a module that is there compiled as well."""

    @staticmethod
    def find_spec(
        name: str, path: Iterable[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        if name not in MODULES:
            return None
        for folder in path or ():
            source = Path(folder, name.rpartition(".")[2] + ".py")
            if source.is_file():
                return importlib.util.spec_from_file_location(name, source)
        return None


if os.environ.get("RTMB_PURE"):
    sys.meta_path.insert(0, _Sources)


def form() -> str:
    """What runs: "compiled", "pure Python", or "partly compiled" with the modules that are not."""
    specs = {name: importlib.util.find_spec(name) for name in MODULES}
    pure = [name for name, spec in specs.items() if spec and str(spec.origin).endswith(".py")]
    if not pure:
        return "compiled"
    if len(pure) == len(MODULES):
        return "pure Python"
    return f"partly compiled, without {', '.join(pure)}"
