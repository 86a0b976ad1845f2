"""The certificate of a listener: a given one, or one that is made and signs itself. It needs no
authority: each end proves by the token which certificate it sees.
"""

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

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
    if (program := shutil.which("openssl")) is None:
        raise LoadFailed(
            "no certificate can be made: give one (--certificate, --key), or install openssl"
        )
    with TemporaryDirectory(prefix="roundhouse-certificate-") as folder:
        certificate, key = f"{folder}/certificate.pem", f"{folder}/key.pem"
        words = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        words += ["-nodes", "-keyout", key, "-out", certificate]
        words += ["-subj", f"/CN={NAME}", "-days", str(DAYS)]
        made = subprocess.run(words, capture_output=True, check=False)  # noqa: S603 - no shell
        if made.returncode:
            raise LoadFailed(f"openssl made no certificate: {made.stderr.decode(errors='replace')}")
        yield certificate, key


def certificate_of(path: str) -> bytes:
    """The first in a file, in DER: the one that is shown. Raises OSError, ValueError."""
    text = Path(path).read_text("ascii")
    end = "-----END CERTIFICATE-----"
    begin = text.find("-----BEGIN CERTIFICATE-----")
    if begin < 0 or end not in text[begin:]:
        raise ValueError("no certificate in it")
    return ssl.PEM_cert_to_DER_cert(text[begin : text.index(end, begin) + len(end)])
