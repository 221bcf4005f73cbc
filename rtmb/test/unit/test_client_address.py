"""Tests for `rtmb.client.address`: URLs and nkeys."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rtmb.auth import decode_nkey
from rtmb.client.address import Nkey, parse_url
from rtmb.test.support import users


class AddressTests(SynchronousTestCase):
    def test_urls(self) -> None:
        """What a URL leaves out has a default."""
        for url, scheme, host, port, user, password in (
            ("nats://h", "nats", "h", 4222, None, None),
            ("h", "nats", "h", 4222, None, None),
            ("h:5", "nats", "h", 5, None, None),
            ("tls://u:p%40@h:1", "tls", "h", 1, "u", "p@"),
            ("nats://token@h", "nats", "h", 4222, "token", None),
            ("ws://h", "ws", "h", 80, None, None),
            ("wss://[::1]:7/nats", "wss", "::1", 7, None, None),
        ):
            found = parse_url(url)
            self.assertEqual((found.scheme, found.host, found.port), (scheme, host, port), url)
            self.assertEqual((found.user, found.password), (user, password), url)

    def test_bad_urls(self) -> None:
        """They are refused, and the error does not tell the password."""
        for url in ("http://h", "nats://", "nats://h:x", "nats://h:99999", "x://u:secret@h"):
            error = self.assertRaises(ValueError, parse_url, url)
            self.assertNotIn("secret", str(error))

    def test_no_secrets_are_shown(self) -> None:
        found = parse_url("nats://u:secret@h")
        self.assertEqual(found.url, "nats://h:4222")
        self.assertNotIn("secret", repr(found))

    def test_a_server_named_by_another(self) -> None:
        """Host and port are its own, the rest is as for the one that named it."""
        found = parse_url("10.0.0.2:4223", parse_url("tls://u:p@h"))
        self.assertEqual((found.url, found.user), ("tls://10.0.0.2:4223", "u"))

    def test_seeds(self) -> None:
        made = users.Nkey()
        seed = made.seed
        self.assertEqual(seed[:2], "SU")
        self.assertEqual(Nkey(seed).public, made.public)
        self.assertEqual(len(decode_nkey(made.public)), 32)
        mistyped = seed[:20] + ("A" if seed[20] != "A" else "B") + seed[21:]
        for bad in ("", "SU", "x" * 58, mistyped, Nkey(seed).public):
            self.assertRaises(ValueError, Nkey, bad)
