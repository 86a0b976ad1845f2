"""The stand-in's models, caches, tokenizer, adapters and vision tower: see `standin`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"
# ruff: noqa: ANN001, ANN003, ANN201, ANN206, ARG003, N801
# Their signatures are written down as they are: without types.

import json
from pathlib import Path
from typing import Any

import torch

from tests.backends.engines.exllama.machine import MARKERS
from tests.backends.engines.exllama.standin_models import Embedding, Loadable, Words, embedding


class InferParams:
    def __init__(self) -> None:
        self.moe_cpu_offload = self.moe_cpu_split = 0
        self.moe_cpu_threads: int | None = None


class Config:
    machine: Any  # standin.Machine

    @classmethod
    def from_directory(cls, directory: str, **kwargs) -> "Config":
        assert not cls.machine.unknown, f"Unknown architecture in {directory}"
        return cls(directory)

    def __init__(self, directory) -> None:
        self.directory = directory
        read = json.loads((Path(directory) / "config.json").read_text())
        self.architecture = read["architectures"][0]
        self.vocab_size = read.get("vocab_size", 768)
        self.image_token_id = read.get("image_token_id")
        self.longest: int | None = None
        self.infer_params = InferParams()

    def override_dynamic_seq_len(self, new_max_position_embeddings: int) -> None:
        self.longest = new_max_position_embeddings


class Model(Loadable):
    machine: Any  # standin.Machine

    def __init__(self, config) -> None:
        self.config = config
        self.said: dict[str, Any] = {}
        self.cache: Any = None
        self.warm = False
        self.mp_children: list[str] = []
        self.loaded_tp = False
        self.output_device = torch.device("cpu")

    @classmethod
    def from_config(cls, config, component: str = "text", **kwargs):
        kind: Any = {"text": Model, "vision": Qwen3VLVisionModel}[component]
        made = cls.machine.of(kind.__name__, kind)(config)
        made.component = component
        return made

    def load(
        self,
        device=None,
        tp_output_device=None,
        reserve_per_device=None,
        use_per_device=None,
        tensor_p: bool = False,
        progressbar: bool = False,
        max_chunk_size: int = 2048,
        max_output_size: int = 32,
        max_output_factor: int = 1,
        callback=None,
        generator: bool = True,
        tp_dev_limits=None,
        tp_backend: str = "native",
        verbose: bool = False,
        max_batch_size: int = 1,
        tp_options=None,
        autosplit_no_forward: bool = False,
        draft_model=None,
    ) -> None:
        assert reserve_per_device is None or use_per_device is None
        if self.cache is not None:  # modules/attn.py: "Cache too small for batch shape"
            assert max_chunk_size <= self.cache.max_num_tokens
        self.said = {
            "reserve_per_device": reserve_per_device,
            "use_per_device": use_per_device,
            "max_chunk_size": max_chunk_size,
            "draft_model": draft_model,
            "tp_backend": tp_backend,
            "tp_dev_limits": tp_dev_limits,
        }
        if tensor_p:
            self.mp_children = ["one", "two"]
            self.machine.loaded.append("processes")

        def next_module(done: int, total: int) -> None:
            """As model_ls.py: after the callback, the first module of a card sets its limit."""
            callback(done, total)
            self.machine.limited = self.machine.limited or done == 0
            self.machine.limits.append(self.machine.limited)

        self.begin_load(next_module)
        self.loaded_tp = tensor_p
        self.machine.limited = False
        if self.cache is not None:
            self.cache.initialized = True

    def warmup(
        self,
        cache=None,
        max_chunk_size: int = 2048,
        max_batch_size: int = 8,
        max_q_len: int = 16,
        long_context: bool = True,
        progressbar: bool = False,
        callback=None,
        verbose: bool = False,
    ) -> list[str]:
        callback(1, 2)
        callback(2, 2)
        self.warm = True
        return []

    def unload(self) -> None:
        self.end_load()
        if self.loaded_tp:
            self.destroy_tp_context()

    def destroy_tp_context(self) -> None:
        self.mp_children = []
        self.machine.loaded.remove("processes")


class CacheLayer_quant: ...


class Cache:
    machine: Any  # standin.Machine

    def __init__(
        self,
        model,
        max_num_tokens: int,
        layer_type=None,
        max_batch_size: int = 16,
        max_history: int = 0,
        recurrent_dtype=torch.half,
        **kwargs,
    ) -> None:
        assert not model.said, "a cache is there before the weights are"
        assert (layer_type is None) == (not kwargs)
        self.layer_type, self.bits = layer_type, (kwargs.get("k_bits"), kwargs.get("v_bits"))
        self.max_num_tokens, self.num_slots = max_num_tokens, max_batch_size
        self.max_history = max_history
        self.initialized = False
        model.cache = self


class Tokenizer(Words):
    config: Config
    actual_vocab_size: int

    @classmethod
    def from_config(cls, config):
        made = cls(config.directory)
        made.config = config
        made.actual_vocab_size = made.model.get_vocab_size()
        return made


class Linear:
    def __init__(self, lora: "LoRA") -> None:
        self.lora_a_tensors = {lora: torch.ones(2, 2)}
        self.lora_b_tensors = {lora: torch.ones(2, 2)}


class LoRA:
    machine: Any  # standin.Machine
    directory: str
    target_modules: dict[str, Any]

    @classmethod
    def from_directory(cls, model, directory: str, lora_scaling: float = 1.0):
        made = cls()
        made.directory = directory
        layer = Linear(made)
        made.target_modules = {"model.layers.0.q_proj": layer} if cls.machine.adapters_fit else {}
        model.modules_dict = {}
        cls.machine.loaded.append(f"lora {directory}")
        return made

    def unload(self) -> None:
        self.machine.loaded.remove(f"lora {self.directory}")


class MMEmbedding(Embedding):
    @property
    def token_list(self) -> list[int]:
        return self.ids


class Qwen3VLVisionModel(Model):
    def get_image_embeddings(self, tokenizer, image, text_alias=None):
        self.pictures = getattr(self, "pictures", 0) + 1
        start, _, end = (tokenizer.ids(text)[0] for text in MARKERS)
        made = embedding(self.pictures, image.width, start, end)
        return MMEmbedding(made.first, made.ids)
