"""uvicorn around the application: signals, the grace for running answers, and the lines that greet
the user.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import anyio
import uvicorn
from litestar import Litestar

from config.settings import ServerConfig
from gateway.registry import Registry
from gateway.tasks import companions

LAST_WORDS = 5.0  # seconds for cut-off answers to send their error event


class Server(uvicorn.Server):
    """Stops accepting on SIGTERM, lets answers finish for a while, then ends them with an error
    event.
    """

    def __init__(
        self, app: Litestar, config: ServerConfig, registry: Registry, greet: Callable[[str], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                loop="uvloop",
                http="httptools",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(config.shutdown_grace + LAST_WORDS),
            )
        )
        self._grace = config.shutdown_grace
        self._registry = registry
        self._greet = greet

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Without raising the signal again: a stop that was asked for exits with 0."""
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started and self.servers:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._greet(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        async with companions() as tasks:
            tasks.start_soon(self._cut_off_late)
            await super().shutdown(sockets)  # type: ignore[arg-type]

    async def _cut_off_late(self) -> None:
        await anyio.sleep(self._grace)
        self._registry.cut_off()


def run(server: Server) -> int:
    """Serve until told to stop. Returns the exit status."""
    with suppress(SystemExit):  # uvicorn's own status when it can't listen; it has said why
        server.run()
    return 0 if server.started else 1


def greeting(model: str) -> Callable[[str], None]:
    """What is printed when the server listens: where, what, and a line to try."""

    def greet(address: str) -> None:
        body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
        print(  # noqa: T201 - this is the command's output
            f"\nRoundhouse listens on {address}\n"
            f"  model: {model}\n"
            f"  try:   curl {address}/v1/chat/completions -H 'content-type: application/json' "
            f"-d '{body}'\n",
            file=sys.stdout,
            flush=True,
        )

    return greet
