"""Bytes between the two ends of a container, as between two processes: every message is encoded and
decoded, and the gateway's end has a tokenizer of its own, made of what the other end said of its
model.
"""

from collections.abc import Callable

import msgspec

from backends.contract.catalog import BACKENDS, Catalog
from backends.contract.framing import Frames, Message, Shelf, WorkerCommand, WorkerEvent
from backends.contract.messages import Command, Event, Port
from backends.contract.protocol import ModelContainer, ModelInfo
from backends.places.container import PortContainer

encode: Callable[[Message], bytes] = Shelf(shared=False).frame


def command_of(data: bytes) -> Command:
    """What `encode` made bytes of, on any thread: frames belong to one."""
    (command,) = Frames(WorkerCommand, lambda: None).feed(data)
    return command  # type: ignore[no-any-return]


def event_of(data: bytes) -> Event:
    """What `encode` made bytes of, on any thread."""
    (event,) = Frames(WorkerEvent, lambda: None).feed(data)
    return event  # type: ignore[no-any-return]


class BytesPort:
    """The far end of `port`: what goes there and comes from there is bytes."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self.info = msgspec.msgpack.decode(msgspec.msgpack.encode(port.info), type=ModelInfo)
        self.commands = 0
        self.events = 0  # messages that came

    def connect(self, receive: Callable[[Event], None]) -> None:
        def received(event: Event) -> None:
            self.events += 1
            receive(event_of(encode(event)))

        self._port.connect(received)

    def send(self, command: Command) -> None:
        self.commands += 1
        self._port.send(command_of(encode(command)))


def over_bytes(container: ModelContainer, catalog: Catalog = BACKENDS) -> PortContainer:
    """The same model, spoken to through bytes alone, in the container's place."""
    assert isinstance(container, PortContainer)
    port = BytesPort(container.port)
    return PortContainer(port, catalog[port.info.backend].container.tokenizer(port.info))
