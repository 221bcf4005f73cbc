"""Certificates for the tests: an authority, and what it signed."""

from __future__ import annotations

import datetime
import functools
import ipaddress
import unittest
from collections.abc import Iterator
from contextlib import contextmanager

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rtmb.test.support.files import folder
from rtmb.test.support.processes import BrokerProcess


class Authority:
    """A certificate authority of its own, in memory."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("rtmb test authority")
        self._certificate = self._sign(self._name, self._key.public_key(), authority=True)
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, *, authority: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def issue(self, common_name: str) -> tuple[bytes, bytes]:
        """A certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_name(common_name), key.public_key())
        return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


@functools.cache
def made() -> dict[str, bytes]:
    """All files that the tests use, by name."""
    ours, others = Authority(), Authority()
    files = {"ca.pem": ours.pem}
    for name, authority in (("server", ours), ("client", ours), ("stranger", others)):
        files[f"{name}.pem"], files[f"{name}.key"] = authority.issue(name)
    return files


@contextmanager
def tls_broker(test: unittest.TestCase, *arguments: str) -> Iterator[tuple[BrokerProcess, str]]:
    """A broker that requires TLS, and the file with the authority of its certificate."""
    place = folder(test)
    for name in ("ca.pem", "server.pem", "server.key"):
        (place / name).write_bytes(made()[name])
    cert, key = str(place / "server.pem"), str(place / "server.key")
    with BrokerProcess("--tls-cert", cert, "--tls-key", key, *arguments) as broker:
        yield broker, str(place / "ca.pem")
