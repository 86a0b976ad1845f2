"""A text completion body: prompts of texts or token ids, and the few fields that chat has not."""

from typing import Any

import pytest

from tests.gateway.dialects.openai.bodies import text, text_fault


@pytest.mark.parametrize(
    ("prompt", "meant"),
    [
        ("once", ("once",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["a", [3]], ("a", (3,))),
    ],
)
def test_a_prompt_means(prompt: object, meant: tuple[object, ...]) -> None:
    assert text(prompt=prompt).request.prompts == meant


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": 3}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [[1, "x"]]}, "prompt[0][1]"),
        ({"echo": "yes"}, "echo"),
        ({"echo": True, "suffix": "x", "logprobs": 0}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 11}, "temperature"),
    ],
)
def test_a_fault_names_its_field(fields: dict[str, Any], param: str) -> None:
    assert text_fault(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [
        ({}, None),
        ({"logprobs": 0}, 0),
        ({"logprobs": 5}, 5),
        ({"n_probs": 5}, 5),
        ({"n_probs": 0}, None),
        ({"logprobs": 2, "n_probs": 5}, 2),
    ],
)
def test_logprobs_mean(fields: dict[str, Any], alternatives: int | None) -> None:
    assert text(**fields).request.answering.logprobs == alternatives


def test_the_rest_is_read() -> None:
    exchange = text(suffix="end", echo=True, add_bos_token=False, stream=True, n=2, stop="x")
    assert exchange.request.suffix == "end"
    assert exchange.request.echo is True
    assert exchange.request.add_bos is False
    assert exchange.request.answering.n == 2
    assert exchange.request.answering.stop == ("x",)
    assert exchange.stream is True


def test_left_out_is_the_default() -> None:
    request = text(suffix="").request
    assert (request.suffix, request.echo, request.add_bos) == (None, False, None)
