"""A card without memory is a reason in the answer and not the end: in a load and in a step, while
other models go on.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.gpu.conftest import DRY
from tests.gpu.test_swaps import entry, streamed
from tests.real import lab
from tests.served import SEES_CARDS, Served, served

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
MIB = 1 << 20
EXPECTED = ("out of memory", "OutOfMemory", "model failed", "couldn't", "memory")


@pytest.fixture(scope="module")
def server(card: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if DRY:
        pytest.skip("main memory is not to be filled")
    engines = ("llamacpp", "exllamav2", "exllamav3", "transformers")
    models = [entry(name, lab.smollm2_folder(), lab.smollm2_half()) for name in engines]
    for model in models:
        model["options"]["context_length"] = 2048
    folder = tmp_path_factory.mktemp("full")
    config = {"models": models, "swap": {"backoff": 0.1}}
    with served(folder, config, environment=SEES_CARDS, expected=EXPECTED) as running:
        yield running


@contextmanager
def filled(leaving: int) -> Iterator[None]:
    """The card, but for so many bytes."""
    torch.cuda.empty_cache()
    taken = []
    for piece in (1 << 30, 64 * MIB, 8 * MIB):
        while torch.cuda.mem_get_info(0)[0] > leaving + piece:
            taken.append(torch.empty(piece, dtype=torch.uint8, device="cuda:0"))
    try:
        yield
    finally:
        taken.clear()
        torch.cuda.empty_cache()


def chat(server: Served, model: str, words: int = 5, tokens: int = 16) -> Any:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "apple " * words}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    return server.client.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("engine", ["transformers", "exllamav2", "exllamav3", "llamacpp"])
def test_a_load_without_memory_goes_elsewhere_or_is_refused(
    engine: str, server: Served, record_property: Callable[[str, Any], None]
) -> None:
    other = "llamacpp" if engine != "llamacpp" else "transformers"
    assert streamed(server, other)
    server.client.post("/v1/model/unload", json={"model": engine})
    with filled(leaving=150 * MIB):
        answer = chat(server, engine)
        record_property("answer", f"{answer.status_code} {answer.text[:400]}")
        if answer.status_code == 200:  # what didn't fit on the card went into main memory
            loaded = server.log.records("model loaded")[-1]
            record_property("devices", loaded["devices"])
            assert loaded["model"] == engine
            assert "cpu" in str(loaded["devices"])
        else:
            assert answer.status_code in (429, 503, 507)
            assert "memory" in answer.text
        assert streamed(server, other)
    again = chat(server, engine)
    assert again.status_code == 200, again.text


@pytest.mark.parametrize("engine", ["transformers", "exllamav2", "exllamav3"])
def test_a_step_without_memory_fails_alone(
    engine: str, server: Served, record_property: Callable[[str, Any], None]
) -> None:
    """A long prompt wants room for its activations, of which there is none."""
    assert streamed(server, "llamacpp")
    assert chat(server, engine).status_code == 200
    texts: list[str] = []
    with filled(leaving=4 * MIB):
        beside = threading.Thread(target=lambda: texts.append(streamed(server, "llamacpp")))
        beside.start()
        answer = chat(server, engine, words=1500)
        beside.join()
        record_property("answer", f"{answer.status_code} {answer.text[:400]}")
        assert answer.status_code in (200, 500, 502, 503, 507)
        assert answer.status_code == 200 or "memory" in answer.text
    assert [bool(text) for text in texts] == [True]
    again = chat(server, engine)
    assert again.status_code == 200, again.text
