"""What exllamav3 1.6.5 makes of a folder's `config.json`, as far as memory and drafts depend on it
(its `architecture/`). Imports no engine.
"""

import msgspec

from backends.catalog import ModelFiles
from backends.huggingface import model_folder
from backends.huggingface.model_folder import Fields, number

# Classes whose vision tower it has, of those whose chat templates write one known token for a
# picture.
SEES = frozenset(
    {
        "Gemma3ForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "Lfm2VlForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
# Whose sliding windows are rings of each sequence's own, and take no pages of the cache.
RINGS = frozenset(
    {
        "AfmoeForCausalLM",
        "DFlash2DraftModel",
        "DFlashDraftModel",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "GptOssForCausalLM",
        "LagunaForCausalLM",
        "MiMoV2ForCausalLM",
        "MuseGlimmerAssistantModel",
        "MuseGlimmerForConditionalGeneration",
        "Spark2_5ForCausalLM",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
    }
)
# Whose recurrent layers keep a state of each sequence.
STATES = frozenset(
    {
        "BailingMoeV3ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Glm5NextForConditionalGeneration",
        "KimiLinearForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Lfm2VlForConditionalGeneration",
        "NemotronHForCausalLM",
        "NemotronH_Omni_Reasoning_V3",
        "OlmoHybridForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
    }
)
# Draft models that read another model's inner states, and are none by themselves.
DRAFTERS = frozenset(
    {
        "DFlash2DraftModel",
        "DFlashDraftModel",
        "DFlashLagunaForCausalLM",
        "Gemma4AssistantForCausalLM",
        "MuseGlimmerAssistantModel",
    }
)
# Classes with heads for several tokens ahead, and how many tokens exllamav3 drafts with them.
HEADS = {
    "BailingMoeV3ForCausalLM": 1,
    "DeepseekV4ForCausalLM": 4,
    "Glm4MoeLiteForCausalLM": 2,
    "Glm5NextForConditionalGeneration": 3,
    "GlmMoeDsaForCausalLM": 2,
    "HYV3ForCausalLM": 2,
    "MiMoV2ForCausalLM": 1,
    "NemotronHForCausalLM": 2,
    "NemotronH_Omni_Reasoning_V3": 2,
    "Qwen3_5ForConditionalGeneration": 4,
    "Qwen3_5MoeForConditionalGeneration": 4,
    "Qwen4ExpForConditionalGeneration": 4,
}
COUNTS_OF_HEADS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers")
ATTENDS = ("full_attention", "attention", "sliding_attention", "chunked_attention")
DRAFTED = 4  # tokens, where nothing says another number
PAGE = 256  # tokens
RING_SPARE = 2 * PAGE  # tokens that a ring holds beyond its window (modules/sliding_attn.py)
ROWS = 2  # of a recurrent state for each sequence (modules/gated_delta_net.py, GDNLayerState)


def with_states(files: ModelFiles, config: Fields) -> ModelFiles:
    """`files` with what each sequence keeps besides its pages of the cache."""
    text = model_folder.text_config(config)
    if model_folder.of_class(config, RINGS):
        sliding = _share_that_slides(text)
        return msgspec.structs.replace(
            files,
            window=number(text, "sliding_window"),
            sliding_bytes_per_token=int(files.cache_bytes_per_token * sliding),
        )
    if model_folder.of_class(config, STATES):
        return msgspec.structs.replace(
            files, state_bytes=state_bytes(text), recurrent_layers=_recurrent_layers(text)
        )
    return msgspec.structs.replace(files, state_bytes=0, recurrent_layers=0)


def bytes_of_sequence(files: ModelFiles) -> int:
    """What one sequence keeps besides its pages, on cards; 0: nothing."""
    ring = -(-(files.window + RING_SPARE) // PAGE) * PAGE if files.sliding_bytes_per_token else 0
    return files.state_bytes * files.recurrent_layers + ring * files.sliding_bytes_per_token


def _share_that_slides(text: Fields) -> float:
    kinds = text.get("layer_types")
    if not isinstance(kinds, list) or not kinds or not number(text, "sliding_window"):
        return 0.0
    return kinds.count("sliding_attention") / len(kinds)


def _recurrent_layers(text: Fields) -> int:
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return sum(kind not in ATTENDS for kind in kinds)
    if isinstance(pattern := text.get("hybrid_override_pattern"), str):  # Nemotron H's
        return pattern.count("M")
    return number(text, "num_hidden_layers")


def state_bytes(text: Fields) -> int:
    """Of one sequence in one recurrent layer: its rows of the state at 16 bits (Mamba's at 32), and
    what its convolution has seen.
    """
    if heads := number(text, "linear_num_value_heads"):
        key, value = number(text, "linear_key_head_dim"), number(text, "linear_value_head_dim")
        seen = 2 * number(text, "linear_num_key_heads") * key + heads * value
        return ROWS * heads * key * value * 2 + seen * _kernel(text) * 2
    if heads := number(text, "mamba_num_heads"):
        width, state = number(text, "mamba_head_dim"), number(text, "ssm_state_size")
        seen = heads * width + 2 * number(text, "n_groups") * state
        return ROWS * heads * width * state * 4 + seen * _kernel(text) * 2
    return number(text, "hidden_size") * _kernel(text) * 2


def _kernel(text: Fields) -> int:
    names = ("linear_conv_kernel_dim", "conv_kernel", "conv_L_cache")
    return next((found for name in names if (found := number(text, name))), 4)


# -- drafts ----------------------------------------------------------------------------------------


def drafted_by(config: Fields) -> int:
    """How many tokens this draft model drafts at a time: one less than its block."""
    own = config.get("dflash_config")
    block = number(config, "block_size") or number(
        own if isinstance(own, dict) else {}, "block_size"
    )
    return max(1, block - 1) if block else DRAFTED


def heads_of(config: Fields) -> int:
    """How many heads for tokens ahead the model has; 0: none that exllamav3 can use."""
    if not model_folder.of_class(config, HEADS):
        return 0
    text = model_folder.text_config(config)
    return next((found for name in COUNTS_OF_HEADS if (found := number(text, name))), 0)


def cache_bytes_of_heads(config: Fields) -> int:
    """Their keys and values of one token, at 16 bits: each has a layer that attends to all."""
    text = model_folder.text_config(config)
    return model_folder.cache_bytes(
        {**text, "layer_types": None, "num_hidden_layers": heads_of(config)}
    )


def drafted_with_heads(config: Fields) -> int:
    """How many tokens are drafted with them."""
    names = config.get("architectures") or ()
    return max((HEADS[name] for name in names if name in HEADS), default=DRAFTED)
