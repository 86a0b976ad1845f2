"""Which computation answers: OpenAI's `system_fingerprint`. Answers to one seed may differ where it
does.
"""

from functools import cache
from hashlib import sha256
from importlib.metadata import version

import msgspec

from gateway.registry import Lease


def fingerprint(lease: Lease) -> str:
    """`fp_` and a digest of this server's version, the backend, the model's files and options."""
    info, files = lease.container.info, lease.entry.files
    reported = (
        _version(),
        info.backend,
        info.context_length,
        lease.name,
        files.format,
        files.size_bytes,
        lease.entry.created,
        lease.entry.options,
    )
    return f"fp_{sha256(msgspec.json.encode(reported)).hexdigest()[:12]}"


@cache
def _version() -> str:
    return version("roundhouse")
