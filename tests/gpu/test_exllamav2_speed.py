"""Our container costs next to nothing: tokens per second beside the bare generator's loop.

A Llama of about a thousand million parameters with random weights is made on the spot: what it says
is noise, but it takes as long as sense would. The table is printed for the README (`-rA` shows it).
"""

import json
import shutil
import time
from pathlib import Path

import anyio
import pytest
import torch

import bundled
from backends import catalog
from backends.exllamav2.container import load_with
from backends.exllamav2.library import Library
from backends.exllamav2.loading import Loaded, load
from backends.exllamav2.sampling import settings
from backends.protocol import Generation, ModelContainer, Sampling
from config.engines import ExLlamaV2Options
from tests.backends.contract import run

pytestmark = [pytest.mark.gpu, pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]

OPTIONS = ExLlamaV2Options(max_concurrent=8, context_length=2048)
TOKENS = 512  # of each answer
ROUNDS = 3  # the best counts: the first compiles and tunes
LEAST = 0.97  # of the bare loop's tokens per second


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
    model.to("cpu").save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled.SAFETENSORS / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 10000.0}))
    del model
    torch.cuda.empty_cache()
    return folder


def asked(stream: int, tokens: int = TOKENS) -> Generation:
    """No two streams begin alike, so that none finds another's pages."""
    prompt = (300 + stream, *range(310, 340))
    return Generation(
        prompt=prompt, sampling=Sampling(temperature=0, ban_eos=True), max_tokens=tokens
    )


async def ours(container: ModelContainer, streams: int, tokens: int = TOKENS) -> float:
    """Tokens per second of `streams` requests at once."""
    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for stream in range(streams):
            tasks.start_soon(run, container, asked(stream, tokens))
    return streams * tokens / (time.perf_counter() - started)


def bare(loaded: Loaded, streams: int, tokens: int = TOKENS) -> float:
    """The same requests in the loop that exllamav2's examples use."""
    generator, library = loaded.generator, loaded.library
    started = time.perf_counter()
    for stream in range(streams):
        generation = asked(stream, tokens)
        job = library.job(
            input_ids=torch.tensor([generation.prompt]),
            max_new_tokens=tokens,
            gen_settings=settings(generation, library, loaded.vocabulary),
            stop_conditions=[],
        )
        generator.enqueue(job)
    said = 0
    while generator.num_remaining_jobs():
        for result in generator.iterate():
            if result["stage"] == "streaming" and "token_ids" in result:
                said += result["token_ids"].shape[-1]
    seconds = time.perf_counter() - started
    assert said == streams * tokens
    return said / seconds


async def test_the_container_keeps_up_with_the_bare_loop(
    billion: Path, library: Library, card: str
) -> None:
    files = catalog.recognise(billion, "exllamav2")
    streams = (1, 8)
    loaded = load(files, OPTIONS, library, lambda _: True)
    loop = {count: max(bare(loaded, count) for _ in range(ROUNDS)) for count in streams}
    paged = loaded.paged
    loaded.free()
    container = await load_with(lambda: library, files, OPTIONS, lambda _: None)
    mine = {count: max([await ours(container, count) for _ in range(ROUNDS)]) for count in streams}
    await container.aclose()
    rows = [
        f"| {count} | {loop[count]:.0f} | {mine[count]:.0f} | {mine[count] / loop[count]:.1%} |"
        for count in streams
    ]
    how = "with pages" if paged else "one after another, without flash-attn"
    head = "| streams | bare loop, tokens/s | container, tokens/s | share |\n|---|---|---|---|"
    print("\n".join((f"\n{card}, {how}", head, *rows)))  # noqa: T201 - the README's table
    assert all(mine[count] >= LEAST * loop[count] for count in streams)
