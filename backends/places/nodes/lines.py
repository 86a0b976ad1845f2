"""The settings of a TCP connection between a gateway and a listener."""

import asyncio
import socket
import struct
import sys
from contextlib import suppress

with suppress(ImportError):  # not on Windows
    import fcntl
    import termios

# Seconds: a peer whose machine is gone is found even where nothing is sent (tcp(7)).
IDLE, INTERVAL, PROBES = 10, 5, 3


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Send at once what is written, and notice a peer that is gone."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family == getattr(socket, "AF_UNIX", None):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE),
        ("TCP_KEEPINTVL", INTERVAL),
        ("TCP_KEEPCNT", PROBES),
    ):
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def unacknowledged(transport: asyncio.BaseTransport) -> int:
    """Bytes that the system took and the other end has not; 0 where it doesn't say (tcp(7))."""
    connection = transport.get_extra_info("socket")
    if sys.platform != "linux" or connection is None:
        return 0
    answer = bytearray(4)
    with suppress(OSError):
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, answer)
    size: int = struct.unpack("i", answer)[0]
    return size


def acknowledged(transport: asyncio.BaseTransport) -> object:
    """Bytes that the other end's system has taken, as they were on the line: what is written before
    TLS is another number. Where the system doesn't say (linux/tcp.h, `tcpi_bytes_acked`) it is
    different each time.
    """
    connection = transport.get_extra_info("socket")
    if sys.platform == "linux" and connection is not None:
        with suppress(OSError, struct.error):
            facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
            return struct.unpack_from("Q", facts, 120)[0]
    return object()
