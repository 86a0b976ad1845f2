"""Only what anybody on the internet could reach is public, however it is written."""

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import pytest

from gateway.answers.pictures import is_public
from tests.every import for_every


@pytest.mark.parametrize(
    "text",
    [
        "93.184.216.34",
        "2606:2800:220:1:248:1893:25c8:1946",
        "::ffff:93.184.216.34",  # mapped
        "2002:5db8:d822::1",  # 6to4 of 93.184.216.34
        "64:ff9b::5db8:d822",  # what DNS64 makes of it
        "168.63.129.15",
        "2606:2800::5efe:5db8:d822",  # ISATAP to it
        "2001:0:5db8:d822::a247:27dd",  # Teredo: by it, of it
    ],
)
def test_public(text: str) -> None:
    assert is_public(ip_address(text))


@for_every(
    "text",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",  # shared by a provider's customers
        "169.254.169.254",  # a cloud's metadata
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "0.0.0.0",
        "192.0.2.1",
        "198.18.0.1",
        "::",
        "::1",
        "::7f00:1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "fc00::1",
        "fd12:3456::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "2002:7f00:1::1",  # 6to4 of 127.0.0.1
        "64:ff9b::a00:1",  # DNS64 of 10.0.0.1
        "64:ff9b::a9fe:a9fe",
        "168.63.129.16",  # Azure's wire server
        "::ffff:168.63.129.16",
        "2002:a83f:8110::1",
        "64:ff9b::a83f:8110",
        "64:ff9b:1::a83f:8110",  # a network's own translation (RFC 8215)
        "100.100.100.200",  # Alibaba's metadata
        "192.0.0.192",  # Oracle's
        "fd00:ec2::254",  # Amazon's over IPv6
        "192.88.99.1",
        "::93.184.216.34",  # IPv4-compatible: deprecated
        "2001:4700::5efe:a00:1",  # ISATAP to 10.0.0.1
        "2001:0:a00:1::1",  # Teredo by a server at 10.0.0.1
        "2001:0:5db8:d822:0:0:80ff:fffe",  # … of a client at 127.0.0.1
        "2001:20::1",
        "3fff::1",
        "5f00::1",
        "100::1",
        "4000::1",
    ],
)
def test_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


NETWORKS = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "2001::/23",
    "2001:db8::/32",
    "3fff::/20",
)


@for_every("network", map(ip_network, NETWORKS))
def test_a_network_is_not_public_from_its_first_address_to_its_last(
    network: IPv4Network | IPv6Network,
) -> None:
    assert not is_public(network[0])
    assert not is_public(network[-1])
