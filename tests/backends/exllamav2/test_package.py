"""exllamav2's own functions that run without its extension, taken from its source: what our
settings make of them.
"""

import __future__

import ast
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn.attention.bias import causal_lower_right

from backends.exllamav2.library import guessing_later
from tests.backends.exllama.signatures import class_of, source

HEADS, WIDTH = 2, 8


@pytest.fixture(scope="module")
def package() -> Path:
    return source("exllamav2", "0.3.2")


def run(node: ast.AST, names: dict[str, Any]) -> dict[str, Any]:
    """What the source defines, with `names` as its module's."""
    lazy = __future__.annotations.compiler_flag  # as exllamav2's modules begin
    exec(compile(ast.unparse(node), "exllamav2", "exec", flags=lazy), names)
    return names


def function_of(package: Path, module: str, owner: str, name: str, names: dict[str, Any]) -> Any:
    body = class_of(package, module, owner).body
    node = next(one for one in body if isinstance(one, ast.FunctionDef) and one.name == name)
    return run(node, names)[name]


# -- attention without flash-attn --------------------------------------------------------------


def attended(package: Path, queries: torch.Tensor, keys: torch.Tensor, *, no_sdpa: bool) -> Any:
    """`_attn_torch` over a cache of `keys`, of which the last are the queries' own."""
    attend = function_of(
        package,
        "attn.py",
        "ExLlamaV2Attention",
        "_attn_torch",
        {
            "torch": torch,
            "nn": torch.nn,
            "F": torch.nn.functional,
            "has_lower_right_sdpa": True,
            "causal_lower_right": causal_lower_right,
        },
    )
    moved = {"torch": torch, "safe_move_tensor": lambda tensor, device, **_: tensor.to(device)}
    parameters = run(class_of(package, "attn_params.py", "Params"), moved)
    count = queries.shape[1]
    asked = parameters["Params"](1, count, keys.shape[1] - count)
    layer = SimpleNamespace(
        layer_idx=0,
        sliding_window=0,
        num_key_value_groups=1,
        scaling=1 / math.sqrt(WIDTH),
        repeat_kv=lambda states, _groups: states,
    )
    config = SimpleNamespace(no_sdpa=no_sdpa, attn_logit_softcapping=None)
    return attend(layer, 1, count, queries, keys, keys, asked, config)


def causal(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The same, written down plainly: every query sees the keys up to its own."""
    count, size = queries.shape[1], keys.shape[1]
    q, k = queries.float().transpose(1, 2), keys.float().transpose(1, 2)
    hidden = torch.ones(count, size).tril(size - count) == 0
    scores = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH)).masked_fill(hidden, -math.inf)
    return (scores.softmax(-1) @ k).transpose(1, 2).reshape(1, count, HEADS * WIDTH)


@pytest.mark.parametrize(("count", "past"), [(6, 0), (6, 10), (1, 5), (1, 0)])
def test_attention_is_causal_without_sdpa(count: int, past: int, package: Path) -> None:
    rng = torch.Generator().manual_seed(count + past)
    keys = torch.randn(1, past + count, HEADS, WIDTH, generator=rng).half()
    queries = torch.randn(1, count, HEADS, WIDTH, generator=rng).half()
    found = attended(package, queries, keys, no_sdpa=True)
    assert torch.allclose(found.float(), causal(queries, keys), atol=5e-3)


def test_attention_is_not_causal_with_sdpa(package: Path) -> None:
    """Why `no_sdpa` is set; once this fails, exllamav2 has mended it."""
    rng = torch.Generator().manual_seed(1)
    states = torch.randn(1, 6, HEADS, WIDTH, generator=rng).half()
    found = attended(package, states, states, no_sdpa=False)
    assert not torch.allclose(found.float(), causal(states, states), atol=5e-2)


# -- n-gram speculation ------------------------------------------------------------------------


class Tokens:
    """A SeqTensor, as far as speculation reads it."""

    def __init__(self, *tokens: int) -> None:
        self._tokens = torch.tensor([tokens])

    def __len__(self) -> int:
        return int(self._tokens.shape[1])

    def torch(self) -> torch.Tensor:
        return self._tokens


def generator(package: Path, *sequences: Tokens, patched: bool) -> Any:
    """exllamav2's speculation over jobs with these sequences."""
    trie = run(class_of(package, "generator/dynamic.py", "NGramTrie"), {})
    guess = function_of(
        package,
        "generator/dynamic.py",
        "ExLlamaV2DynamicGenerator",
        "iterate_ngram_gen",
        {"torch": torch, "NGramTrie": trie["NGramTrie"]},
    )
    theirs = type("Theirs", (), {"iterate_ngram_gen": guess})
    made = (guessing_later(theirs) if patched else theirs)()
    made.max_ngram, made.num_draft_tokens = 4, 3
    made.active_jobs = [
        SimpleNamespace(
            is_prefill_done=lambda: True,
            sequences=[SimpleNamespace(sequence_ids=sequence)],
            ngrams=trie["NGramTrie"](),
            ngram_position=0,
        )
        for sequence in sequences
    ]
    return made


@pytest.mark.parametrize("length", [1, 2])
def test_a_short_prompt_ends_no_step_of_n_gram_speculation(length: int, package: Path) -> None:
    short, long = Tokens(*range(length)), Tokens(*range(8))
    with pytest.raises(IndexError):
        generator(package, short, long, patched=False).iterate_ngram_gen([])
    assert generator(package, short, long, patched=True).iterate_ngram_gen([]) is None


def test_longer_sequences_are_guessed_as_by_exllamav2(package: Path) -> None:
    tokens = Tokens(*[5, 6, 7, 8] * 4)
    theirs, ours = (generator(package, tokens, patched=patched) for patched in (False, True))
    assert torch.equal(ours.iterate_ngram_gen([]), theirs.iterate_ngram_gen([]))
