"""Tests for `rtmb.compiled`: the list of what is compiled, and which form runs."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import rtmb
from rtmb import compiled


class CompiledTests(SynchronousTestCase):
    def test_each_has_a_source_and_its_types(self) -> None:
        root = Path(rtmb.__file__).parents[1]
        for name in compiled.MODULES:
            for suffix in (".py", ".pxd"):
                self.assertTrue((root / name.replace(".", "/")).with_suffix(suffix).is_file(), name)

    def test_none_is_older_than_its_source(self) -> None:
        """Else all other tests would be about what was, not about what is."""
        for name in compiled.MODULES:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            built = Path(spec.origin)
            if built.suffix == ".py":
                continue
            source = built.with_name(built.name.partition(".")[0])
            for suffix in (".py", ".pxd"):
                changed = source.with_suffix(suffix).stat().st_mtime
                self.assertLess(changed, built.stat().st_mtime, f"{name}: run `make build`")

    def test_form(self) -> None:
        """In a folder of modules that are there so and so."""
        pure, built = "rtmb.config", "unicodedata"  # the second is C in every Python
        for modules, said in (
            ((pure,), "pure Python"),
            ((built,), "compiled"),
            ((pure, built), "partly compiled, without rtmb.config"),
        ):
            self.patch(compiled, "MODULES", modules)
            self.assertEqual(compiled.form(), said)

    def test_sources(self) -> None:
        """With RTMB_PURE=1 a compiled module is found as Python, and no other is touched."""
        name = compiled.MODULES[0]
        folder = Path(rtmb.__file__).parent / "core"
        spec = compiled._Sources.find_spec(name, [os.devnull, str(folder)])
        assert spec is not None
        self.assertEqual(spec.origin, str(folder / (name.rpartition(".")[2] + ".py")))
        self.assertIsNone(compiled._Sources.find_spec("rtmb.config", [str(folder.parent)]))
        self.assertIsNone(compiled._Sources.find_spec(name, None))
