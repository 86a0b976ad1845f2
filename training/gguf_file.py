"""The parts of a GGUF file that every Llama-like model of ours shares: its shape, its vocabulary,
the names of its tensors. Tests write theirs with these, so this needs no torch.

Keys follow llama.cpp's `gguf-py/gguf/constants.py` (general.architecture "llama").
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy
from numpy.typing import NDArray
from tokenizers import Tokenizer

from training.tokenizer import END_OF_TEXT, LLAMA_CPP_PRE_TOKENIZER, TURN_END

if TYPE_CHECKING:
    from transformers import LlamaConfig

NAME = "roundhouse-tiny"
TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
SHARED_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
}
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def finish(writer: gguf.GGUFWriter) -> None:
    """Everything that was added, in the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_metadata(writer: gguf.GGUFWriter, config: "LlamaConfig") -> None:
    """Shape of the model."""
    writer.add_name(NAME)
    writer.add_description("Roundhouse's demonstration model")
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_float32("general.sampling.temp", 0.0)  # as the folder's generation_config.json


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Vocabulary, merges, kinds of tokens and the chat template."""
    description = json.loads(tokenizer.to_str())
    added = {token["id"]: token["special"] for token in description["added_tokens"]}
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    kinds = [token_kind(added.get(index)) for index in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(LLAMA_CPP_PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in description["model"]["merges"]])
    writer.add_eos_token_id(tokens.index(TURN_END))
    writer.add_pad_token_id(tokens.index(END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)


def token_kind(special: bool | None) -> gguf.TokenType:  # noqa: FBT001 - the tokenizer's own word
    """Added tokens are control tokens, hidden when text is made, where they are `special`; else
    markers, shown and always recognised. None: not added.
    """
    if special is None:
        return gguf.TokenType.NORMAL
    return gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    if name in SHARED_NAMES:
        return SHARED_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest]}"


def interleave_rotary(weight: NDArray[numpy.float16], heads: int) -> NDArray[numpy.float16]:
    """Reorders the rows of a query or key matrix from rotated halves to rotated pairs.

    transformers turns dimension i with i + d/2, llama.cpp's "llama" turns 2i with 2i + 1; see
    `LlamaModel.permute` in llama.cpp's convert_hf_to_gguf.py.
    """
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
