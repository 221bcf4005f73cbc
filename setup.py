"""What setup.cfg cannot say: the compiled modules, and the README without links into this folder.

Without a C compiler, or with RTMB_PURE=1, the modules are installed as Python: slower, and the same
in everything else.
"""

import os
import re
import runpy
from pathlib import Path

from setuptools import Extension, setup

MODULES = runpy.run_path("rtmb/compiled.py")["MODULES"]

# Types are declared in the .pxd files alone: annotations stay what they are in Python.
DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,
    # Indexes are checked where they are made: bytes are walked with their length at hand.
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
}


def extensions() -> list[Extension]:
    if os.environ.get("RTMB_PURE"):
        return []
    from Cython.Build import cythonize

    wanted = [Extension(m, [m.replace(".", "/") + ".py"]) for m in MODULES]
    found: list[Extension] = cythonize(wanted, compiler_directives=DIRECTIVES, build_dir="build")
    for extension in found:
        extension.optional = True  # what no compiler can build stays Python
    return found


def description() -> str:
    """The README for a package index, which has neither our pictures nor our other documents."""
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[([^]]*)\]\((?!https?:)[^)]*\)", r"*\1.*", text)
    return re.sub(r"\[([^]]*)\]\((?!https?:|#)[^)]*\)", r"\1", text)


setup(ext_modules=extensions(), long_description=description())
