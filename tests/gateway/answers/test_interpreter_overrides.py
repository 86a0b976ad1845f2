"""Sampling overrides: what stands in, what is forced, what is joined."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.contract.samplers import Sampling
from config.errors import ConfigError
from gateway.answers.interpreter import OverridePreset, SamplingOverrides, preset
from gateway.dialects.openai import read_text
from gateway.terms.errors import InvalidRequest
from gateway.terms.request import GenerationParams


def asked(**body: Any) -> GenerationParams:
    return read_text(msgspec.json.encode({"prompt": "", **body})).request.answering


def sampled(overrides: dict[str, Any], **body: Any) -> Sampling:
    return preset(overrides).over(asked(**body)).sampling.over(Sampling())


def test_an_override_stands_in_where_a_request_says_nothing() -> None:
    overrides = {"temperature": {"override": 0.5}, "rep_pen": {"override": 1.2}}
    assert sampled(overrides).temperature == 0.5
    assert sampled(overrides).repetition_penalty == 1.2
    assert sampled(overrides, temperature=0.9).temperature == 0.9
    # What equals the default is said all the same.
    assert sampled(overrides, temperature=1.0).temperature == 1.0


def test_force_stands_whatever_the_request_says() -> None:
    overrides = {
        "top_p": {"override": 0.5, "force": True},
        "max_tokens": {"override": 7, "force": True},
    }
    assert sampled(overrides, top_p=0.9).top_p == 0.5
    assert preset(overrides).over(asked(max_tokens=100)).max_tokens == 7


def test_additive_lists_go_in_front_of_the_requests() -> None:
    overrides = {
        "banned_strings": {"override": ["a"], "additive": True},
        "stop": {"override": ["X"], "additive": True},
    }
    assert sampled(overrides, banned_strings=["b"]).banned_strings == ("a", "b")
    assert sampled(overrides).banned_strings == ("a",)
    assert preset(overrides).over(asked(stop=["Y"])).stop == ("X", "Y")


def test_joined_breakers_dont_bring_the_engines_defaults_along() -> None:
    overrides = {"dry_sequence_breakers": {"override": ["|"], "additive": True}}
    assert sampled(overrides).dry_sequence_breakers == ("|",)


def test_lengths_stand_in_too() -> None:
    overrides = {
        "max_tokens": {"override": 7},
        "stop": {"override": ["X"]},
        "min_tokens": {"override": 2},
    }
    got = preset(overrides).over(asked())
    assert (got.max_tokens, got.min_tokens, got.stop) == (7, 2, ("X",))
    got = preset(overrides).over(asked(max_tokens=5, stop=["Y"]))
    assert (got.max_tokens, got.stop) == (5, ("Y",))


def test_without_overrides_a_request_is_left_as_it_is() -> None:
    request = asked(temperature=0.3)
    assert preset({}).over(request) is request


@pytest.mark.parametrize(
    ("overrides", "param"),
    [
        ({"flux": {"override": 1}}, "flux"),
        ({"top_p": {"override": 3}}, "top_p"),
        ({"top_p": 0.5}, "top_p"),
        ({"top_p": {"override": 0.5, "forced": True}}, "top_p"),
        ({"top_p": {"override": 0.5, "additive": True}}, "top_p"),
        ({"stream": {"override": True}}, "stream"),
        ({"prompt": {"override": "x"}}, "prompt"),
    ],
)
def test_what_is_wrong_is_named(overrides: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        preset(overrides)
    assert refused.value.param == param


def test_files_are_found_by_name_and_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "a.yml").write_text("temperature: {override: 0.5}")
    (folder / "b.yaml").write_text("- not\n- a mapping")
    (tmp_path / "secret.yml").write_text("temperature: {override: 0.5}")
    presets = SamplingOverrides(folder)
    assert presets.names() == ("a", "b")
    presets.current = presets.read("a")
    assert presets.current.name == "a"
    presets.current = OverridePreset()
    assert presets.current.overrides == {}
    for name in ("../secret", "secret", "b", ""):
        with pytest.raises(InvalidRequest):
            presets.read(name)
    assert SamplingOverrides(folder, "a").current.name == "a"
    with pytest.raises(ConfigError, match="preset"):
        SamplingOverrides(folder, "none")
    assert SamplingOverrides(None).names() == ()
