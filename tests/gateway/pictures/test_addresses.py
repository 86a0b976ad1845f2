"""Only what anybody on the internet could reach is public, however it is written."""

import pytest

from gateway.pictures.addresses import address, is_public


@pytest.mark.parametrize(
    "text",
    [
        "93.184.216.34",
        "2606:2800:220:1:248:1893:25c8:1946",
        "::ffff:93.184.216.34",  # mapped
        "2002:5db8:d822::1",  # 6to4 of 93.184.216.34
        "64:ff9b::5db8:d822",  # what DNS64 makes of it
    ],
)
def test_public(text: str) -> None:
    assert is_public(address(text))


@pytest.mark.parametrize(
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
    ],
)
def test_not_public(text: str) -> None:
    assert not is_public(address(text))
