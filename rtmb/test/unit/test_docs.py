"""What README and docs print, as far as it can be checked without running it."""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from rtmb.test.support.docs import blocks, pages, shell_commands


class ShellTests(SynchronousTestCase):
    def test_zsh_takes_them_too(self) -> None:
        """zsh refuses a line with an unquoted `?`, `*` or `[` that matches no file."""
        for block in blocks():
            for command in shell_commands(block):
                words = re.sub(r"'[^']*'|\"[^\"]*\"|\\.|(^|\s)#.*", "", command)
                self.assertNotRegex(words, r"[?*\[]", f"{block}: {command}")

    def test_extras_are_installed_from_where_they_are(self) -> None:
        for page in pages():
            self.assertNotRegex(page.read_text(), r"pip install '?rtmb\[", page.name)
