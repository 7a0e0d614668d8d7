"""A certificate for one job, by which agents verify that they are connected to its controller."""

from __future__ import annotations

import datetime
import ssl
import tempfile

from muster.errors import MusterError


def make_server_context() -> tuple[ssl.SSLContext, str]:
    """A TLS server context with a new key, and the certificate (PEM) that clients must require."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise MusterError(
            "this engine needs the Python package `cryptography`, which is not installed",
            hint="python -m pip install cryptography",
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "muster")])
    now = datetime.datetime.now(datetime.timezone.utc)
    wide = datetime.timedelta(days=3650)  # host clocks may be years off, and the key is discarded with the job
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - wide)
        .not_valid_after(now + wide)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("muster")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.NamedTemporaryFile(prefix="muster-") as file:  # mode 0600; ssl reads keys only from files
        file.write(private + public)
        file.flush()
        context.load_cert_chain(file.name)
    return context, public.decode()
