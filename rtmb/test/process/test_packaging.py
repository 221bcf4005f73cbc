"""What is published: the sdist has all that it takes, and the wheel what a user needs."""

from __future__ import annotations

import email
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import unittest
import zipfile
from collections.abc import Mapping
from pathlib import Path

import rtmb
from rtmb import compiled
from rtmb.test.support.files import folder, kept_folder
from rtmb.test.support.processes import TWISTD, environment, need, slow

ROOT = Path(rtmb.__file__).parents[1]


def _run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    ended = subprocess.run(
        command, cwd=cwd, env=environment(env), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _build(source: Path, kind: str, place: Path, env: Mapping[str, str] | None = None) -> Path:
    """Build the sdist or the wheel, with the tools that are installed here."""
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", place]
    # `environment` leads to the rtmb of these tests; a build is to see its own folder alone.
    _run(*map(str, command), cwd=source, env={"PYTHONPATH": "", "RTMB_PURE": "", **(env or {})})
    (found,) = place.iterdir()
    return found


@functools.cache
def _tracked() -> list[str]:
    return _run("git", "ls-files", cwd=ROOT).splitlines()


@functools.cache
def _sdist() -> Path:
    """The sdist of what git knows, unpacked."""
    place = kept_folder()
    for name in _tracked():
        (place / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / "source" / name)
    with tarfile.open(_build(place / "source", "sdist", place / "dist")) as archive:
        archive.extractall(place / "sdist", filter="data")
    (found,) = (place / "sdist").iterdir()
    return found


@functools.cache
def _wheel(**env: str) -> Path:
    """The wheel that is built from the sdist."""
    source = kept_folder() / "source"
    shutil.copytree(_sdist(), source)
    return _build(source, "wheel", source.parent / "dist", env)


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def _extensions(wheel: Path) -> set[str]:
    """The compiled modules in a wheel."""
    return {n.partition(".")[0].replace("/", ".") for n in _names(wheel) if n.endswith(".so")}


class PackagingTests(unittest.TestCase):
    def setUp(self) -> None:
        slow(self)
        if not (ROOT / ".git").exists():
            self.skipTest("this is no checkout: it is published already")
        need(self, importlib.util.find_spec("build"), "the package `build` is not installed")

    def test_the_sdist_has_everything(self) -> None:
        source = _sdist()
        self.assertEqual([n for n in _tracked() if not (source / n).is_file()], [])

    def test_the_sdist_tests_itself(self) -> None:
        module = "rtmb/test/unit/test_layout.py"
        said = _run(
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", module),
            cwd=_sdist(),
            env={"PYTHONPATH": str(_sdist())},
        )
        self.assertRegex(said, r"\d passed")

    def test_the_wheel_has_what_a_user_needs(self) -> None:
        names = _names(_wheel(RTMB_PURE="1"))
        self.assertEqual([n for n in names if n.startswith("rtmb/test/")], [])
        for name in (
            "rtmb/py.typed",
            "rtmb/doors/http/dashboard/index.html",
            "rtmb/doors/http/dashboard/style.css",
            "rtmb/doors/http/dashboard/basics.js",
            "rtmb/spark/jobs/log4j2.properties",
            "twisted/plugins/rtmb_plugin.py",
            "pyspark_rtmb.py",
        ):
            self.assertIn(name, names)
        self.assertNotIn("twisted/plugins/__init__.py", names)
        examples = [n for n in names if n.endswith("/share/doc/rtmb/rtmb.example.toml")]
        self.assertEqual(len(examples), 1, names)

    def test_the_description_needs_no_other_file(self) -> None:
        """A package index shows it, and has neither our pictures nor our documents."""
        wheel = _wheel(RTMB_PURE="1")
        (name,) = (n for n in _names(wheel) if n.endswith(".dist-info/METADATA"))
        with zipfile.ZipFile(wheel) as archive:
            said = email.message_from_bytes(archive.read(name))
        self.assertEqual(said["Description-Content-Type"], "text/markdown")
        text = str(said.get_payload())
        self.assertIn("pip install", text)
        targets = re.findall(r"\]\(([^)]*)\)", text)
        self.assertEqual([t for t in targets if not re.match("https?:|#", t)], [])

    def test_compiled(self) -> None:
        need(self, shutil.which("cc"), "there is no C compiler")
        wheel = _wheel()
        self.assertEqual(_extensions(wheel), set(compiled.MODULES))
        self.assertEqual(self.form(wheel), "compiled")

    def test_pure(self) -> None:
        """Asked for, and where there is no compiler."""
        wheel = _wheel(RTMB_PURE="1")
        self.assertTrue(wheel.name.endswith("-py3-none-any.whl"), wheel)
        self.assertEqual(self.form(wheel), "pure Python")
        without = _wheel(CC=os.path.join(os.devnull, "cc"))
        self.assertEqual(_extensions(without), set())
        self.assertEqual(self.form(without), "pure Python")

    def form(self, wheel: Path) -> str:
        """What the program says of itself when that wheel is installed."""
        place = folder(self)
        installing = ("-m", "pip", "install", "--quiet", "--no-deps", "--target", place, wheel)
        _run(sys.executable, *installing, cwd=place, env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
        env = {"PYTHONPATH": str(place), "RTMB_PURE": ""}
        said = _run(sys.executable, "-m", "rtmb", "--version", cwd=place, env=env)
        as_service = _run(TWISTD, "rtmb", "--version", cwd=place, env=env)
        self.assertEqual(said, as_service)
        found = re.fullmatch(r"rtmb [\d.]+ \((.+)\)\n", said)
        assert found is not None, said
        return found[1]
