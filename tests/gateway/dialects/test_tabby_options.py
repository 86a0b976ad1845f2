"""TabbyAPI's load options mean options of our engines, or are named."""

from typing import Any

import msgspec
import pytest

from backends.contract.catalog import BACKENDS
from config import shape
from config.engines import (
    ExLlamaV2Options,
    ExLlamaV3Options,
    LlamaCppOptions,
    TransformersOptions,
)
from config.models import ENGINES
from gateway.dialects import tabby
from gateway.terms.errors import InvalidRequest
from tests.every import for_every

CONFIGURED_ONLY = BACKENDS.configured_only
KINDS = {
    "llamacpp": LlamaCppOptions,
    "exllamav2": ExLlamaV2Options,
    "exllamav3": ExLlamaV3Options,
    "transformers": TransformersOptions,
}
FORM = {  # what the loader extension sends where its user left all as it was
    "max_seq_len": -1,
    "rope_scale": 1,
    "rope_alpha": 1,
    "gpu_split_auto": True,
    "gpu_split": [20, 24],
    "cache_mode": "FP16",
    "fasttensors": False,
    "output_chunking": True,
    "skip_queue": False,
    "tensor_parallel": False,
    "tensor_parallel_backend": "native",
}


def engine_options(asked: dict[str, Any], backend: str) -> dict[str, Any]:
    own = BACKENDS[backend].files.LOAD_OPTIONS
    return tabby.engine_options(asked, backend, own, CONFIGURED_ONLY)


@pytest.mark.parametrize("backend", [*KINDS, "scripted"])
def test_a_form_left_alone_wishes_for_nothing(backend: str) -> None:
    assert engine_options(FORM, backend) == {}


@pytest.mark.parametrize(
    ("backend", "asked", "options"),
    [
        ("llamacpp", {"max_seq_len": 4096}, {"context_length": 4096}),
        ("llamacpp", {"cache_size": 8192}, {"cache_tokens": 8192}),
        ("llamacpp", {"max_batch_size": 4}, {"max_concurrent": 4}),
        ("llamacpp", {"cache_mode": "Q8"}, {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
        ("llamacpp", {"cache_mode": "8,4"}, {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
        ("llamacpp", {"gpu_split": [3.0, 1.0]}, {"tensor_split": [3.0, 1.0]}),
        ("llamacpp", {"rope_scale": 4.0}, {"rope_freq_scale": 0.25}),
        ("llamacpp", {"gpu_layers": 7}, {"gpu_layers": 7}),
        ("llamacpp", {"draft_mode": "ngram"}, {"speculation": {"mode": "ngram"}}),
        ("transformers", {"draft_mode": "disabled"}, {"speculation": {"mode": "off"}}),
        (
            "llamacpp",
            {"draft_num_tokens": 3},
            {"draft": {"tokens": 3}},
        ),
        ("exllamav2", {"cache_mode": "Q6"}, {"cache_type": "q6"}),
        ("exllamav2", {"rope_alpha": 2.5}, {"rope_alpha": 2.5}),
        ("exllamav2", {"gpu_split": [20], "gpu_split_auto": False}, {"gpu_split": [20]}),
        ("exllamav2", {"autosplit_reserve": [128.0]}, {"autosplit_reserve": [128.0]}),
        ("exllamav3", {"cache_mode": "Q6"}, {"cache_type": "q6"}),
        ("exllamav3", {"cache_mode": "8, 4"}, {"cache_type": "8,4"}),
        ("exllamav3", {"tensor_parallel": True}, {"tensor_parallel": True}),
        ("exllamav3", {"chunk_size": 512}, {"chunk_size": 512}),
        ("exllamav3", {"sysmem_kv_cache": 64}, {"cpu_cache_size": 64}),
        ("exllamav3", {"sysmem_recurrent_cache": 64}, {"recurrent_cache_size": 64}),
        ("exllamav3", {"cpu_moe_offload_layers": 9}, {"moe_cpu_offload": 9}),
        ("exllamav3", {"tensor_parallel_backend": "nccl"}, {"tensor_parallel_backend": "nccl"}),
        ("exllamav3", {"dynamic_draft": True}, {"dynamic_draft_tokens": True}),
        ("exllamav3", {"draft_cache_mode": "8,4"}, {"draft_cache_type": "8,4"}),
        ("exllamav3", {"ngram_match_min": 2}, {"ngram_match_min": 2}),
        (
            "exllamav3",
            {"draft_mode": "mtp"},
            {"mtp": False, "ngram_speculation": False, "speculation": {"mode": "mtp"}},
        ),
        (
            "exllamav3",
            {"draft_mode": "disabled"},
            {"mtp": False, "ngram_speculation": False, "speculation": {"mode": "off"}},
        ),
        (
            "exllamav2",
            {"draft_mode": "ngram"},
            {"ngram_speculation": False, "speculation": {"mode": "ngram"}},
        ),
        (
            "exllamav2",
            {"draft_mode": "disabled"},
            {"ngram_speculation": False, "speculation": {"mode": "off"}},
        ),
        ("exllamav2", {"draft_num_tokens": 3}, {"draft": {"tokens": 3}}),
        ("exllamav2", {"draft_gpu_split": [0, 9]}, {"draft_gpu_split": [0, 9]}),
        ("exllamav2", {"draft_cache_mode": "Q4"}, {"draft_cache_type": "q4"}),
        ("transformers", {"cache_size": 4096}, {"cache_tokens": 4096}),
    ],
)
def test_a_wish_is_the_engines_own_option(
    backend: str, asked: dict[str, Any], options: dict[str, Any]
) -> None:
    assert engine_options(asked, backend) == options
    msgspec.convert(options, KINDS[backend])


@pytest.mark.parametrize(
    ("backend", "asked"),
    [
        ("llamacpp", {"cache_mode": "Q6"}),
        ("llamacpp", {"cache_mode": "8,4,2"}),
        ("llamacpp", {"rope_alpha": 2.5}),
        ("llamacpp", {"autosplit_reserve": [1.0]}),
        ("llamacpp", {"tensor_parallel": True}),
        ("exllamav2", {"cache_mode": "8,4"}),
        ("exllamav2", {"tensor_parallel": True}),
        ("exllamav3", {"cache_mode": "Q9"}),
        ("exllamav3", {"draft_mode": "warp"}),
        ("exllamav2", {"draft_mode": "mtp"}),
        ("exllamav2", {"dynamic_draft": True}),
        ("exllamav2", {"sysmem_kv_cache": 64}),
        ("exllamav2", {"draft_rope_scale": 2.0}),
        ("llamacpp", {"draft_mode": "mtp"}),
        ("transformers", {"draft_cache_mode": "Q4"}),
        ("exllamav3", {"rope_alpha": 2.5}),
        ("transformers", {"cache_mode": "Q4"}),
        ("transformers", {"rope_scale": 2.0}),
        ("scripted", {"chunk_size": 512}),
    ],
)
def test_what_an_engine_lacks_is_named(backend: str, asked: dict[str, Any]) -> None:
    (name,) = asked
    with pytest.raises(InvalidRequest) as refused:
        engine_options(asked, backend)
    assert refused.value.param == name
    assert backend in refused.value.message or "modes" in refused.value.message


WISHES = {  # of each field a value that means something
    "max_seq_len": 4096,
    "cache_size": 8192,
    "cache_mode": "Q8",
    "max_batch_size": 3,
    "chunk_size": 512,
    "rope_scale": 2.0,
    "rope_alpha": 2.5,
    "gpu_split": [20.0, 4.0],
    "autosplit_reserve": [128.0],
    "tensor_parallel": True,
    "tensor_parallel_backend": "nccl",
    "cpu_moe_offload_layers": 9,
    "sysmem_kv_cache": 64,
    "sysmem_recurrent_cache": 64,
    "draft_mode": "ngram",
    "draft_num_tokens": 3,
    "draft_rope_scale": 2.0,
    "draft_rope_alpha": 2.5,
    "draft_cache_mode": "Q4",
    "draft_gpu_split": [1.0],
    "dynamic_draft": True,
    "ngram_match_min": 2,
}
# How the work is done, not what is loaded; a split itself says that it is not automatic.
WISH_FOR_NOTHING = {"gpu_split_auto", "output_chunking", "skip_queue", "fasttensors"}
APPLIED = {
    "llamacpp": 10,
    "exllamav2": 13,
    "exllamav3": 18,
    "transformers": 5,
}


def test_every_field_of_a_load_has_a_wish() -> None:
    assert {*WISHES} | WISH_FOR_NOTHING == tabby.LOAD_OPTIONS


@pytest.mark.parametrize("backend", KINDS)
def test_each_field_of_a_load_changes_the_engines_options_or_is_refused_by_name(
    backend: str,
) -> None:
    own, applied = BACKENDS[backend].files.LOAD_OPTIONS, set()
    for name, wish in WISHES.items():
        drafts = "draft" in name or name == "ngram_match_min"
        given = {name: wish}
        body = {"draft_model": {"draft_model_name": "small", **given}} if drafts else given
        asked = tabby.read_load(msgspec.json.encode({"model_name": "m", **body})).asked
        if name in own or name in ("max_seq_len", "max_batch_size"):
            options = engine_options(dict(asked), backend)
            assert msgspec.convert(options, KINDS[backend]) != KINDS[backend](), name
            applied.add(name)
        else:
            with pytest.raises(InvalidRequest) as refused:
                engine_options(dict(asked), backend)
            assert refused.value.param == name
    assert len(applied) == APPLIED[backend], applied


def test_what_runs_code_or_names_files_is_marked() -> None:
    assert {
        "trust_remote_code",
        "attn_implementation",
        "mmproj",
        "adapters",
        "ik",
    } <= CONFIGURED_ONLY


@pytest.mark.parametrize("backend", ENGINES)
def test_free_text_reaches_an_engine_from_the_configuration_alone(backend: str) -> None:
    """A new option of any text must be marked, or be named here for being harmless."""
    harmless = {"device"}  # torch's name of one
    for name, kind in shape.options(ENGINES[backend]).items():
        try:
            msgspec.convert("../any/text", kind)
        except msgspec.ValidationError:
            continue
        assert name in CONFIGURED_ONLY | harmless, f"{backend}: {name}"


@for_every("name", sorted(CONFIGURED_ONLY))
@for_every("backend", ENGINES)
@for_every("value", [True, False, "/etc/passwd", {"a": "/etc"}])
def test_an_option_that_runs_code_or_names_files_is_refused(
    value: object, backend: str, name: str
) -> None:
    with pytest.raises(InvalidRequest, match="only be set in the configuration") as refused:
        engine_options({name: value}, backend)
    assert refused.value.param == name
