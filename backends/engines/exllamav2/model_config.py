"""A folder's `config.json` as exllamav2 is to understand it, where version 0.3.2 by itself reads it
wrongly or not at all.

It was the last version, so what is newer than it, or wrong in it, is set right here.
"""

from collections.abc import Mapping
from copy import copy
from math import ceil, floor, log, pi
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.contract.errors import UnsupportedModel
from backends.engines import model_folder
from backends.engines.model_folder import Fields

if TYPE_CHECKING:  # it reads vocabularies; `files`, which needs none, imports this module
    from backends.engines.exllamav2.container import ExLlamaV2Library

# Normalize queries and keys by their root mean square. exllamav2 knows it of Gemma 3 alone and
# would take the mean off first, as Cohere does: the numbers are off by a third.
RMS_HEADS = frozenset({"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"})
# Normalize so what their image encoders give; exllamav2 takes it for Qwen2-VL's.
RMS_MERGERS = frozenset({"Qwen2_5_VLForConditionalGeneration"})
# Whose layers have exllamav2's own sliding windows.
WINDOWED = frozenset({"Gemma2ForCausalLM", "Gemma3ForConditionalGeneration", "Cohere2ForCausalLM"})


def read(library: "ExLlamaV2Library", folder: Path, positions: int) -> Any:
    """An `ExLlamaV2Config` for so many positions. Raises UnsupportedModel."""
    fields = model_folder.read_json(folder / "config.json")
    try:
        config = library.config(str(folder))
    except (AssertionError, TypeError, ValueError) as error:  # what it misses or can't understand
        kind = (fields.get("architectures") or ["?"])[0]
        raise UnsupportedModel(
            f"exllamav2 doesn't support {kind} in the variant of {folder.name}: {error}"
        ) from error
    if config.arch.arch_string != config.architecture:  # it would be run as a Llama
        raise UnsupportedModel(f"exllamav2 doesn't support the architecture {config.architecture}")
    config.arch_compat_overrides(quiet=True)
    if config.architecture in RMS_HEADS:
        config.arch.lm.headnorm = "rmsnorm"
    if config.architecture in RMS_MERGERS:
        config.arch.mmp.norm = "rmsnorm"
    text = model_folder.text_config(fields)
    _read_rope(config, text, folder)
    _read_windows(config, text)
    trained, config.max_seq_len = config.max_seq_len, positions
    if config.alt_rope_method == "su":
        _keep_long_rope(config, trained)
    elif config.alt_rope_method == "yarn":
        _stretch(config, {**text, **rope_of(text)}, folder)
    return config


def ignored_window(config: Fields) -> int | None:
    """How far a model's attention reaches back, where exllamav2 doesn't know that: beyond so many
    tokens it would see more than it was trained with.
    """
    text = model_folder.text_config(config)
    window = text.get("sliding_window")
    slides = text.get("use_sliding_window", True) and isinstance(window, int) and window > 0
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        slides = slides and "sliding_attention" in kinds
    if not slides or model_folder.of_class(config, WINDOWED):
        return None
    assert isinstance(window, int)
    return window


def _read_windows(config: Any, text: Fields) -> None:
    """Which layers' windows slide, as transformers 5 writes it: every n-th doesn't."""
    kinds = text.get("layer_types")
    if slides(config) and isinstance(kinds, list):
        full = [place for place, kind in enumerate(kinds) if kind == "full_attention"]
        config.sliding_window_pattern = (full[0] if full else len(kinds)) + 1


def slides(config: Any) -> bool:
    """Whether an `ExLlamaV2Config` has layers whose window slides."""
    return bool(config.arch.lm.alternating_swa or config.arch.lm.swa)


def drop_positions(model: Any) -> None:
    """Cohere 2 has positions in its sliding layers alone; exllamav2 puts them into all."""
    if model.config.architecture != "Cohere2ForCausalLM":
        return
    for module in model.modules:
        attention = getattr(module, "attn", None)
        if attention is not None and not attention.sliding_window:
            attention.archparams = copy(attention.archparams)
            attention.archparams.rope_style = type(attention.archparams.rope_style).NONE


def rope_of(text: Fields) -> Mapping[str, Any]:
    """How positions are scaled, as transformers 5 or those before it write it."""
    rope: Mapping[str, Any] = text.get("rope_parameters") or {}
    scaling: Mapping[str, Any] = text.get("rope_scaling") or rope.get("full_attention") or rope
    return scaling


SCALINGS = frozenset({"default", "mrope", "linear", "llama3", "yarn", "longrope", "su"})


def _read_rope(config: Any, text: Fields, folder: Path) -> None:
    """What transformers 5 writes as `rope_parameters`: exllamav2 would silently take its own
    defaults. Raises UnsupportedModel for a scaling that it doesn't have.
    """
    rope = text.get("rope_parameters") or {}
    rope = rope.get("full_attention") or rope  # by kind of layer
    scaling = rope_of(text)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in SCALINGS:
        raise UnsupportedModel(
            f"{folder.name} uses the rope scaling {kind!r}, which exllamav2 doesn't support"
        )
    if "rope_theta" in rope:
        config.rotary_embedding_base = float(rope["rope_theta"])
    if "partial_rotary_factor" in rope:
        config.partial_rotary_factor = float(rope["partial_rotary_factor"])
    if "mrope_section" in rope:
        config.mrope_section = rope["mrope_section"]
    if not text.get("rope_scaling"):
        _scale(config, kind, {**text, **rope})


def _scale(config: Any, kind: str, rope: Mapping[str, Any]) -> None:
    """As exllamav2 has it of files that those before transformers 5 wrote."""
    match kind:
        case "linear":
            config.scale_pos_emb = float(rope["factor"])
        case "yarn":
            config.alt_rope_method = "yarn"  # see `_stretch`
        case "llama3":
            config.alt_rope_method = "llama3"
            config.l3_rope_factor = rope["factor"]
            config.l3_rope_low_freq_factor = rope["low_freq_factor"]
            config.l3_rope_high_freq_factor = rope["high_freq_factor"]
            first = rope["original_max_position_embeddings"]
            config.l3_rope_original_max_position_embeddings = first
        case "longrope" | "su":
            config.alt_rope_method = "su"
            config.scale_long_factor = rope["long_factor"]
            config.scale_short_factor = rope["short_factor"]
            config.original_max_seq_len = rope["original_max_position_embeddings"]


def _keep_long_rope(config: Any, trained: int) -> None:
    """exllamav2 scales by the length that it is given, where the model was trained with that of its
    whole context: it is given the whole one, and the factors of the length that is used.
    """
    if config.max_seq_len <= config.original_max_seq_len:
        config.scale_long_factor = config.scale_short_factor
    config.max_seq_len = max(config.max_seq_len, trained)


def _stretch(config: Any, rope: Mapping[str, Any], folder: Path) -> None:
    """YaRN (arxiv.org/abs/2309.00071) as the model was trained with it. exllamav2's own goes by
    the length that is used, not by the one the model had first, and has the paper's numbers alone;
    so it gets YaRN as factors of its frequencies, which it knows of Phi 3. Raises UnsupportedModel.
    """
    factor, first = float(rope["factor"]), int(rope["original_max_position_embeddings"])
    stronger = _attention_factor(rope, factor)
    if stronger < 1:
        raise UnsupportedModel(
            f"{folder.name} has an attention_factor of {stronger}; exllamav2 supports none below 1"
        )
    width = int(config.head_dim * config.partial_rotary_factor)
    begins, ends = (
        width * log(first / (turns * 2 * pi)) / (2 * log(config.rotary_embedding_base))
        for turns in (rope.get("beta_fast") or 32, rope.get("beta_slow") or 1)
    )
    if rope.get("truncate", True):
        begins, ends = floor(begins), ceil(ends)
    begins, ends = max(begins, 0), min(ends, width - 1)
    ramps = (
        min(1.0, max(0.0, (place - begins) / (ends - begins or 0.001)))
        for place in range(width // 2)
    )
    config.alt_rope_method = "su"
    config.scale_long_factor = [1 / (ramp / factor + 1 - ramp) for ramp in ramps]
    config.scale_short_factor = config.scale_long_factor
    # It makes cosines stronger by the root of log(length) / log(first length).
    config.original_max_seq_len = config.max_seq_len ** (1 / stronger**2)


def _attention_factor(rope: Mapping[str, Any], factor: float) -> float:
    """By how much cosines and sines are stronger, as transformers has it."""
    if (given := rope.get("attention_factor")) is not None:
        return float(given)

    def scale(by: float) -> float:
        return 0.1 * by * log(factor) + 1 if factor > 1 else 1.0

    one, all_ = rope.get("mscale"), rope.get("mscale_all_dim")
    return scale(one) / scale(all_) if one and all_ else scale(1)
