"""Command lines of llama-server as models: what each flag becomes, and what becomes of the rest."""

from typing import Any

import pytest

from config.check import convert
from config.engines import LlamaCppOptions
from config.errors import Source
from gateway.cli.importing.imported import NotAModel
from gateway.cli.importing.llama_server import EVERY_EXPERT, is_one, native


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("-c 8192", {"context_length": 8192, "cache_tokens": 8192}),
        ("-c 8192 -np 4", {"context_length": 2048, "cache_tokens": 8192, "max_concurrent": 4}),
        ("-c 8192 -np 4 -kvu", {"context_length": 8192, "cache_tokens": 8192, "max_concurrent": 4}),
        ("-c 0", {}),
        ("-ngl 99", {}),
        ("-ngl all", {}),
        ("-ngl 20", {"gpu_layers": 20}),
        ("--n-gpu-layers=0", {"gpu_layers": 0}),
        ("-fa", {"flash_attention": "on"}),
        ("-fa on", {"flash_attention": "on"}),
        ("--flash-attn off", {"flash_attention": "off"}),
        ("-fa auto", {"flash_attention": "auto"}),
        ("-ctk q8_0 -ctv q4_0", {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
        ("--no-mmap --mlock", {"mmap": False, "mlock": True}),
        ("-t 8 -tb 16", {"threads": 8, "threads_batch": 16}),
        ("-b 4096 -ub 1024", {"batch_size": 4096, "micro_batch_size": 1024}),
        ("-ts 3,1", {"tensor_split": [3.0, 1.0]}),
        ("-mg 1", {"main_gpu": 1}),
        ("-dev CUDA1", {"main_gpu": 1}),
        ("-dev none", {"gpu_layers": 0}),
        ("--n-cpu-moe 12", {"cpu_experts": 12}),
        ("--cpu-moe", {"cpu_experts": EVERY_EXPERT}),
        ("-ot exps=CPU", {"cpu_experts": EVERY_EXPERT}),
        ("-ot .ffn_.*_exps.=CPU", {"cpu_experts": EVERY_EXPERT}),
        ("--mmproj /p.gguf", {"mmproj": "/p.gguf"}),
        ("--no-mmproj", {"vision": False}),
        (
            "--rope-freq-base 1e6 --rope-freq-scale 0.5",
            {"rope_freq_base": 1e6, "rope_freq_scale": 0.5},
        ),
        ("-md /d.gguf --draft-max 64", {"draft": {"model": "/d.gguf", "tokens": 32}}),
        ("--spec-type ngram-simple", {"speculation": {"mode": "ngram"}}),
        ("--lora /a.v2.gguf", {"adapters": {"a_v2": "/a.v2.gguf"}}),
        (
            "--lora /a.gguf:0.5,/b.gguf",
            {"adapters": {"a": "/a.gguf", "b": "/b.gguf"}, "adapter_scaling": {"a": 0.5}},
        ),
        ("--embeddings --pooling mean", {"pooling": "mean"}),
    ],
)
def test_options(flags: str, found: dict[str, Any]) -> None:
    read = native(f"llama-server -m /m.gguf {flags} --port 9")
    assert read.notes == ()
    options = read.config.get("options", {})
    assert options == found
    convert(options, LlamaCppOptions, Source("them"), path="$")


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("--temp 0.6 --top-k 20", {"sampling": {"temperature": 0.6, "top_k": 20}}),
        (
            "--typical 0.9 --mirostat 2 --mirostat-ent 4 --dry-penalty-last-n 64 --min_p 0.1",
            {
                "sampling": {
                    "typical_p": 0.9,
                    "mirostat_mode": 2,
                    "mirostat_tau": 4.0,
                    "dry_range": 64,
                    "min_p": 0.1,
                }
            },
        ),
        ("--repeat-last-n -1 --jinja", {"sampling": {"penalty_range": -1}}),
        ("--chat-template-file /t.jinja", {"template": "/t.jinja"}),
        (
            """--chat-template-kwargs '{"enable_thinking": false}'""",
            {"template_kwargs": {"enable_thinking": False}},
        ),
        ("--reasoning-budget 0", {"template_kwargs": {"enable_thinking": False}}),
        ("--reasoning-budget -1 --reasoning-format deepseek -s 5 -n -1", {}),
        (
            "--metrics --slots -a other --api-key k --no-warmup -v --cache-ram 8192 -cb",
            {},
        ),
        ("--slot-save-path /s --threads-http 4 --host 0.0.0.0 -to 600 --no-context-shift", {}),
    ],
)
def test_what_else_a_model_has(flags: str, found: dict[str, Any]) -> None:
    read = native(f"llama-server --model /m.gguf {flags}")
    assert read.notes == ()
    assert read.config == {"path": "/m.gguf", **found}


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ("-hf owner/name:Q4_K_M", "hf:owner/name:Q4_K_M"),
        ("-hf owner/name", "hf:owner/name"),
        ("-hf owner/name -hff part-Q8.gguf", "hf:owner/name:part-Q8.gguf"),
    ],
)
def test_models_of_the_hub(flags: str, path: str) -> None:
    assert native(f"llama-server {flags}").config["path"] == path


@pytest.mark.parametrize(
    "flags",
    [
        "--override-kv a=int:1",
        "-ot blk.1=CUDA0",
        "-sm row",
        "--reasoning-format none",
        "--rope-scaling yarn",
        "-dev Vulkan0",
        "--new-flag",
        "--new-flag value",
        "-n 200",
    ],
)
def test_what_has_no_equal_is_named(flags: str) -> None:
    assert native(f"llama-server -m /m.gguf {flags} --jinja").notes == (f"{flags} has no equal",)


@pytest.mark.parametrize(
    "flags", ["", "-m /m.gguf -c x", "-m /m.gguf file", "-m /m.gguf -ts a,b", "-m /m.gguf -ngl few"]
)
def test_what_is_no_model(flags: str) -> None:
    with pytest.raises(NotAModel):
        native(f"llama-server {flags}")


def test_which_commands_are_llama_servers() -> None:
    assert is_one("/opt/bin/llama-server -m a")
    assert is_one(r'"C:\\llama\\llama-server.exe" -m a')
    assert not is_one("docker run llama-server")
    assert not is_one("vllm serve x")
    assert not is_one("llama-server 'no end")
