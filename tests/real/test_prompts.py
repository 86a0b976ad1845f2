"""Long prompts and what runs beside them: one text, whoever is there, and nobody waits for long."""

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from backends.contract import catalog
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.engine import Token
from backends.engines.llamacpp import loading
from backends.engines.llamacpp.engine import LlamaCppEngine
from config.engines import LlamaCppOptions
from tests.real import lab
from tests.served import Serve, Served

pytestmark = pytest.mark.slow
STARTS, TOKENS = 20, 8
LAYOUTS = {
    "pool": LlamaCppOptions(gpu_layers=0, threads=1),
    "parts": LlamaCppOptions(gpu_layers=0, threads=1, max_concurrent=4, context_length=1024),
}
TEXT = "The old lighthouse keeper wrote down what he saw in the evening. " * 12


@pytest.fixture(params=LAYOUTS)
def engine(request: pytest.FixtureRequest) -> Iterator[LlamaCppEngine]:
    files = catalog.recognise(lab.smollm2())
    assert files is not None
    engine = LlamaCppEngine(loading.load(files, LAYOUTS[request.param], lambda _: True))
    yield engine
    engine.close()


def test_a_cold_start_gives_one_text_whatever_load_it_meets(engine: LlamaCppEngine) -> None:
    """Others read and answer beside it, and rates are what a busy machine measures."""
    chance, texts = random.Random(1), set()
    prompt = engine.tokenize(TEXT, special=False)
    for _ in range(STARTS):
        engine.recover()
        for other in range(chance.randrange(3)):
            beside = prompt[other + 1 :][: chance.choice([9, 40, 90])]
            engine.admit(100 + other, Generation(prompt=beside, sampling=Sampling()), None)
        for _ in range(chance.randrange(4)):
            engine.step()
        engine._prompts.rate = 10 ** chance.uniform(1, 5)  # noqa: SLF001 - as if measured
        engine.admit(1, Generation(prompt=prompt, sampling=Sampling(temperature=0)), None)
        drawn: list[int] = []
        while len(drawn) < TOKENS:
            drawn += [one.id for one in engine.step() if isinstance(one, Token) and one.key == 1]
        texts.add(tuple(drawn))
    assert len(texts) == 1


def first_text(server: Served, text: str) -> tuple[float, str]:
    """Seconds until it, and all that came before."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "stream": True}
    began, before = time.perf_counter(), ""
    with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            before += line + "\n"
            if '"content":"' in line and '"content":""' not in line:
                break
        return time.perf_counter() - began, before


def test_a_short_chat_comes_before_a_long_prompt_which_is_told_how_far_it_is(serve: Serve) -> None:
    model = {"name": "smol", "path": str(lab.smollm2())}
    server = serve({"models": [model], "server": {"comment_after": 1.0}})
    first_text(server, "Hello!")
    long: list[tuple[float, str]] = []
    thread = threading.Thread(target=lambda: long.append(first_text(server, TEXT * 8)))
    thread.start()
    told: list[dict[str, Any]] = []
    while not told:
        rows = server.client.get("/v1/admin/requests").json()["requests"]
        told = [row for row in rows if row["state"] == "prompt" and row["percent"] is not None]
        assert thread.is_alive()
    short, _ = first_text(server, "What is the opposite of hot?")
    assert thread.is_alive()
    thread.join()
    assert short < long[0][0] / 2
    assert "reading the prompt, " in long[0][1]
