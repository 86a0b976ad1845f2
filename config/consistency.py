"""What an option's type can't say: names of devices, hosts and origins.

Whether files, folders and models are there is not asked here.
"""

import re
from collections.abc import Iterator
from ipaddress import ip_network

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
    for index, proxy in enumerate(config.server.trusted_proxies):
        if proxy != "*" and not _is_network(proxy):
            problem = f"expected an address, a network like 10.0.0.0/8, or '*', got {proxy!r}"
            yield f"$.server.trusted_proxies[{index}]", problem
    for index, origin in enumerate(config.server.cors_origins):
        if ORIGIN.fullmatch(origin) is None:
            problem = f"expected an origin like https://chat.example, got {origin!r}"
            yield f"$.server.cors_origins[{index}]", problem


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True
