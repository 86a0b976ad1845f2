"""nginx in front of a server, with TLS, as docs/operations.md has it."""

import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hang import HANG
from tests.served import ROOT

NAME = "ai.example"
AROUND = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {block}
}}
"""


def documented() -> str:
    """The block in the documentation."""
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    found = re.search(r"```nginx\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


@contextmanager
def behind_nginx(folder: Path, port: int, below: str = "/") -> Iterator[str]:
    """The address of nginx, which hands on to `port` what is `below` a path. Skips the test where
    there is no nginx.
    """
    if (nginx := shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")) is None:
        pytest.skip("no nginx on this machine")
    _certificate(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = free.getsockname()[1]
    block = documented()
    for written, here in (
        ("listen 443 ssl;", f"listen 127.0.0.1:{own} ssl;"),
        ("127.0.0.1:8000;", f"127.0.0.1:{port}{'/' if below != '/' else ''};"),
        ("location / {", f"location {below} {{"),
        ("/etc/ssl/ai.example", f"{folder}/ai.example"),
    ):
        assert written in block
        block = block.replace(written, here)
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder, block=block))
    command = [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            _wait(process, own)
            yield f"https://127.0.0.1:{own}{below.rstrip('/')}"
        finally:
            process.kill()


def _certificate(folder: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", f"{folder}/{NAME}.key", "-out", f"{folder}/{NAME}.pem"]
    command += ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME},IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)


def _wait(process: subprocess.Popen[str], port: int) -> None:
    """Until it listens."""
    end = time.monotonic() + HANG
    while time.monotonic() < end:
        if process.poll() is not None:
            raise AssertionError(f"nginx ended: {process.communicate()[1]}")
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise AssertionError("nginx never listened")


def trust(folder: Path) -> ssl.SSLContext:
    """Of the certificate that was made in `folder`."""
    return ssl.create_default_context(cafile=f"{folder}/{NAME}.pem")
