"""Users for the tests: a table of a config file, and nkeys."""

from __future__ import annotations

import base64
import binascii

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: One user, in a config file.
USERS = """
[[auth.users]]
user = "alice"
password = "one"
permissions.subscribe.allow = [">"]
"""

_SEED, USER = 18 << 3, 20 << 3


def nkey_text(data: bytes) -> str:
    """An nkey's text: the bytes with their checksum, in base32."""
    checksum = binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(data + checksum).decode().rstrip("=")


class Nkey:
    """A user's new nkey."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        prefix = bytes([_SEED | USER >> 5, (USER & 31) << 3])
        self.seed = nkey_text(prefix + self._key.private_bytes_raw())
        self.public = nkey_text(bytes([USER]) + self._key.public_key().public_bytes_raw())

    def sign(self, nonce: str) -> str:
        return base64.urlsafe_b64encode(self._key.sign(nonce.encode())).decode().rstrip("=")
