"""JavaScript packages for the tests, installed once for all of them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from rtmb.test.support.processes import need


def with_packages(test: unittest.TestCase, *packages: str, scripts: Path) -> Path:
    """A folder where node finds the packages (`name@version`), and the scripts of another."""
    npm = shutil.which("npm")
    need(test, npm and shutil.which("node"), "node and npm are not installed")
    cache = os.environ.get("TEST_CACHE") or os.environ.get("XDG_CACHE_HOME")
    root = Path(cache or Path(tempfile.gettempdir(), f"rtmb-test-cache-{os.getuid()}"))
    place = root / "rtmb-npm" / hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "installed").is_file():
        (place / "package.json").write_text("{}")
        command = [str(npm), "install", "--no-audit", "--no-fund", *packages]
        try:
            subprocess.run(command, cwd=place, capture_output=True, check=True, timeout=120)
        except (subprocess.SubprocessError, OSError):
            need(test, False, f"npm could not install {' '.join(packages)}")
        (place / "installed").touch()
    for script in (*scripts.glob("*.mjs"), *scripts.glob("*.js")):
        shutil.copy(script, place)
    return place


def with_nats_js(test: unittest.TestCase) -> Path:
    """A folder with nats.js, and the scripts that use it."""
    scripts = Path(__file__).parents[1] / "process" / "nats_js"
    return with_packages(test, "nats@2.29.3", "nats.ws@1.30.3", scripts=scripts)
