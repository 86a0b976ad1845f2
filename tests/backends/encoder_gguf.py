"""BERT folders as GGUF files, as llama.cpp's converter writes them: an encoder with its pooling, or
a cross-encoder.

Keys and names follow `gguf-py` (architecture "bert"); needs no torch.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy
from numpy.typing import NDArray
from safetensors.numpy import load_file

MEAN, RANK = gguf.PoolingType.MEAN, gguf.PoolingType.RANK
HEAD = {  # of a cross-encoder: `convert_hf_to_gguf.py` on BertForSequenceClassification
    "pooler.dense.weight": "cls.weight",
    "pooler.dense.bias": "cls.bias",
    "classifier.weight": "cls.output.weight",
    "classifier.bias": "cls.output.bias",
}
UNUSED = ("position_ids",)
WIDE = ("position_embd.weight", "token_types.weight")  # llama.cpp adds them as they are


def write(folder: Path, path: Path, *, pooling: int = MEAN, half: bool = False) -> Path:
    """The model in `folder` as the file `path`. `half`: matrices at 16 bits."""
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    writer = gguf.GGUFWriter(path, "bert")
    _add_shape(writer, config, pooling)
    _add_tokenizer(writer, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in _tensors(tensors, config["num_hidden_layers"], rank=pooling == RANK):
        wide = tensor.ndim == 1 or name in WIDE or not half
        writer.add_tensor(name, tensor.astype(numpy.float32 if wide else numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_shape(writer: gguf.GGUFWriter, config: Mapping[str, Any], pooling: int) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    """llama.cpp spells the beginning of a word, not its continuation."""
    described = msgspec.json.decode((folder / "tokenizer.json").read_bytes())
    vocabulary = described["model"]["vocab"]
    spelled = sorted(vocabulary, key=vocabulary.__getitem__)
    control = {token["content"] for token in described["added_tokens"]}
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([one if one in control else _word_piece(one) for one in spelled])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if one in control else gguf.TokenType.NORMAL for one in spelled]
    )
    writer.add_token_type_count(2)
    writer.add_bos_token_id(vocabulary["[CLS]"])
    writer.add_sep_token_id(vocabulary["[SEP]"])
    writer.add_pad_token_id(vocabulary["[PAD]"])
    writer.add_unk_token_id(vocabulary["[UNK]"])
    writer.add_mask_token_id(vocabulary["[MASK]"])


def _word_piece(spelled: str) -> str:
    return spelled[2:] if spelled.startswith("##") else f"▁{spelled}"


def _tensors(
    tensors: Mapping[str, NDArray[Any]], layers: int, *, rank: bool
) -> Iterator[tuple[str, NDArray[Any]]]:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, layers)
    for name, tensor in tensors.items():
        bare = name.removeprefix("bert.")
        if bare in HEAD:
            if rank:
                yield HEAD[bare], tensor
            continue
        if bare.endswith(UNUSED):
            continue
        found = names.get_name(bare, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        yield found, tensor
