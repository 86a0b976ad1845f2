"""The stand-in's models, caches, tokenizer, adapters and vision tower: see `standin`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: ANN001, ANN201, ANN205, ARG004, N801
# Their signatures are written down as they are: without types.

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.backends.exllama.machine import MARKERS
from tests.backends.exllama.standin_models import Embedding, Loadable, Words, embedding


class ExLlamaV2Config:
    machine: Any  # standin.Machine

    def __init__(self, model_dir: str | None = None) -> None:
        assert model_dir is not None
        self.model_dir = model_dir
        read = json.loads((Path(model_dir) / "config.json").read_text())
        self.architecture = read["architectures"][0]
        self.arch = SimpleNamespace(
            arch_string=self.machine.arch_string or self.architecture,
            lm=SimpleNamespace(mrope=False),
        )
        self.vocab_size = read.get("vocab_size", 768)
        self.hidden_size = read.get("hidden_size", 8)
        self.vision_model_type = (read.get("vision_config") or {}).get("model_type")
        self.vision_max_size = 1000
        self.rotary_embedding_base = read.get("rope_theta", 10000.0)
        self.max_seq_len, self.max_input_len, self.max_attention_size = 2048, 2048, 2048**2
        self.max_batch_size = 1
        self.scale_pos_emb = self.scale_alpha_value = 1.0
        self.num_attention_heads = read.get("num_attention_heads", 4)
        self.no_flash_attn = self.no_sdpa = self.no_graphs = False

        self.attn_logit_softcapping = read.get("attn_logit_softcapping")

    def arch_compat_overrides(self, quiet: bool = False, warn_only=False) -> None:
        """As where the installed flash-attn can't cap logits."""
        self.no_flash_attn = bool(self.attn_logit_softcapping)


class ExLlamaV2(Loadable):
    def __init__(self, config, lazy_load=False, archparams=None) -> None:
        self.config = config
        self.said: dict[str, Any] = {}

    def load(
        self,
        gpu_split=None,
        lazy=False,
        stats=False,
        callback=None,
        callback_gen=None,
        progress=False,
    ) -> None:
        self.said = {"gpu_split": gpu_split}
        self.begin_load(callback)

    def load_autosplit(
        self,
        cache,
        reserve_vram=None,
        last_id_only=False,
        callback=None,
        callback_gen=None,
        progress=False,
    ) -> None:
        assert cache.lazy
        assert len(reserve_vram) == 2, "as many as there are devices"
        self.said = {"reserve_vram": reserve_vram}
        self.begin_load(callback)

    def unload(self) -> None:
        self.end_load()


class ExLlamaV2Cache:
    machine: Any  # standin.Machine

    def __init__(
        self,
        model,
        batch_size=1,
        max_seq_len=-1,
        copy_from=None,
        lazy=False,
        num_key_value_heads=None,
        fixed_device=None,
    ) -> None:
        self.model, self.batch_size, self.max_seq_len, self.lazy = (
            model,
            batch_size,
            max_seq_len,
            lazy,
        )


class ExLlamaV2Cache_Q8(ExLlamaV2Cache): ...


class ExLlamaV2Cache_Q6(ExLlamaV2Cache): ...


class ExLlamaV2Cache_Q4(ExLlamaV2Cache): ...


class ExLlamaV2Tokenizer(Words):
    def __init__(self, config, lazy_init=True, force_json=False, force_spm=False) -> None:
        super().__init__(config.model_dir)
        self.config = config


class ExLlamaV2Lora:
    machine: Any  # standin.Machine

    @staticmethod
    def from_directory(model, directory, lora_scaling=1.0):
        lora = ExLlamaV2Lora()
        lora.machine = model.machine
        model.machine.loaded.append(f"lora {directory}")
        lora.directory = directory  # type: ignore[attr-defined]
        return lora

    def unload(self) -> None:
        self.machine.loaded.remove(f"lora {self.directory}")  # type: ignore[attr-defined]


class MMEmbedding(Embedding):
    def get_ids(self) -> list[int]:
        return self.ids


class ExLlamaV2VisionTower(Loadable):
    def __init__(self, config) -> None:
        self.config = config
        self.pictures: list[Any] = []

    def load(
        self,
        gpu_split=None,
        lazy=False,
        stats=False,
        callback=None,
        callback_gen=None,
        progress=False,
    ) -> None:
        self.begin_load(callback)

    def unload(self) -> None:
        self.end_load()

    def get_image_embeddings(self, model, tokenizer, image, text_alias=None, embeddings_cpu=True):
        self.pictures.append(image)
        start, _, end = (tokenizer.ids(text)[0] for text in MARKERS)
        made = embedding(len(self.pictures), image.width, start, end)
        return MMEmbedding(made.first, made.ids)
