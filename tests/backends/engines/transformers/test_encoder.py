"""Encoders of Hugging Face folders: the contract, and the numbers of sentence-transformers,
whatever steps a folder names. GGUF files of the same weights agree with them.
"""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import msgspec
import numpy
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from backends.contract import catalog
from backends.contract.encoder import EncoderContainer
from backends.contract.errors import LoadFailed, UnsupportedModel
from config.engines import EngineOptions, LlamaCppOptions, TransformersOptions
from tests.backends import encoder_folders, encoder_gguf
from tests.backends.encoder_contract import PROMISES, EncoderSubject
from tests.backends.encoder_folders import QUERY, TEXTS

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
TOLERANCE = 1e-4  # of a value
MODULE = "sentence_transformers.models."
STEPS = [{"idx": 0, "name": "0", "path": "", "type": f"{MODULE}Transformer"}]


def sentence_transformers() -> ModuleType:
    """Imported where it is used: it takes a second, which each worker would spend on collecting
    these tests, which are slow ones.
    """
    return import_module("sentence_transformers")


def modules(**paths: str) -> list[dict[str, object]]:
    """A `modules.json`: the transformer, and of each of these kinds one, in this path."""
    return [
        *STEPS,
        *(
            {"idx": at, "name": str(at), "path": path, "type": MODULE + kind}
            for at, (kind, path) in enumerate(paths.items(), 1)
        ),
    ]


async def load(path: Path, options: EngineOptions) -> EncoderContainer:
    name = "llamacpp" if path.suffix == ".gguf" else "transformers"
    files = catalog.recognise(path)
    assert files.backend == name
    return await catalog.BACKENDS[name].container.load_encoder(files, options, lambda _: None)


async def encoded(
    path: Path, texts: Sequence[str], options: EngineOptions = TransformersOptions()
) -> NDArray[numpy.float32]:
    """Our vectors of `texts`, or scores of them for `QUERY`."""
    container = await load(path, options)
    most, info = container.info.context_length, container.info
    prompt = info.vectors.prompt if info.vectors else ""
    ranks = info.task == "rank"
    inputs = [
        container.read_pair(QUERY, text, most) if ranks else container.read(prompt + text, most)
        for text in texts
    ]
    vectors = await container.encode(inputs)
    await container.aclose()
    found = numpy.array([numpy.frombuffer(vector, numpy.float32) for vector in vectors])
    return found[:, 0] if ranks else found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_folders.copied(tmp_path_factory.mktemp("embed") / "folder")


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_folders.cross_encoder(tmp_path_factory.mktemp("rank") / "folder")


@pytest.fixture(params=["embed", "rank"])
async def container(
    request: pytest.FixtureRequest, folder: Path, ranking: Path
) -> AsyncIterator[EncoderContainer]:
    loaded = await load(folder if request.param == "embed" else ranking, TransformersOptions())
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(
    promise: Callable[[EncoderSubject], Awaitable[None]], container: EncoderContainer
) -> None:
    await promise(EncoderSubject(container, tolerance=TOLERANCE))


DENSE = {"in_features": 384, "out_features": 32, "bias": True}
FOLDERS: Mapping[str, Mapping[str, object]] = {
    "as published": {},
    "cls": {"1_Pooling/config.json": {"pooling_mode_cls_token": True}},
    "max": {"1_Pooling/config.json": {"pooling_mode_max_tokens": True}},
    "last": {"1_Pooling/config.json": {"pooling_mode": "lasttoken"}},
    "weighted": {"1_Pooling/config.json": {"pooling_mode_weightedmean_tokens": True}},
    "two": {"1_Pooling/config.json": {"pooling_mode": ["cls", "mean_sqrt_len_tokens"]}},
    "not normalized": {"modules.json": modules(Pooling="1_Pooling")},
    "dense": {
        "modules.json": modules(Pooling="1_Pooling", Dense="2_Dense", Normalize="3"),
        "2_Dense/config.json": {**DENSE, "activation_function": "torch.nn.modules.linear.Identity"},
    },
    "tanh": {
        "modules.json": modules(Pooling="1_Pooling", Dense="2_Dense"),
        "2_Dense/config.json": {**DENSE, "activation_function": "torch.nn.modules.activation.Tanh"},
    },
    "prompted": {
        "config_sentence_transformers.json": {
            "prompts": {"query": "query: ", "passage": "passage: "},
            "default_prompt_name": "query",
        }
    },
    "short": {"sentence_bert_config.json": {"max_seq_length": 9, "do_lower_case": False}},
}


def made(path: Path, changes: Mapping[str, object]) -> Path:
    pooling = changes.get("1_Pooling/config.json")
    if isinstance(pooling, dict):
        changes = {
            **changes,
            "1_Pooling/config.json": {
                "word_embedding_dimension": 384,
                "pooling_mode_mean_tokens": False,
                **pooling,
            },
        }
    folder = encoder_folders.copied(path, changes)
    if "2_Dense/config.json" in changes:
        drawn = numpy.random.default_rng(5)
        layer = {"linear.weight": drawn.normal(0, 0.1, (32, 384)), "linear.bias": drawn.random(32)}
        tensors = {name: one.astype(numpy.float32) for name, one in layer.items()}
        save_file(tensors, folder / "2_Dense" / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", FOLDERS)
async def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "folder", FOLDERS[name])
    expected = (
        sentence_transformers().SentenceTransformer(str(folder), device="cpu").encode(list(TEXTS))
    )
    found = await encoded(folder, TEXTS)
    assert found.shape == expected.shape
    assert numpy.abs(found - expected).max() < TOLERANCE


async def test_a_bare_encoder_takes_the_mean_as_sentence_transformers_does(tmp_path: Path) -> None:
    bare = dict.fromkeys(("modules.json", "sentence_bert_config.json"))
    folder = encoder_folders.copied(tmp_path / "folder", bare)
    shutil.rmtree(folder / "1_Pooling")
    expected = (
        sentence_transformers().SentenceTransformer(str(folder), device="cpu").encode(list(TEXTS))
    )
    assert numpy.abs(await encoded(folder, TEXTS) - expected).max() < TOLERANCE


@pytest.mark.parametrize("activation", [None, "torch.nn.modules.linear.Identity"])
async def test_scores_are_those_of_sentence_transformers(
    activation: str | None, tmp_path: Path
) -> None:
    own = {"activation_fn": activation} if activation else {}
    folder = encoder_folders.cross_encoder(tmp_path / "folder", sentence_transformers=own)
    model = sentence_transformers().CrossEncoder(str(folder), device="cpu")
    texts = [*TEXTS, "word " * 600]  # too long: what is cut is cut alike
    expected = model.predict([(QUERY, text) for text in texts])
    found = await encoded(folder, texts)
    assert numpy.ptp(expected) > 0.05, "the texts are told apart"
    assert numpy.abs(found - expected).max() < TOLERANCE


async def test_a_gguf_of_the_same_weights_agrees(folder: Path, tmp_path: Path) -> None:
    """llama.cpp looks its GELU up in a table at 16 bits: no closer than 1e-3."""
    path = encoder_gguf.write(encoder_folders.minilm(), tmp_path / "minilm.gguf")
    expected = await encoded(folder, TEXTS)
    found = await encoded(path, TEXTS, LlamaCppOptions())
    assert numpy.abs(found - expected).max() < 1e-3
    assert (found * expected).sum(axis=1).min() > 0.9999


async def test_a_gguf_reranker_of_the_same_weights_agrees(tmp_path: Path) -> None:
    folder = encoder_folders.cross_encoder(tmp_path / "folder", typed=False)
    path = encoder_gguf.write(folder, tmp_path / "rank.gguf", pooling=encoder_gguf.RANK)
    expected = await encoded(folder, TEXTS)
    found = await encoded(path, TEXTS, LlamaCppOptions())
    assert numpy.abs(found - expected).max() < 1e-3


@pytest.mark.parametrize("backend", ["exllamav2", "exllamav3"])
def test_exllama_says_that_it_cannot(backend: str, folder: Path) -> None:
    with pytest.raises(UnsupportedModel, match=backend):
        catalog.recognise(folder, backend)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modules.json": modules(Pooling="1_Pooling", WordWeights="2")}, "WordWeights"),
        ({"modules.json": STEPS}, "no pooling"),
        ({"modules.json": modules(Pooling="../../1_Pooling")}, "outside"),
        ({"modules.json": {"not": "a list"}}, "can't be read"),
        ({"1_Pooling/config.json": {"pooling_mode": "sum"}}, "pooling"),
        ({"1_Pooling/config.json": {"include_prompt": False}}, "prompts"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(
    changes: Mapping[str, object], words: str, tmp_path: Path
) -> None:
    folder = encoder_folders.copied(tmp_path / "folder", changes)
    with pytest.raises(LoadFailed, match=words):
        catalog.recognise(folder)


def test_a_classifier_of_several_classes_does_not_rank(tmp_path: Path) -> None:
    folder = encoder_folders.cross_encoder(tmp_path / "folder")
    content = msgspec.json.decode((folder / "config.json").read_bytes())
    labels = {"id2label": {"0": "NO", "1": "YES"}}
    (folder / "config.json").write_bytes(msgspec.json.encode(content | labels))
    with pytest.raises(UnsupportedModel, match="2 labels"):
        catalog.recognise(folder)
