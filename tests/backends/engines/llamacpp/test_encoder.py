"""llama.cpp makes vectors and ranks: the contract, and the numbers that were published."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import gguf
import pytest

from backends.contract import catalog
from backends.contract.encoder import EncoderContainer, values
from config.engines import LlamaCppOptions
from tests.backends.encoder_contract import PROMISES, EncoderSubject
from tests.backends.pairs import quick

pytestmark = pytest.mark.anyio


async def load(path: Path, options: LlamaCppOptions = LlamaCppOptions()) -> EncoderContainer:
    files = catalog.recognise(path)
    return await catalog.BACKENDS["llamacpp"].container.load_encoder(files, options, lambda _: None)


@pytest.fixture(params=quick(["embed", "rank"], "embed"))
async def container(
    request: pytest.FixtureRequest, embed_gguf: Path, rank_gguf: Path
) -> AsyncIterator[EncoderContainer]:
    loaded = await load(embed_gguf if request.param == "embed" else rank_gguf)
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(
    promise: Callable[[EncoderSubject], Awaitable[None]], container: EncoderContainer
) -> None:
    await promise(EncoderSubject(container))


async def test_a_model_that_learned_its_positions_reads_no_further(embed_gguf: Path) -> None:
    container = await load(embed_gguf, LlamaCppOptions(context_length=4096))
    assert container.info.context_length == 512
    await container.encode([container.read("a " * 4000, container.info.context_length)])
    await container.aclose()


async def test_texts_that_mean_the_same_are_near(embed_gguf: Path) -> None:
    container = await load(embed_gguf)
    texts = ("A man is eating food.", "Someone has a meal.", "The stock market fell today.")
    vectors = await container.encode([container.read(text) for text in texts])
    await container.aclose()
    first, near, far = map(values, vectors)

    def product(other: list[float]) -> float:
        return sum(a * b for a, b in zip(first, other, strict=True))

    assert product(near) > 0.4
    assert product(far) < 0.2


async def test_a_text_is_framed_as_the_model_was_trained(embed_gguf: Path) -> None:
    container = await load(embed_gguf)
    special = container.info.special
    read = container.read("hello [SEP] world")
    pair_closed = container.read("")
    begin, end = read.tokens[0], read.tokens[-1]
    assert pair_closed.tokens == (begin, end)
    assert container.detokenize([begin, end]) == "[CLS][SEP]"
    await container.aclose()
    assert "[SEP]" in special.control
    assert read.tokens.count(end) == 1, "what a client spells like a control token is text"


async def test_a_pair_is_framed_as_the_model_was_trained(rank_gguf: Path) -> None:
    container = await load(rank_gguf)
    pair = container.read_pair("hello", "world")
    cls, hello, sep, world, end = pair.tokens
    assert sep == end
    assert pair.second == 3
    assert container.detokenize([cls, sep]) == "[CLS][SEP]"
    assert hello != world
    await container.aclose()


@pytest.mark.parametrize(
    ("architecture", "pooling", "task"),
    [
        ("bert", None, "embed"),
        ("bert", gguf.PoolingType.CLS, "embed"),
        ("nomic-bert", gguf.PoolingType.NONE, "embed"),
        ("qwen3", gguf.PoolingType.LAST, "embed"),
        ("qwen3", gguf.PoolingType.RANK, "rank"),
        ("qwen3", None, "generate"),
        ("qwen3", gguf.PoolingType.NONE, "generate"),
    ],
)
def test_what_a_file_is_for_is_reported_by_its_header(
    architecture: str, pooling: gguf.PoolingType | None, task: str, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
    writer.add_context_length(512)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = catalog.recognise(tmp_path / "model.gguf")
    assert (files.task, files.architecture) == (task, architecture)
