"""Our container costs next to nothing: tokens per second beside the bare generator's loop.

A Llama of about a thousand million parameters with random weights is made on the spot: what it says
is noise, but it takes as long as sense would. The table is printed for the README (`-rA` shows it).
"""

import json
import shutil
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

import bundled
from backends import catalog
from backends.protocol import Generation, ModelContainer
from backends.samplers import Sampling
from config.engines import ExLlamaOptions, ExLlamaV2Options, ExLlamaV3Options
from tests.backends.contract import GREEDY, run

pytestmark = [pytest.mark.gpu, pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]

OPTIONS: Mapping[str, ExLlamaOptions] = {
    "exllamav2": ExLlamaV2Options(max_concurrent=8, context_length=2048),
    "exllamav3": ExLlamaV3Options(max_concurrent=8, context_length=2048),
}
SAMPLER = {"exllamav2": "gen_settings", "exllamav3": "sampler"}  # what a job calls it
TOKENS = 512  # of each answer
ROUNDS = 3  # the best counts: the first compiles and tunes
LEAST = 0.97  # of the bare loop's tokens per second
SAMPLED = Sampling(temperature=0.8, min_p=0.05, repetition_penalty=1.1, ban_eos=True)


@pytest.fixture(scope="module")
def billion(tmp_path_factory: pytest.TempPathFactory, card: str) -> Path:
    """A folder with 1.1 thousand million random weights at 16 bits, and the bundled tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("billion")
    shape = LlamaConfig(
        vocab_size=32_000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(shape).to(torch.float16)
        model.lm_head.weight.data[:5] = 0  # no end is the likeliest token
    model.to("cpu").save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled.SAFETENSORS / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 10000.0}))
    del model
    torch.cuda.empty_cache()
    return folder


def asked(stream: int, sampling: Sampling = GREEDY) -> Generation:
    """No two streams begin alike, so that none finds another's pages."""
    prompt = (300 + stream, *range(310, 340))
    return Generation(prompt=prompt, sampling=sampling, max_tokens=TOKENS)


async def ours(container: ModelContainer, streams: int, sampling: Sampling = GREEDY) -> float:
    """Tokens per second of `streams` requests at once."""
    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for stream in range(streams):
            tasks.start_soon(run, container, asked(stream, sampling))
    return streams * TOKENS / (time.perf_counter() - started)


def bare(loaded: Any, streams: int) -> float:
    """The same requests in the loop that the libraries' examples use."""
    generator, library = loaded.generator, loaded.library
    theirs = import_module(f"backends.{loaded.name}.sampling").theirs
    started = time.perf_counter()
    for stream in range(streams):
        generation = asked(stream)
        job = library.job(
            input_ids=torch.tensor([generation.prompt]),
            max_new_tokens=TOKENS,
            stop_conditions=[],
            **{SAMPLER[loaded.name]: theirs(generation.sampling, library)},
        )
        generator.enqueue(job)
    said = 0
    while generator.num_remaining_jobs():
        for result in generator.iterate():
            if result["stage"] == "streaming" and "token_ids" in result:
                said += result["token_ids"].shape[-1]
    seconds = time.perf_counter() - started
    assert said == streams * TOKENS
    return said / seconds


async def test_the_container_keeps_up_with_the_bare_loop(
    billion: Path, backend: str, library: Any, card: str
) -> None:
    files, options, streams = catalog.recognise(billion, backend), OPTIONS[backend], (1, 8)
    load = import_module(f"backends.{backend}.loading").load
    loaded = load(files, options, library, lambda _: True)
    loop = {count: max(bare(loaded, count) for _ in range(ROUNDS)) for count in streams}
    paged = getattr(loaded, "paged", True)  # exllamav3 has its own
    loaded.free()
    container = await catalog.BACKENDS[backend].container.load(files, options, lambda _: None)
    mine = {count: max([await ours(container, count) for _ in range(ROUNDS)]) for count in streams}
    sampled = {
        count: max([await ours(container, count, SAMPLED) for _ in range(ROUNDS)])
        for count in streams
    }
    await container.aclose()
    rows = [
        f"| {count} | {loop[count]:.0f} | {mine[count]:.0f} | {mine[count] / loop[count]:.1%} | "
        f"{sampled[count]:.0f} |"
        for count in streams
    ]
    how = "with pages" if paged else "one after another, without flash-attn"
    head = (
        "| streams | bare loop, tokens/s | container, tokens/s | share | the container's samplers |"
        "\n|---|---|---|---|---|"
    )
    print("\n".join((f"\n{backend}, {card}, {how}", head, *rows)))  # noqa: T201 - the README's table
    assert all(mine[count] >= LEAST * loop[count] for count in streams)
