"""Folders for the tests."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import unittest
from pathlib import Path


def folder(test: unittest.TestCase) -> Path:
    """A folder that goes with the test."""
    place = Path(tempfile.mkdtemp(prefix="rtmb-"))
    test.addCleanup(shutil.rmtree, place, ignore_errors=True)
    return place


def kept_folder() -> Path:
    """A folder for what several tests share: it goes with the process."""
    place = Path(tempfile.mkdtemp(prefix="rtmb-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place
