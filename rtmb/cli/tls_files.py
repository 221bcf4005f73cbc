"""The TLS options of a command, `--tls-ca`, `--tls-cert` and `--tls-key`, as Twisted takes them."""

from __future__ import annotations

from pathlib import Path

import click

from rtmb.client.address import Tls


def check_pair(cert: str | None, key: str | None) -> None:
    """A certificate is of no use without its key, nor a key without its certificate."""
    if bool(cert) != bool(key):
        raise click.UsageError("--tls-cert and --tls-key go together")


def client_tls(ca: str | None, cert: str | None, key: str | None, host: str) -> Tls:
    """How to do TLS with `host`: whom we trust, and what we show."""
    check_pair(cert, key)
    if not cert or not key:
        return ca
    # Not at the top: it takes a tenth of a second, and most need none of it.
    from OpenSSL.crypto import Error as PemError
    from twisted.internet.ssl import (
        Certificate,
        PrivateCertificate,
        optionsForClientTLS,
        trustRootFromCertificates,
    )

    try:
        pem = Path(cert).read_bytes() + b"\n" + Path(key).read_bytes()
        ours = PrivateCertificate.loadPEM(pem)
        trust = None
        if ca:
            trust = trustRootFromCertificates([Certificate.loadPEM(Path(ca).read_bytes())])
    except (PemError, ValueError):
        raise click.UsageError("--tls-ca, --tls-cert or --tls-key is no PEM file") from None
    return optionsForClientTLS(host, trust, ours)
