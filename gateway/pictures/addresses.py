"""Which addresses a picture may come from. Pure: no lookups, no connections.

Without this a client could make the server fetch what only the server reaches: other machines of
its network, services on its loopback, a cloud's metadata (server-side request forgery).
"""

from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Judge: TypeAlias = Callable[[Address], bool]  # whether a picture may come from there

# Addresses that aren't public, and why: IANA's registries of special-purpose addresses (RFC 6890),
# and what providers put in public space for their own machines alone.
NOT_PUBLIC: Mapping[IPv4Network | IPv6Network, str] = {
    IPv4Network("0.0.0.0/8"): "this network (RFC 791)",
    IPv4Network("10.0.0.0/8"): "private (RFC 1918)",
    IPv4Network("100.64.0.0/10"): "shared behind a provider's NAT (RFC 6598); Alibaba's metadata",
    IPv4Network("127.0.0.0/8"): "loopback (RFC 1122)",
    IPv4Network("168.63.129.16/32"): "Azure's wire server: metadata and DNS of a machine",
    IPv4Network("169.254.0.0/16"): "link-local (RFC 3927); most clouds' metadata",
    IPv4Network("172.16.0.0/12"): "private (RFC 1918)",
    IPv4Network("192.0.0.0/24"): "protocol assignments (RFC 6890); Oracle's metadata",
    IPv4Network("192.0.2.0/24"): "documentation (RFC 5737)",
    IPv4Network("192.88.99.0/24"): "relays from IPv6 (RFC 7526)",
    IPv4Network("192.168.0.0/16"): "private (RFC 1918)",
    IPv4Network("198.18.0.0/15"): "benchmarks (RFC 2544)",
    IPv4Network("198.51.100.0/24"): "documentation (RFC 5737)",
    IPv4Network("203.0.113.0/24"): "documentation (RFC 5737)",
    IPv4Network("224.0.0.0/4"): "multicast (RFC 5771)",
    IPv4Network("240.0.0.0/4"): "reserved and broadcast (RFC 1112)",
    IPv6Network("2001::/23"): "protocol assignments (RFC 2928)",
    IPv6Network("2001:db8::/32"): "documentation (RFC 3849)",
    IPv6Network("3fff::/20"): "documentation (RFC 9637)",
}
# All that is assigned for global use (RFC 4291, section 2.4); the rest is special or unassigned.
GLOBAL_UNICAST = IPv6Network("2000::/3")

# What an IPv6-only network translates to IPv4: the last 32 bits (RFC 6052, section 2.1).
TRANSLATED = IPv6Network("64:ff9b::/96")
# The half of an IPv6 address before the IPv4 one, where ISATAP tunnels to it (RFC 5214, 6.1).
TUNNELLED = (0x0000_5EFE, 0x0200_5EFE)


def address(text: str) -> Address:
    """The address that a resolver gave. Raises ValueError."""
    return ip_address(text)


def is_public(address: Address) -> bool:
    """Whether `address` is reachable from the public internet.

    An IPv6 address that carries IPv4 ones is as public as those.
    """
    if isinstance(address, IPv6Address):
        if carried := _carried(address):
            return all(map(is_public, carried))
        if address not in GLOBAL_UNICAST:
            return False
    return not any(address in network for network in NOT_PUBLIC)


def anywhere(address: Address) -> bool:  # noqa: ARG001 - the shape of a judge
    """For servers whose clients may fetch from private addresses."""
    return True


def _carried(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses inside: mapped (RFC 4291), 6to4 (RFC 3056), Teredo's server and client
    (RFC 4380), translated, tunnelled.
    """
    last = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if address in TRANSLATED or (int(address) >> 32) & 0xFFFF_FFFF in TUNNELLED:
        return (last,)
    return ()
