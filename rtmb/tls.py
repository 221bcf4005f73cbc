"""TLS as the settings have it."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL.crypto import X509, PKey
from OpenSSL.SSL import Error as SSLError
from twisted.internet.ssl import CertificateOptions

from rtmb.config import Settings, SettingsError


def tls_options(settings: Settings) -> CertificateOptions | None:
    """TLS as the settings have it, or None."""
    if not settings.tls_cert:
        return None
    name = "tls_cert"
    try:
        chain = x509.load_pem_x509_certificates(Path(settings.tls_cert).read_bytes())
        name = "tls_key"
        key = load_pem_private_key(Path(settings.tls_key).read_bytes(), None)
        name = "tls_ca"
        authorities = None
        if settings.tls_ca:
            found = x509.load_pem_x509_certificates(Path(settings.tls_ca).read_bytes())
            authorities = [X509.from_cryptography(certificate) for certificate in found]
        name = "tls_cert and tls_key"
        first, *others = [X509.from_cryptography(certificate) for certificate in chain]
        options = CertificateOptions(
            privateKey=PKey.from_cryptography_key(key),  # type: ignore[arg-type]
            certificate=first,
            extraCertChain=others,
            verify=authorities is not None,
            caCerts=authorities,
            requireCertificate=settings.tls_verify,
        )
        options.getContext()
    except (OSError, ValueError, TypeError, SSLError) as error:
        raise SettingsError(f"{name}: {error or 'do not belong together'}") from None
    return options
