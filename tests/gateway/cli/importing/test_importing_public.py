"""Configurations as people publish them, in the same manner and with the same flags: nearly all
command lines of llama-server become models of this program, and what is written passes `check`.
"""

from pathlib import Path
from shutil import copy

import pytest
import yaml

import bundled
from gateway.cli import main
from gateway.cli.importing import llama_server, llama_swap, tabby
from gateway.cli.importing.imported import Data

# `MODELS` stands for a folder of files, which are stand-ins here.
EXAMPLE = """
healthCheckTimeout: 500
logLevel: info
sendLoadingState: true
macros:
  latest: >
    /opt/llama/llama-server-ec93 --port ${PORT}
  default_ctx: 4096
apiKeys: [sk-one]
upstream: {ignorePaths: ['.*[.]js$']}
models:
  oss-120b:
    macros: {default_ctx: 2048, temp: 0.7}
    cmd: |
      ${latest}
      --model MODELS/oss.gguf
      --ctx-size ${default_ctx}
      --temperature ${temp}
    name: OSS
    env: ["CUDA_VISIBLE_DEVICES=0,1,2"]
    ttl: 60
    filters:
      stripParams: temperature, top_p
      setParams: {temperature: 0.7, top_p: 0.9}
      setParamsByID:
        "${MODEL_ID}:high": {chat_template_kwargs: {reasoning_effort: high}}
        "${MODEL_ID}:low": {chat_template_kwargs: {reasoning_effort: low}}
    aliases: [mini]
    concurrencyLimit: 4
hooks: {on_startup: {preload: [oss-120b]}}
"""
CODER = """
healthCheckTimeout: 300
models:
  coder-32B:
    env: ["CUDA_VISIBLE_DEVICES=0"]
    aliases: [coder]
    proxy: "http://127.0.0.1:8999"
    cmd: >
      /path/llama-server --host 127.0.0.1 --port 8999 --flash-attn --slots
      --ctx-size 1600 --ctx-size-draft 1600
      --model MODELS/coder.gguf --model-draft MODELS/small.gguf -ngl 99 -ngld 99
      --draft-max 16 --draft-min 4 --draft-p-min 0.4 --cache-type-k q8_0 --cache-type-v q8_0
  thinker:
    proxy: "http://127.0.0.1:9503"
    cmd: >
      /path/llama-server --host 127.0.0.1 --port 9503 --flash-attn --metrics --slots
      --model MODELS/thinker.gguf --cache-type-k q8_0 --cache-type-v q8_0 --ctx-size 3200
      --samplers "top_k;top_p;min_p;temperature;dry;typ_p;xtc" --temp 0.6 --repeat-penalty 1.1
      --dry-multiplier 0.5 --min-p 0.01 --top-k 40 --top-p 0.95 -ngl 99 -ngld 99
"""
DRAFTS = """
models:
  coder-q4:
    cmd: >
      /mnt/llama-server/llama-server-be0e --host 127.0.0.1 --port 9503 --flash-attn --metrics
      --slots --model MODELS/coder.gguf -ngl 99 --ctx-size 1900 --model-draft MODELS/small.gguf
      -ngld 99 --draft-max 16 --draft-min 4 --draft-p-min 0.4 --device CUDA0 --device-draft CUDA1
    proxy: "http://127.0.0.1:9503"
"""
CARDS = """
models:
  small-q8:
    cmd: /home/me/llama.cpp/build/bin/llama-server --port ${PORT} --model MODELS/small.gguf -ngl 99
      -c 2048 --flash-attn on -np 1 -t 4 --mlock --direct-io --jinja --no-context-shift --temp 0.8
      --top-k 40 --top-p 0.95 --min-p 0.05 --repeat-penalty 1.0
    ttl: 1800
  large-q4:
    cmd: /home/me/llama.cpp/build/bin/llama-server --port ${PORT} --model MODELS/large.gguf -ngl 99
      -c 2048 -sm layer --tensor-split 2,2,1,1,1 -fit off -b 512 -ub 512 -ctk q8_0 -ctv q8_0
      --flash-attn on -np 1 -t 4 --mlock --direct-io --jinja
"""
GROUPS = """
healthCheckTimeout: 3600
startPort: 9000
groups:
  on-demand: {swap: true, exclusive: false, members: [chat, vision]}
  always-on: {swap: false, exclusive: false, persistent: true, members: [vectors]}
models:
  chat:
    cmd: >
      /app/llama-server --port ${PORT} -m MODELS/chat.gguf -ngl 99 --ctx-size 819 --jinja
      --flash-attn on --cache-type-k q8_0 --cache-type-v q8_0
  vision:
    cmd: /app/llama-server --port ${PORT} -m MODELS/vision.gguf --split-mode none --main-gpu 0
  vectors:
    cmd: /app/llama-server --port ${PORT} -m MODELS/vectors.gguf -ngl 99 --embeddings -b 1024
"""
RETRIEVAL = """
healthCheckTimeout: 300
logLevel: info
models:
  embed-8b:
    cmd: /home/me/rocm/llama-server --port ${PORT} -m MODELS/embed.gguf -c 819 -ngl 99 --embedding
    ttl: 3600
    healthCheckTimeout: 120
    aliases: [embedding]
  nano-30b:
    cmd: /opt/rocm/llama-server --port ${PORT} -m MODELS/nano.gguf -c 1310 -ngl 999 --parallel 1 -fa
    ttl: 3600
    aliases: [nano, default-model]
  speech:
    checkEndpoint: /v1/audio/transcriptions/
    cmd: whisper-server --port ${PORT} -m MODELS/speech.bin
groups: {rag: {members: [embed-8b], swap: false}}
"""
TABBY = """
network: {host: 127.0.0.1, port: 5000, disable_auth: false, api_servers: [OAI]}
model:
  {model_dir: models, inline_model_loading: false, use_dummy_models: false, model_name: mine.gguf,
   use_as_default: [], max_seq_len: 2048, cache_size: 4096, cache_mode: FP16,
   tensor_parallel: false, tensor_parallel_backend: native, gpu_split_auto: true,
   autosplit_reserve: [96], gpu_split: [],
   cpu_moe_offload_layers: , rope_scale: 1.0, rope_alpha: , chunk_size: 2048, output_chunking: true,
   max_batch_size: , prompt_template: , vision: false, template_vars_default: {},
   template_vars_force: {}, reasoning: false, reasoning_budget_tokens: , tool_format: }
draft_model:
  {draft_mode: model, draft_model_dir: models, draft_model_name: , draft_rope_scale: 1.0,
   draft_rope_alpha: , draft_cache_mode: FP16, draft_gpu_split: [], dynamic_draft: ,
   ngram_match_min: 2}
sampling: {override_preset: safe_defaults}
lora: {lora_dir: loras, loras: }
embeddings: {embedding_model_dir: models, embeddings_device: cpu, embedding_model_name: }
memory: {sysmem_recurrent_cache: 4096, sysmem_kv_cache: 0, cuda_malloc_async: true}
developer: {unsafe_launch: false}
"""
PUBLIC = [EXAMPLE, CODER, DRAFTS, CARDS, GROUPS, RETRIEVAL]


def stand_ins(folder: Path, text: str) -> str:
    models = folder / "models"
    models.mkdir(exist_ok=True)
    for word in text.replace("'", " ").split():
        if word.startswith("MODELS/"):
            (models / word.removeprefix("MODELS/")).symlink_to(bundled.GGUF)
    return text.replace("MODELS", str(models))


def lines(text: str) -> list[str]:
    """The command lines of llama-server in it, with the macro that names it."""
    found: Data = yaml.safe_load(text)
    commands = [model["cmd"] for model in found["models"].values()]
    for macro, value in {"latest": "llama-server", "default_ctx": "2048", "temp": "0.7"}.items():
        commands = [command.replace(f"${{{macro}}}", value) for command in commands]
    return [command for command in commands if llama_server.is_one(command)]


@pytest.mark.parametrize("text", PUBLIC)
def test_what_people_publish_is_served_here(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file, output = tmp_path / "llama-swap.yaml", tmp_path / "roundhouse.yaml"
    file.write_text(stand_ins(tmp_path, text))
    native = [one for one in llama_swap.imported(file).config["models"] if "path" in one]
    assert sum("command" not in one for one in native) == len(lines(text))
    assert main(["import", "llama-swap", str(file), "--output", str(output)]) == 0
    written = yaml.safe_load(output.read_text())
    written["models"] = [one for one in written["models"] if "command" not in one]  # not here
    output.write_text(yaml.safe_dump(written))
    assert main(["check", "--config", str(output)]) == 0


def test_nine_of_ten_flags_have_an_equal() -> None:
    flags, lacking = 0, list[str]()
    for text in PUBLIC:
        for line in lines(text):
            flags += sum(word.startswith("-") for word in line.split())
            lacking += llama_server.native(line).notes
    assert len(lacking) <= flags // 10, lacking


def test_tabbyapis_sample_is_served_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    copy(bundled.GGUF, tmp_path / "models" / "mine.gguf")
    (tmp_path / "config.yml").write_text(TABBY)
    output = tmp_path / "roundhouse.yaml"
    assert main(["import", "tabbyapi", str(tmp_path), "--output", str(output)]) == 0
    assert main(["check", "--config", str(output)]) == 0
    notes = tabby.imported(tmp_path).notes
    settings = sum(len(section) for section in yaml.safe_load(TABBY).values())
    assert len(notes) <= settings // 10, notes
