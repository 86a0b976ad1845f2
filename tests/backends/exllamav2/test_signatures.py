"""The stand-in has the names, parameters and defaults of exllamav2's own source, which is read
without importing it: importing needs CUDA.
"""

import ast
import inspect
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from backends.exllamav2.filtering import ExLlamaV2GrammarFilter
from tests.backends.exllama.signatures import (
    class_of,
    method_of,
    methods,
    ours,
    parameters,
    read,
    source,
)
from tests.backends.exllamav2 import standin, standin_generator, standin_models
from tests.every import for_every

MODULES = {
    "ExLlamaV2Config": "config.py",
    "ExLlamaV2": "model.py",
    "ExLlamaV2Cache": "cache.py",
    "ExLlamaV2Cache_Q8": "cache.py",
    "ExLlamaV2Cache_Q6": "cache.py",
    "ExLlamaV2Cache_Q4": "cache.py",
    "ExLlamaV2Tokenizer": "tokenizer/tokenizer.py",
    "ExLlamaV2Lora": "lora.py",
    "ExLlamaV2VisionTower": "vlm/vision_tower.py",
    "ExLlamaV2DynamicGenerator": "generator/dynamic.py",
    "ExLlamaV2DynamicJob": "generator/dynamic.py",
}
# Defined on a base class in exllamav2, on the class itself here.
INHERITED = {("ExLlamaV2VisionTower", "load"), ("ExLlamaV2VisionTower", "unload")}


@pytest.fixture(scope="module")
def package() -> Path:
    return source("exllamav2", "0.3.2")


METHODS = methods(standin, MODULES, own=("text", "ids", "write"))


@for_every(("name", "method"), METHODS)
def test_methods_are_called_as_theirs(name: str, method: str, package: Path) -> None:
    owner = "ExLlamaV2" if (name, method) in INHERITED else name
    mine = ours(getattr(getattr(standin, name), method))
    assert mine == method_of(package, MODULES[owner], owner, method)


def test_quantized_caches_take_what_the_plain_one_takes(package: Path) -> None:
    plain = ours(standin_models.ExLlamaV2Cache.__init__)
    for name in ("ExLlamaV2Cache_Q8", "ExLlamaV2Cache_Q6", "ExLlamaV2Cache_Q4"):
        body = class_of(package, "cache.py", name).body
        made = next(node for node in body if isinstance(node, ast.FunctionDef))
        assert parameters(made) == plain


def test_the_sampler_s_settings_are_theirs(package: Path) -> None:
    theirs = [
        (node.target.id, read(node.value))
        for node in class_of(package, "generator/sampler.py", "Settings").body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    mine = [
        (name, p.default)
        for name, p in inspect.signature(standin_generator.Settings).parameters.items()
    ]
    made = {"field(default_factory=list)", "field(default_factory=deque)"}
    assert [name for name, _ in mine] == [name for name, _ in theirs]
    for (name, default), (_, expected) in zip(mine, theirs, strict=True):
        assert expected == default or str(expected).replace(" ", "") in made, name


FILTER = [name for name in vars(ExLlamaV2GrammarFilter) if not name.startswith("_")]


@for_every(
    "method", [name for name in FILTER if inspect.isroutine(vars(ExLlamaV2GrammarFilter)[name])]
)
def test_a_grammar_has_the_methods_of_its_filters(method: str, package: Path) -> None:
    theirs = method_of(package, "generator/filters/base.py", "ExLlamaV2Filter", method)
    assert ours(getattr(ExLlamaV2GrammarFilter, method)) == theirs


@for_every(
    ("module", "words"),
    [
        ("generator/sampler.py", "logits = f.mask_logits(flat_logits).view(1, 1, -1)"),
        ("generator/sampler.py", "assert f.get_next(mask = True) == True"),
        ("generator/dynamic.py", "f.feed(next_token)"),
        ("generator/dynamic.py", "assert filters is None or len(filters) == 0"),
        ("generator/dynamic.py", 'f.begin("")'),
        ("generator/dynamic.py", 'self.held_token = self.checkpoint["held_tokens"]'),
        ("generator/dynamic.py", '"suppressed_tokens": suppressed_tokens.torch()'),
        ("generator/dynamic.py", "PAGED_PAGE_SIZE = 256"),
        ("generator/dynamic.py", "self.max_new_tokens - self.generator.num_draft_tokens"),
        ("generator/dynamic.py", "self.sampling_pool = ThreadPoolExecutor"),
        ("generator/dynamic.py", "job.receive_logits(job_logits)"),
        ("generator/dynamic.py", "random.Random(seed)"),
        ("generator/dynamic.py", "self.sequences[0].sequence_ids.torch(),"),
        ("generator/dynamic.py", '"job": self,'),
        ("attn.py", "def assert_paged_attn():"),
        ("config.py", "self.no_sdpa = "),
        ("config.py", "self.no_graphs = "),
        ("device.py", "global_streams = {}"),
        ("model.py", "Insufficient VRAM"),
        ("model.py", "Insufficient space in device allocation"),
        ("architecture.py", 'self.arch_string = "LlamaForCausalLM"'),
        ("generator/sampler.py", "settings.dry_range > settings.dry_max_ngram"),
    ],
)
def test_what_our_code_leans_on_is_still_there(module: str, words: str, package: Path) -> None:
    assert words in (package / module).read_text(encoding="utf-8")
