"""The certificate of a listener: a given one, or one that is made and signs itself. It needs no
authority: each end proves by the token which certificate it sees.
"""

import datetime
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from backends.contract.catalog import command
from backends.contract.errors import LoadFailed

NAME = "roundhouse-worker"
DAYS = 3650


@contextmanager
def made_certificate(certificate: str | None, key: str | None) -> Iterator[tuple[str, str | None]]:
    """Files in PEM: those that are given, else new ones, which are deleted when the context ends.
    Raises LoadFailed where none can be made.
    """
    if certificate is not None:
        yield certificate, key
        return
    with TemporaryDirectory(prefix="roundhouse-certificate-") as folder:
        paths = Path(folder) / "certificate.pem", Path(folder) / "key.pem"
        try:
            _with_library(*paths)
        except ImportError:
            _with_program(*paths)
        yield str(paths[0]), str(paths[1])


def certificate_of(path: str) -> bytes:
    """The first in a file, in DER: the one that is shown. Raises OSError, ValueError."""
    text = Path(path).read_text("ascii")
    end = "-----END CERTIFICATE-----"
    begin = text.find("-----BEGIN CERTIFICATE-----")
    if begin < 0 or end not in text[begin:]:
        raise ValueError("no certificate in it")
    return ssl.PEM_cert_to_DER_cert(text[begin : text.index(end, begin) + len(end)])


def _with_library(certificate: Path, key: Path) -> None:
    """Raises ImportError where it isn't installed."""
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    made = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(made.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .sign(made, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        made.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _with_program(certificate: Path, key: Path) -> None:
    if (program := shutil.which("openssl")) is None:
        raise LoadFailed(
            "no certificate can be made: give one (--certificate, --key), or install openssl, or "
            f"`{command('encryption')}`"
        )
    words = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += ["-nodes", "-keyout", str(key), "-out", str(certificate)]
    words += ["-subj", f"/CN={NAME}", "-days", str(DAYS)]
    made = subprocess.run(words, capture_output=True, check=False)  # noqa: S603 - no shell
    if made.returncode:
        raise LoadFailed(f"openssl made no certificate: {made.stderr.decode(errors='replace')}")
