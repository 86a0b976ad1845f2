"""What an option's type can't say: names of devices, hosts and origins.

Whether files, folders and models are there is not asked here.
"""

import re
from collections.abc import Iterator

from config.errors import Source
from config.settings import Config

DEVICE = re.compile(r"cpu|[a-z]+:[0-9]+")
# Host of RFC 9110, section 7.2: a name or an address, and perhaps a port.
HOST = re.compile(r"(?P<name>[a-z0-9._-]+?|\[[0-9a-f:.]+\])\.?(?::[0-9]*)?", re.IGNORECASE)
# Origin of the Fetch standard: a scheme and a host. Extensions of browsers have schemes of theirs.
ORIGIN = re.compile(rf"\*|null|[a-z][a-z0-9+.-]*://{HOST.pattern}", re.IGNORECASE)


def check_consistency(config: Config, sources: dict[str, Source]) -> None:
    """`sources`: of the sections that have another one than the file. Raises ConfigError."""
    for path, problem in _problems(config):
        section = path.split(".")[1]
        raise sources[section].error(path, problem)


def _problems(config: Config) -> Iterator[tuple[str, str]]:
    for device in config.swap.memory:
        if DEVICE.fullmatch(device) is None:
            yield f"$.swap.memory.{device}", "unknown device; expected cpu or cuda:0"
    for index, host in enumerate(config.server.hosts):
        if HOST.fullmatch(host) is None:
            problem = f"expected a name without scheme or path, got {host!r}"
            yield f"$.server.hosts[{index}]", problem
    for index, origin in enumerate(config.server.cors_origins):
        if ORIGIN.fullmatch(origin) is None:
            problem = f"expected an origin like https://chat.example, got {origin!r}"
            yield f"$.server.cors_origins[{index}]", problem
