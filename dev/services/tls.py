"""A certificate authority of our own, with one certificate for a server on loopback and one for a client."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Files:
    """PEM files; `server` holds key and certificate in one file, as Kafka wants it."""

    ca: Path
    server: Path
    client_certificate: Path
    client_key: Path


def make(folder: Path) -> Files:
    """Write the files, unless they are there."""
    files = Files(folder / "ca.pem", folder / "server.pem", folder / "client.pem", folder / "client.key")
    if files.client_key.exists():
        return files
    folder.mkdir(parents=True, exist_ok=True)
    ca_key = _key()
    ca = _certificate("tailrace test CA", ca_key, None, ca_key)
    server_key, client_key = _key(), _key()
    server, client = (_certificate(n, k, ca, ca_key) for n, k in (("localhost", server_key), ("tailrace", client_key)))
    files.ca.write_bytes(_pem(ca))
    _write_secret(files.server, _private(server_key) + _pem(server) + _pem(ca))
    files.client_certificate.write_bytes(_pem(client))
    _write_secret(files.client_key, _private(client_key))
    return files


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, ca: x509.Certificate | None, ca_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    loopback = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(loopback), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(content)
