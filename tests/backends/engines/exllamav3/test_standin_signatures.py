"""The stand-in has the names, parameters and defaults of exllamav3's own source, which is read
without importing it: importing needs CUDA.
"""

import inspect
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from backends.engines.exllamav3.files import SEES
from backends.engines.exllamav3.loading import OurSampler
from tests.backends.engines.exllama.signatures import method_of, methods, ours, source
from tests.backends.engines.exllamav3 import standin, standin_sampler
from tests.every import for_every

MODULES = {
    "Config": "model/config.py",
    "Model": "model/model.py",
    "Cache": "cache/cache.py",
    "Tokenizer": "tokenizer/tokenizer.py",
    "LoRA": "model/lora.py",
    "Qwen3VLVisionModel": "architecture/qwen3_vl.py",
    "Generator": "generator/generator.py",
    "Job": "generator/job.py",
}
STEPS = sorted(name for name in vars(standin_sampler) if name.startswith("SS_"))
# `load` hands all that it is given to `load_gen`; processes are a mixin's.
ELSEWHERE = {
    ("Model", "load"): ("model/model.py", "Model", "load_gen"),
    ("Model", "destroy_tp_context"): ("model/model_tp.py", "Model_TPMixin", "destroy_tp_context"),
}
# The library's constructors of these are not called by us.
MADE_ELSEWHERE = {("Config", "__init__")}


@pytest.fixture(scope="module")
def package() -> Path:
    return source("exllamav3", "1.6.5")


METHODS = methods(standin, MODULES, own=("text", "ids", "write"))


@for_every(("name", "method"), [m for m in METHODS if m not in MADE_ELSEWHERE])
def test_methods_are_called_as_theirs(name: str, method: str, package: Path) -> None:
    where = ELSEWHERE.get((name, method), (MODULES[name], name, method))
    mine = ours(getattr(getattr(standin, name), method))
    assert mine == method_of(package, *where)


@for_every(("name", "method"), methods(standin_sampler, [*STEPS, "CustomSampler"]))
def test_steps_of_the_sampler_are_made_as_theirs(name: str, method: str, package: Path) -> None:
    mine = ours(getattr(getattr(standin_sampler, name), method))
    assert mine == method_of(package, "generator/sampler/custom.py", name, method)


def test_a_quantized_cache_wants_bits(package: Path) -> None:
    theirs = dict(method_of(package, "cache/quant.py", "CacheLayer_quant", "__init__"))
    assert theirs["k_bits"] is theirs["v_bits"] is inspect.Parameter.empty
    assert "compand_a" in theirs


@pytest.mark.parametrize("architecture", sorted(SEES))
def test_what_we_say_sees_has_a_vision_tower_there(architecture: str, package: Path) -> None:
    named = f'arch_string = "{architecture}"'
    (module,) = [
        text
        for path in (package / "architecture").glob("*.py")
        if named in (text := path.read_text(encoding="utf-8"))
    ]
    assert '"vision"' in module


def test_our_sampler_is_called_as_theirs(package: Path) -> None:
    theirs = method_of(package, "generator/sampler/custom.py", "CustomSampler", "forward")
    called = [name for name, _ in theirs if name != "return_state"]
    assert [name for name, _ in ours(OurSampler.forward)] == called


@for_every(
    ("module", "words"),
    [
        ("constants.py", "PAGE_SIZE = 256"),
        ("util/memory.py", "def unset_memory_fraction(active_devices: list[int]):"),
        ("model/model.py", "cache.initialized = True"),
        ("model/model_ls.py", "if callback_sync: callback_sync(idx, len(modules))"),
        ("model/model_ls.py", "Insufficient VRAM in split for model and cache"),
        ("model/model_ls.py", "unset_memory_fraction(touched_devices)"),
        ("model/model_ls.py", "+ max_transient[i] > device_budget[i]:"),
        ("model/model_tp.py", "if not self.loaded_tp:\n            return"),
        ("model/model_tp.py", "self.mp_children = []"),
        ("model/config.py", 'f"Unknown architecture {arch} in {config_filename}"'),
        ("model/config.py", 'self.image_token_id = self.read_cfg(int, ["image_token_id"'),
        ("model/config.py", "self.moe_cpu_offload = int("),
        ("model/config.py", "self.moe_cpu_split = int("),
        ("model/config.py", "self.moe_cpu_threads = None"),
        ("generator/generator.py", "disk_cache_dir needs a CPU page cache tier"),
        ("generator/generator.py", "self.max_batch_size = min(self.max_batch_size, c.num_slots)"),
        ("modules/sliding_attn.py", "sliding_window_overp: int = 2 * PAGE_SIZE"),
        ("model/lora.py", "self.target_modules[module_key] = target"),
        ("model/lora.py", "model.modules_dict = {m.key: m for m in model}"),
        ("modules/linear.py", "for lora, a in self.lora_a_tensors.items():"),
        ("modules/attn.py", "bca = self.bc_attn.get(key)\n        if bca is None:"),
        ("modules/attn.py", "if self.multi_qkv is not None and bsz * q_len <= 32:"),
        ("modules/attn.py", "if self.multi_qg is None or bsz * q_len > 32:"),
        ("modules/attn.py", "if self.multi_kv is None or bsz * q_len > 32:"),
        ("modules/mlp.py", "if self.bc is not None and bsz * q_len <= MAX_BSZN:"),
        ("modules/mlp.py", "elif self.multi_gu[s] is None or bsz * q_len > 32:"),
        ("generator/pagetable.py", "r_hash = tensor_hash_checksum(page_ids, r_hash)"),
        ("generator/job.py", "new_hash = tensor_hash_checksum(page_ids, last_hash)"),
        ("generator/job.py", "prev_hash = None if p0 == 0 else seq.allocated_pages[p0 - 1].phash"),
        ("generator/generator.py", "def close(self):"),
        ("generator/generator.py", '"stage": "error"'),
        ("generator/generator.py", "draft_cache.max_num_tokens == cache.max_num_tokens"),
        ("generator/job.py", 'self.rq_cached = rq_state.get("cached")'),
        (
            "generator/job.py",
            "self.cached_pages, self.cached_pages * PAGE_SIZE + self.cached_tokens",
        ),
        ("generator/job.py", "self.max_new_tokens = min(self.max_new_tokens, room)"),
        ("generator/job.py", "logit_mask = self.device_logit_mask"),
        ("generator/generator.py", "and not job.sampler.reqs_past_ids"),
        ("modules/attn.py", "assert bsz * cache_max_seq_len <= cache.max_num_tokens"),
        ("model/model.py", "self.output_device = self.modules[-1].device"),
        ("tokenizer/tokenizer.py", "self.actual_vocab_size = 1 + max("),
        ("tokenizer/mm_embedding.py", "self.token_list = token_string[0].tolist()"),
    ],
)
def test_what_our_code_leans_on_is_still_there(module: str, words: str, package: Path) -> None:
    assert words in (package / module).read_text(encoding="utf-8")
