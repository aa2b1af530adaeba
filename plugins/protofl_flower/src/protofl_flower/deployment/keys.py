"""Certificates of a server, and key pairs of nodes."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_flower.deployment.programs import EXTRA

DAYS = 3650
"""Days for which certificates are valid."""


def check_library() -> None:
    """Check that the library for keys and certificates is installed.

    Raises:
        UsageError: It is not.
    """
    if find_spec("cryptography") is None:
        raise pf.UsageError(
            "cryptography is missing: deployment needs keys and certificates",
            do=f"install it: {EXTRA}",
        )


def write_secret(path: Path, data: bytes) -> None:
    """Write a new file that its owner alone may read.

    Raises:
        UsageError: The file exists.
    """
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise pf.UsageError(
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
    check_library()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    try:
        key = form.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise pf.UsageError(
            f"{path} is not a public key: {error}", do="give the file key.pub of the node"
        ) from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise pf.UsageError(f"{path} is not an ECDSA key", do="make one with: protofl node init")
    return str(key.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode())


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write ``ca.crt``, ``server.crt`` and ``server.key``; no further certificate can be signed.

    Args:
        folder: The folder.
        hosts: Names and addresses under which nodes reach the server.
    """
    authority, server = _new_key(), _new_key()
    write_secret(folder / "server.key", _private(server))
    (folder / "ca.crt").write_bytes(_authority(authority))
    (folder / "server.crt").write_bytes(_server(server, authority, hosts))


def _private(key: Any) -> bytes:  # noqa: ANN401 - a class of an extra
    from cryptography.hazmat.primitives import serialization as form

    data = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return bytes(data)


ISSUER = "protofl federation"


def _authority(key: Any) -> bytes:  # noqa: ANN401 - a class of an extra
    """Return the certificate of a federation."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    limits, name = x509.BasicConstraints(True, 0), _name(ISSUER)
    made = _certificate(name, name, key, key, limits, [], DAYS)
    return bytes(made.public_bytes(Encoding.PEM))


def _server(key: Any, authority: Any, hosts: Sequence[str]) -> bytes:  # noqa: ANN401
    """Return the certificate of a server."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    limits = x509.BasicConstraints(False, None)
    made = _certificate(_name(hosts[0]), _name(ISSUER), key, authority, limits, hosts, DAYS)
    return bytes(made.public_bytes(Encoding.PEM))


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
    days: int,
) -> Any:  # noqa: ANN401
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=10))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
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
