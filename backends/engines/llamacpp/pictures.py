"""Pictures in a prompt, through llama.cpp's multimodal library (mtmd) and a model's projector.

A prompt holds `MARKER` where a picture stands. A picture becomes cells of the KV cache: the
embeddings its image encoder computes, and the tokens the model takes around them. Until they are
computed they stand in a sequence as numbers no token has, the same ones for the same picture, so
that a conversation's next turn finds it in the cache.
"""

import ctypes
import secrets
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from importlib import import_module
from itertools import accumulate
from typing import Any

import msgspec

from backends.contract.errors import GenerationFailed, InvalidJob
from backends.contract.protocol import Generation, Image
from backends.engines.llamacpp.batch import ImageCells
from backends.engines.llamacpp.library import Context, api
from backends.engines.llamacpp.vocabulary import LlamaVocabulary

mtmd: Any = import_module("llama_cpp.mtmd_cpp")  # behind `library`, which knows where it lies

# Random in each process: no text that a client sends can be taken for a picture's place.
MARKER = f"<|image {secrets.token_hex(4)}|>"


class Chunk:
    """A copy of an mtmd_input_chunk, freed with this. C functions take it as its pointer."""

    def __init__(self, chunk: int) -> None:
        self._as_parameter_ = mtmd.mtmd_input_chunk_copy(chunk)
        # Not at the process's end as well: the encoder may be at work on it then.
        weakref.finalize(self, mtmd.mtmd_input_chunk_free, self._as_parameter_).atexit = False


class CellsWithImages(msgspec.Struct):
    """A prompt with its pictures: one number for each cell, below 0 for what isn't a token."""

    cells: list[int]
    pictures: list[ImageCells] = []

    def add(self, chunk: int, number: int) -> None:
        """`number` stands for the chunk's cells, unless it is text."""
        size = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            count = ctypes.c_size_t()
            tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
            self.cells += tokens[: count.value]
            return
        start, end = len(self.cells), len(self.cells) + size
        positions = mtmd.mtmd_input_chunk_get_n_pos(chunk)
        self.pictures.append(ImageCells(start, end, positions, Chunk(chunk)))
        self.cells += [number] * size


class MtmdEncoder(msgspec.Struct, frozen=True, eq=False):
    """Owns the projector `pointer` (mtmd_context). Only the engine's thread calls it.

    `marker` is the text a prompt has in a picture's place. `at_once`: cells the engine computes in
    one pass over the graph; `batch_size`: in one call.
    """

    _pointer: int
    _vocabulary: LlamaVocabulary
    at_once: int
    batch_size: int
    marker: str = MARKER

    def free(self) -> None:
        mtmd.mtmd_free(self._pointer)

    def prepare(self, job: Generation) -> CellsWithImages:
        """Raises InvalidJob when there are not as many places as pictures."""
        texts = list(_between_markers(job.prompt, self._vocabulary))
        if len(texts) != len(job.images) + 1:
            raise InvalidJob(
                f"the prompt has places for {len(texts) - 1} images, {len(job.images)} were sent",
                "messages",
            )
        seen = CellsWithImages(list(texts[0]))
        for image, text in zip(job.images, texts[1:], strict=True):
            self._append(image, seen)
            seen.cells += text
        self._check(seen)
        return seen

    def _append(self, image: Image, seen: CellsWithImages) -> None:
        """Append the picture's cells, cut into pieces as the model takes them."""
        digest = blake2b(b"%d %d " % (image.width, image.height), digest_size=6)
        digest.update(image.rgb)
        number = int.from_bytes(digest.digest())
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            self._cut(image, chunks)
            for index in range(mtmd.mtmd_input_chunks_size(chunks)):
                chunk = mtmd.mtmd_input_chunks_get(chunks, index)
                seen.add(chunk, -(number << 8 | min(index, 255)) - 1)
        finally:
            mtmd.mtmd_input_chunks_free(chunks)

    def _cut(self, image: Image, chunks: int) -> None:
        pixels = (ctypes.c_uint8 * len(image.rgb)).from_buffer_copy(image.rgb)
        bitmap = mtmd.mtmd_bitmap_init(image.width, image.height, pixels)
        place = mtmd.mtmd_default_marker()
        text = mtmd.mtmd_input_text(
            text=place, text_len=len(place), add_special=False, parse_special=True
        )
        try:
            failed = mtmd.mtmd_tokenize(
                self._pointer, chunks, ctypes.byref(text), (ctypes.c_void_p * 1)(bitmap), 1
            )
        finally:
            mtmd.mtmd_bitmap_free(bitmap)
        if failed:
            raise InvalidJob("an image can't be prepared for this model", "messages")

    def _check(self, seen: CellsWithImages) -> None:
        for picture in seen.pictures:
            size = picture.end - picture.start
            together = mtmd.mtmd_decode_use_non_causal(self._pointer, picture.chunk)
            if together and size > self.at_once:  # llama.cpp would end the process
                raise InvalidJob(
                    f"an image takes {size} tokens, which this model reads at once, and only "
                    f"{self.at_once} fit; raise the model's micro_batch_size",
                    "messages",
                )
        if seen.pictures and seen.pictures[-1].end == len(seen.cells):
            raise InvalidJob("a prompt can't end with an image", "messages")

    def encode(self, picture: ImageCells) -> None:
        """Run the image encoder; `decode` takes its embeddings. It may run in another thread,
        beside the engine's. Raises GenerationFailed.
        """
        if code := mtmd.mtmd_encode_chunk(self._pointer, picture.chunk):
            raise GenerationFailed(f"an image could not be encoded (code {code})")

    def decode(self, context: Context, picture: ImageCells, position: int, sequence: int) -> int:
        """Put the embeddings last encoded into the KV cache; returns llama_decode's code."""
        behind = api.llama_pos()
        code: int = mtmd.mtmd_helper_decode_image_chunk(
            self._pointer,
            context,
            picture.chunk,
            mtmd.mtmd_get_output_embd(self._pointer),
            position,
            sequence,
            self.batch_size,
            ctypes.byref(behind),
            mtmd.mtmd_helper_post_decode_callback(),
            None,
        )
        return code


def _between_markers(prompt: Sequence[int], vocabulary: LlamaVocabulary) -> Iterator[list[int]]:
    """The tokens before, between and behind the markers in the prompt's text. Linear.

    A tokenizer may have joined a marker's ends with its neighbours; what is left of such a token is
    tokenized anew.
    """
    marker, pieces = MARKER.encode(), [vocabulary.piece(token) for token in prompt]
    text = b"".join(pieces)
    begins = [0, *accumulate(map(len, pieces))]
    next_token, done = 0, 0  # tokens from `next_token` on are whole; text up to `done` is taken
    while (at := text.find(marker, done)) >= 0:
        end = at + len(marker)
        # The first token that reaches into the marker, and the first behind it.
        first = max(next_token, bisect_right(begins, at) - 1)
        behind = bisect_left(begins, end)
        start = begins[next_token]
        yield [
            *_tokens(text[done : min(start, at)], vocabulary),
            *prompt[next_token:first],
            *_tokens(text[max(done, begins[first]) : at], vocabulary),
        ]
        next_token, done = behind, end
    yield [*_tokens(text[done : begins[next_token]], vocabulary), *prompt[next_token:]]


def _tokens(text: bytes, vocabulary: LlamaVocabulary) -> Sequence[int]:
    return vocabulary.tokenize(text.decode(errors="replace"), special=False) if text else ()
