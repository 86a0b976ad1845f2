"""What the system knows of a TCP connection: how much of it the other end has taken."""

import asyncio
import socket
import struct
import sys
from contextlib import suppress

# Of Linux' `struct tcp_info` (linux/tcp.h): tcpi_unacked, tcpi_bytes_acked, tcpi_notsent_bytes.
FACTS = struct.Struct("=24xI92xQ16xI")


def progress_of(transport: asyncio.Transport) -> object:
    """What differs while the other end's system takes what is sent to it: bytes as they are on the
    line, since what is written before TLS is another number. None where nothing is under way.
    Where the system doesn't say it is different each time.
    """
    connection = transport.get_extra_info("socket")
    if sys.platform == "linux" and connection is not None:
        with suppress(OSError, struct.error):
            facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, FACTS.size)
            unacknowledged, acknowledged, unsent = FACTS.unpack(facts)
            return acknowledged if unacknowledged or unsent else None
    return object() if transport.get_write_buffer_size() else None
