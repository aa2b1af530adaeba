"""Certificates of a link, and key pairs of nodes."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from protofl.errors import UsageError

DAYS = 825
"""Days for which certificates are valid."""


def write_secret(path: Path, data: bytes) -> None:
    """Write a new file that its owner alone may read.

    Raises:
        UsageError: The file exists.
    """
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(
            f"{path} exists", do="keys are never overwritten; remove it first"
        ) from None
    with os.fdopen(number, "wb") as file:
        file.write(data)


def make_node_key(path: Path) -> str:
    """Write a node's key pair, ``path`` and ``path.pub``; return the public key."""
    from cryptography.hazmat.primitives import serialization as form

    key = _new_key()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    write_secret(path, private)
    public: bytes = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")
    return public.decode()


def read_public_key(path: Path) -> str:
    """Return the public key in a file, without its comment.

    Raises:
        UsageError: The file holds no ECDSA key as OpenSSH writes it.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    try:
        key = form.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{path} is not a public key: {error}", do="give the file key.pub of the node"
        ) from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise UsageError(f"{path} is not an ECDSA key", do="make one with: protofl node init")
    return str(key.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode())


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write ``ca.crt``, ``ca.key``, ``server.crt`` and ``server.key``.

    Args:
        folder: The folder.
        hosts: Names and addresses under which nodes reach the server.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization as form

    authority, server = _new_key(), _new_key()
    issuer = _name("protofl federation")
    root = _certificate(issuer, issuer, authority, authority, x509.BasicConstraints(True, 0), [])
    own = x509.BasicConstraints(False, None)
    leaf = _certificate(_name(hosts[0]), issuer, server, authority, own, hosts)
    for name, key in (("ca.key", authority), ("server.key", server)):
        data = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        write_secret(folder / name, data)
    (folder / "ca.crt").write_bytes(root.public_bytes(form.Encoding.PEM))
    (folder / "server.crt").write_bytes(leaf.public_bytes(form.Encoding.PEM))


def _new_key() -> Any:  # noqa: ANN401 - a class of an extra
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _name(text: str) -> Any:  # noqa: ANN401 - a class of an extra
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: Any,  # noqa: ANN401 - classes of an extra
    issuer: Any,  # noqa: ANN401
    key: Any,  # noqa: ANN401
    signer: Any,  # noqa: ANN401
    limits: Any,  # noqa: ANN401
    hosts: Sequence[str],
) -> Any:  # noqa: ANN401
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=10))  # clocks differ
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(limits, critical=True)
    )
    about = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = made.add_extension(about, critical=False)
    about_signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = made.add_extension(about_signer, critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        made = made.add_extension(names, critical=False)
    return made.sign(signer, hashes.SHA384())


def _alternative(host: str) -> Any:  # noqa: ANN401 - a class of an extra
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def pem_of(public: str) -> str:
    """Return a public key of OpenSSH as PEM, as Flower lists it."""
    from cryptography.hazmat.primitives import serialization as form

    key = form.load_ssh_public_key(public.encode())
    info = form.PublicFormat.SubjectPublicKeyInfo
    return str(key.public_bytes(form.Encoding.PEM, info).decode().strip())
