"""Models on a share that hangs: nobody else waits for it, and what runs goes on."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.registry.moves import STARTING
from tests.hang import HANG
from tests.served import Serve, Served, events, scripted
from tests.share import share

CHAT = "/v1/chat/completions"
GRACE = 60.0  # of the stop, longer than the test waits


def ask(server: Served, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], **more}
    return server.client.post(CHAT, json=body)


@pytest.mark.slow
def test_a_share_that_hangs_holds_up_nobody_else(serve: Serve, tmp_path: Path) -> None:
    far, folder = tmp_path / "far", tmp_path / "far" / "folder"
    folder.mkdir(parents=True)
    with share(far, tmp_path / "mounted") as hanging:
        models = [scripted(far, name, f"I am {name}.") for name in ("runs", "rests")]
        for one in models:
            one["path"] = str(hanging.place / Path(one["path"]).name)
        scripted(folder, "found", "I am found.")
        models.append(scripted(tmp_path, "near", "one two three " * 100, tokens_per_second=100))
        config = {
            "models": models,
            "model_dirs": [str(hanging.place / "folder")],
            "server": {"shutdown_grace": GRACE},
        }
        server = serve(config)
        assert ask(server, "runs").json()["choices"][0]["message"]["content"] == "I am runs."
        body = {"model": "near", "messages": [{"role": "user", "content": "Hello!"}]}
        with server.client.stream("POST", CHAT, json=body | {"stream": True}) as near:
            lines = near.iter_lines()
            next(lines)
            hanging.hang()
            with ThreadPoolExecutor(60) as clients:  # more than anyio has threads
                asked = [clients.submit(ask, server, "runs") for _ in range(20)]
                asked += [clients.submit(ask, server, "rests") for _ in range(20)]
                asked += [clients.submit(ask, server, "unknown") for _ in range(20)]
                assert server.client.get("/health").is_success
                assert server.client.get("/v1/models").is_success
                assert events("\n".join(lines))[-1]["choices"][0]["finish_reason"] == "stop"
                answers = [one.result(HANG) for one in asked]
        assert [one.status_code for one in answers] == 20 * [200] + 20 * [503] + 20 * [404]
        assert f"don't answer for {STARTING:.0f} s" in json.dumps(answers[20].json())
        began = time.monotonic()
        assert server.stop(signal.SIGTERM) == 0
        assert time.monotonic() - began < GRACE
