"""Models that make vectors or rank, through their plain forward: texts of alike lengths in one
padded pass, then the steps that their folders name (`encoder_steps`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer

from backends.contract.catalog import ModelFiles
from backends.contract.encoder import EncoderInput
from backends.contract.errors import LoadFailed
from backends.contract.protocol import MemoryNeed, ModelInfo, Reading, Vectors
from backends.engines import model_folder
from backends.engines.encoder_driver import Pass
from backends.engines.threads import StepThreads
from backends.engines.tokenizing import known_info
from backends.engines.transformers import encoder_steps, loading
from backends.engines.transformers.encoder_steps import Dense, EncoderSteps
from backends.engines.transformers.files import (
    MOST_ROWS,
    EncoderShape,
    encoder_buffers,
    encoder_shape,
)
from backends.engines.transformers.memory import give_back, in_our_words
from backends.engines.vocabulary import HfVocabulary
from config.engines import TransformersOptions

Around = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # before, between, behind texts


def load(
    files: ModelFiles, options: TransformersOptions, progress: Callable[[float], bool]
) -> "TransformersEncoder":
    """As `loading.load`."""
    with loading.failing_in_our_words(files, options) as device:
        config = transformers.AutoConfig.from_pretrained(
            files.path, trust_remote_code=options.trust_remote_code
        )
        steps = encoder_steps.steps(files.path, model_folder.read_json(files.path / "config.json"))
        if steps is None:
            raise LoadFailed(f"{files.path.name} has changed since it was listed")
        ranks = steps.task == "rank"
        kind = transformers.AutoModelForSequenceClassification if ranks else transformers.AutoModel
        model = loading.model_of(kind, files, options, config, device, progress)
        dense = [_layer(one, device) for one in steps.dense]
        size = encoder_shape(files, options, cpu=device.type == "cpu")
        rows = int(model.get_input_embeddings().weight.shape[0])
        vocabulary = loading.vocabulary_of(files, options, rows)
        threads = options.threads if device.type == "cpu" else "all"
        progress(1.0)
        return TransformersEncoder(
            model=model,
            dense=dense,
            steps=steps,
            vocabulary=vocabulary,
            info=msgspec.structs.replace(
                known_info(files, vocabulary, length=size.length, together=options.max_concurrent),
                vectors=_vectors(model, steps),
                task=steps.task,
                memory=_memory(model, dense, files, size),
                reading=_reading(vocabulary.tokenizer, steps),
                tokenizer_path=loading.tokenizer_path(files),
            ),
            most=Pass(rows=MOST_ROWS, tokens=size.tokens, pads=True),
            typed=getattr(config, "type_vocab_size", 0) > 1,
            padding=_padding(config, vocabulary),
            device=device,
            threads=StepThreads(threads, threads, torch.set_num_threads),
        )


def _padding(config: Any, vocabulary: HfVocabulary) -> int:
    """A decoder that ranks finds its last token by it."""
    if config.pad_token_id is None:
        named = vocabulary.id_of(vocabulary.special.pad or vocabulary.special.eos)
        config.pad_token_id = 0 if named is None else named
    return int(config.pad_token_id)


def _layer(dense: Dense, device: torch.device) -> torch.nn.Module:
    tensors = load_file(dense.folder / "model.safetensors")
    width = tensors["linear.weight"].shape[1]
    linear = torch.nn.Linear(width, dense.width, bias=dense.bias)
    linear.load_state_dict({name.removeprefix("linear."): one for name, one in tensors.items()})
    activation = getattr(torch.nn, dense.activation)()
    return torch.nn.Sequential(linear, activation).to(device=device, dtype=torch.float32).eval()


def _reading(tokenizer: Tokenizer, steps: EncoderSteps) -> Reading:
    before, _, after = _around(tokenizer, pair=False)
    return Reading(
        before=before, after=after, pair=_around(tokenizer, pair=True), lower=steps.lower
    )


def _vectors(model: Any, steps: EncoderSteps) -> Vectors | None:
    if steps.task != "embed":
        return None
    width = int(model.config.get_text_config().hidden_size) * len(steps.pooling)
    return Vectors(
        width=steps.dense[-1].width if steps.dense else width,
        normalized=steps.normalized,
        prompts=steps.prompts,
        prompt=steps.prompt,
    )


def _memory(
    model: Any, dense: Sequence[torch.nn.Module], files: ModelFiles, size: EncoderShape
) -> MemoryNeed:
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [tensor for layer in dense for tensor in layer.parameters()]
    return MemoryNeed(
        weights=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        cache=0,
        engine=encoder_buffers(files, size, model.dtype.itemsize),
    )


class TransformersEncoder(msgspec.Struct, eq=False):
    """See `backends.engines.encoder_driver.EncoderEngine`. Owns its model."""

    model: Any
    dense: Sequence[torch.nn.Module]
    steps: EncoderSteps
    vocabulary: HfVocabulary
    info: ModelInfo
    most: Pass
    typed: bool  # it takes which text of a pair a token is of (token types)
    padding: int  # the token that fills up rows
    device: torch.device
    threads: StepThreads

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        return self.vocabulary.tokenize(text, special=special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        text: str = self.vocabulary.tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def encode(self, inputs: Sequence[EncoderInput]) -> Sequence[bytes]:
        with in_our_words(), torch.inference_mode():
            lengths = [len(one.tokens) for one in inputs]
            self.threads.begin(len(inputs) * max(lengths))
            rows = self._score(inputs) if self.info.task == "rank" else self._vectors(inputs)
            found = rows.to(device="cpu", dtype=torch.float32).contiguous().numpy()
            self.threads.end()
            return [row.tobytes() for row in found]

    def _score(self, inputs: Sequence[EncoderInput]) -> torch.Tensor:
        scores = self.model(**self._padded(inputs)).logits
        activation: torch.Tensor = getattr(torch.nn, self.steps.activation)()(scores.float())
        return activation

    def _vectors(self, inputs: Sequence[EncoderInput]) -> torch.Tensor:
        padded = self._padded(inputs)
        states = self.model(**padded).last_hidden_state
        mask = padded["attention_mask"]
        vectors = torch.cat([pooled(states, mask, mode) for mode in self.steps.pooling], dim=-1)
        for layer in self.dense:
            vectors = layer(vectors)
        return torch.nn.functional.normalize(vectors, dim=-1) if self.steps.normalized else vectors

    def _padded(self, inputs: Sequence[EncoderInput]) -> dict[str, torch.Tensor]:
        longest = max(len(one.tokens) for one in inputs)
        fill = self.padding
        ids = [[*one.tokens, *[fill] * (longest - len(one.tokens))] for one in inputs]
        mask = [_ones(0, len(one.tokens), longest) for one in inputs]
        padded = {"input_ids": ids, "attention_mask": mask}
        if self.typed:
            padded["token_type_ids"] = [
                _ones(one.second, len(one.tokens) if one.second else 0, longest) for one in inputs
            ]
        device = self.device
        return {name: torch.tensor(rows, device=device) for name, rows in padded.items()}

    def recover(self) -> None:
        give_back(self.device)

    def close(self) -> None:
        """Harmless a second time."""
        self.model, self.dense = None, ()
        give_back(self.device)


def _ones(start: int, end: int, length: int) -> list[int]:
    return [0] * start + [1] * (end - start) + [0] * (length - max(start, end))


def _around(tokenizer: Tokenizer, *, pair: bool) -> Around:
    """The special tokens that stand around a text, or around and between two: found by how the
    tokenizer marks what it adds.
    """
    encoding = tokenizer.encode("a", "a") if pair else tokenizer.encode("a")
    parts: list[list[int]] = [[]]
    own = False
    for token, added in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
        if added:
            parts[-1].append(token)
        elif not own:
            parts.append([])
        own = not added
    before, *rest = (tuple(part) for part in parts)
    if not pair:
        return before, (), rest[-1]
    return before, rest[0], rest[-1]


def pooled(states: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    """One vector of each row's `states`, where `mask` is 1: as sentence-transformers' `Pooling`."""
    own = mask.unsqueeze(-1)
    match mode:
        case "cls":
            return states[:, 0]
        case "max":
            return states.masked_fill(own == 0, float("-inf")).max(dim=1).values
        case "lasttoken":
            return states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]
        case "weightedmean":
            own = own * torch.arange(1, mask.shape[1] + 1, device=mask.device).unsqueeze(-1)
    weights = own.to(torch.float32)
    whole = (states * weights).sum(dim=1)
    count = weights.sum(dim=1).clamp(min=1e-9)
    return whole / (count.sqrt() if mode == "mean_sqrt_len_tokens" else count)
