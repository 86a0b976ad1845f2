"""TabbyAPI's bodies, in their new form and their old."""

from typing import Any

import msgspec
import pytest

from gateway.dialects.tabby.request import LoadRequest, UnloadRequest, read, read_load
from gateway.errors import InvalidRequest


def loaded(**body: Any) -> LoadRequest:
    return read_load(msgspec.json.encode(body))


def test_old_names_mean_the_new_ones() -> None:
    old = loaded(name="a", draft={"draft_model_name": "b"}, cache_size=512)
    new = loaded(model_name="a", draft_model={"draft_model_name": "b"}, cache_size=512)
    assert old == new == LoadRequest(model="a", draft="b", asked={"cache_size": 512})


def test_nulls_and_an_empty_draft_wish_for_nothing() -> None:
    body = {"model_name": "a", "max_seq_len": None, "draft_model": {"draft_model_name": None}}
    assert loaded(**body) == LoadRequest(model="a")


def test_what_a_draft_is_to_be_like_is_asked_of_the_engine() -> None:
    draft = {"draft_model_name": "b", "draft_num_tokens": 3.0, "draft_cache_mode": "Q4"}
    order = loaded(model_name="a", draft_model=draft, cache_size=512)
    assert order.draft == "b"
    asked = {"cache_size": 512, "draft_num_tokens": 3, "draft_cache_mode": "Q4"}
    assert order.asked == asked
    for mode in ("mtp", "ngram", "disabled"):  # without a model
        order = loaded(model_name="a", draft_model={**draft, "draft_mode": mode})
        assert order.draft is None
        assert order.asked["draft_mode"] == mode
    assert loaded(model_name="a", draft_model={"draft_num_tokens": 3}) == LoadRequest(model="a")


def test_names_nobody_knows_are_kept_for_the_engine() -> None:
    assert loaded(model_name="a", gpu_layers=3).asked == {"gpu_layers": 3}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "model_name"),
        ({"name": 3}, "name"),
        ({"model_name": ""}, "model_name"),
        ({"model_name": "a", "max_seq_len": -2}, "max_seq_len"),
        ({"model_name": "a", "rope_scale": 0}, "rope_scale"),
        ({"model_name": "a", "gpu_split": "20,24"}, "gpu_split"),
        (
            {"model_name": "a", "draft": {"draft_model_name": "b", "draft_num_tokens": 0}},
            "draft.draft_num_tokens",
        ),
        (
            {"model_name": "a", "draft_model": {"draft_model_name": "b", "draft_warp": 2}},
            "draft_model.draft_warp",
        ),
        (
            {"model_name": "a", "draft_model": {"draft_mode": 2}},
            "draft_model.draft_mode",
        ),
        ({"model_name": "a", "draft": {"draft_model_name": 7}}, "draft.draft_model_name"),
    ],
)
def test_what_is_wrong_is_named_as_the_client_wrote_it(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        loaded(**body)
    assert refused.value.param == param


def test_no_body_at_all_is_an_empty_one() -> None:
    assert read(b"", UnloadRequest) == UnloadRequest()
    assert read(b'{"force": true}', UnloadRequest) == UnloadRequest(force=True)


def test_integral_floats_are_integers_in_load_bodies_too() -> None:
    load = read_load(b'{"model_name": "m", "max_seq_len": 4096.0, "rope_scale": 2.0}')
    assert load.asked == {"max_seq_len": 4096, "rope_scale": 2.0}
    assert isinstance(load.asked["max_seq_len"], int)
