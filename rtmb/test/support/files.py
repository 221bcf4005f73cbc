"""Folders for the tests."""

from __future__ import annotations

import shutil
import tempfile
import unittest
from pathlib import Path


def folder(test: unittest.TestCase) -> Path:
    """A folder that goes with the test."""
    place = Path(tempfile.mkdtemp(prefix="rtmb-"))
    test.addCleanup(shutil.rmtree, place, ignore_errors=True)
    return place
