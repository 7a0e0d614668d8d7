"""The certificates of one job, by which agents verify that they are connected to its controller."""

from __future__ import annotations

import datetime
import hmac
import ssl
import tempfile
from importlib.util import find_spec
from typing import TYPE_CHECKING

from muster.errors import MusterError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The number of points of the curve P-256; a private key is a number below it."""

_WIDE = datetime.timedelta(days=3650)
"""How far a certificate is valid before and after now; host clocks may be years off, and keys end with the job."""


def make_server_context(secret: str = "") -> tuple[ssl.SSLContext, str]:
    """A TLS server context with a new key, and the authority (a certificate, PEM) that clients must require.

    With a `secret`, the authority is that of the secret.
    """
    _require_cryptography()
    from cryptography.hazmat.primitives import serialization

    authority = _derived_key(secret) if secret else _new_key()
    key = _new_key()
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.NamedTemporaryFile(prefix="muster-") as file:  # mode 0600; ssl reads keys only from files
        file.write(private + _certificate(key, authority).public_bytes(pem))
        file.flush()
        context.load_cert_chain(file.name)
    return context, _certificate(authority, authority).public_bytes(pem).decode()


def authority_of(secret: str) -> str:
    """The authority (a certificate, PEM) of everybody who knows a secret; its key is derived from the secret.

    Two hosts make different certificates, but with the same name and key, so each accepts what the other has signed.
    """
    _require_cryptography()
    from cryptography.hazmat.primitives import serialization

    key = _derived_key(secret)
    return _certificate(key, key).public_bytes(serialization.Encoding.PEM).decode()


def derived(secret: str, purpose: str) -> bytes:
    """32 bytes for one purpose, from which nobody can compute the secret or the bytes for another purpose."""
    return hmac.digest(secret.encode(errors="surrogateescape"), f"muster {purpose}".encode(), "sha256")


def _derived_key(secret: str) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    number = int.from_bytes(derived(secret, "key 1") + derived(secret, "key 2"), "big")  # 512 bits, so no bias
    return ec.derive_private_key(number % (_ORDER - 1) + 1, ec.SECP256R1())


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _certificate(key: EllipticCurvePrivateKey, signer: EllipticCurvePrivateKey) -> Certificate:
    """The certificate of the authority, if `key` is its own, or one that it signs for the server."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    is_authority = key is signer
    own, issuer = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        for name in ("muster authority" if is_authority else "muster", "muster authority")
    )
    now = datetime.datetime.now(datetime.timezone.utc)
    # With these extensions, Python 3.13 and later, which check strictly, accept it as well.
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        **dict.fromkeys(_OTHER_USAGES, False),
    )
    return (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _WIDE)
        .not_valid_after(now + _WIDE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("muster")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )


_OTHER_USAGES = (
    *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"),
    *("encipher_only", "decipher_only"),
)


def _require_cryptography() -> None:
    if find_spec("cryptography") is None:
        raise MusterError(
            "this engine needs the Python package `cryptography`, which is not installed",
            hint="python -m pip install cryptography",
        )
