"""What a projector's GGUF file says of its image encoder, for the tiny ones that tests write."""

import gguf


def describe(
    writer: gguf.GGUFWriter,
    kind: str,
    *,
    into: int,
    image: int,
    patch: int,
    width: int,
    inner: int,
    layers: int,
    heads: int = 2,
    epsilon: float = 1e-5,
    llava: bool = True,
) -> None:
    """`kind`: llama.cpp's projector type. `into`: width of the model's embeddings; `image` and
    `patch`: pixels of an edge. Keys follow llama.cpp's `tools/mtmd/clip-impl.h`.
    """
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(kind)
    if llava:
        writer.add_bool("clip.has_llava_projector", True)
        writer.add_vision_use_gelu(True)
    writer.add_vision_projection_dim(into)
    writer.add_vision_image_size(image)
    writer.add_vision_patch_size(patch)
    writer.add_vision_embedding_length(width)
    writer.add_vision_feed_forward_length(inner)
    writer.add_vision_block_count(layers)
    writer.add_vision_head_count(heads)
    writer.add_vision_attention_layernorm_eps(epsilon)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
