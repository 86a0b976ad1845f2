"""Which addresses a picture may come from. Pure: no lookups, no connections.

Without this a client could make the server fetch what only the server reaches: other machines of
its network, services on its loopback, a cloud's metadata (server-side request forgery).
"""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Judge: TypeAlias = Callable[[Address], bool]  # whether a picture may come from there

# What an IPv6-only network translates to IPv4: the last 32 bits (RFC 6052, section 2.1).
TRANSLATED = IPv6Network("64:ff9b::/96")


def address(text: str) -> Address:
    """The address that a resolver gave. Raises ValueError."""
    return ip_address(text)


def is_public(address: Address) -> bool:
    """Whether `address` is one that anybody on the internet could reach.

    An IPv6 address that carries an IPv4 one is as public as that one.
    """
    if isinstance(address, IPv6Address):
        if (carried := _carried(address)) is not None:
            return is_public(carried)
        if address.is_site_local:  # deprecated by RFC 3879, still routed in places
            return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified
    )


def anywhere(address: Address) -> bool:  # noqa: ARG001 - the shape of a judge
    """For servers whose clients may see what the server sees."""
    return True


def _carried(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address inside: mapped (RFC 4291), 6to4 (RFC 3056), Teredo (RFC 4380),
    translated.
    """
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in TRANSLATED:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return None
