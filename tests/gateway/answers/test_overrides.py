"""Sampling overrides: what stands in, what is forced, what is joined."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.protocol import Sampling
from config.errors import ConfigError
from gateway.answers.overrides import SamplingOverrides, preset
from gateway.dialects.openai import read_text
from gateway.errors import InvalidRequest
from gateway.request import GenerationParams


def asked(**body: Any) -> GenerationParams:
    return read_text(msgspec.json.encode({"prompt": "", **body})).request.answering


def sampled(reported: dict[str, Any], **body: Any) -> Sampling:
    return preset(reported).over(asked(**body)).sampling.over(Sampling())


def test_an_override_stands_in_where_a_request_says_nothing() -> None:
    reported = {"temperature": {"override": 0.5}, "rep_pen": {"override": 1.2}}
    assert sampled(reported).temperature == 0.5
    assert sampled(reported).repetition_penalty == 1.2
    assert sampled(reported, temperature=0.9).temperature == 0.9
    # What equals the default is said all the same.
    assert sampled(reported, temperature=1.0).temperature == 1.0


def test_force_stands_whatever_the_request_says() -> None:
    reported = {
        "top_p": {"override": 0.5, "force": True},
        "max_tokens": {"override": 7, "force": True},
    }
    assert sampled(reported, top_p=0.9).top_p == 0.5
    assert preset(reported).over(asked(max_tokens=100)).max_tokens == 7


def test_additive_lists_go_in_front_of_the_requests() -> None:
    reported = {
        "banned_strings": {"override": ["a"], "additive": True},
        "stop": {"override": ["X"], "additive": True},
    }
    assert sampled(reported, banned_strings=["b"]).banned_strings == ("a", "b")
    assert sampled(reported).banned_strings == ("a",)
    assert preset(reported).over(asked(stop=["Y"])).stop == ("X", "Y")


def test_joined_breakers_dont_bring_the_engines_defaults_along() -> None:
    reported = {"dry_sequence_breakers": {"override": ["|"], "additive": True}}
    assert sampled(reported).dry_sequence_breakers == ("|",)


def test_lengths_stand_in_too() -> None:
    reported = {
        "max_tokens": {"override": 7},
        "stop": {"override": ["X"]},
        "min_tokens": {"override": 2},
    }
    got = preset(reported).over(asked())
    assert (got.max_tokens, got.min_tokens, got.stop) == (7, 2, ("X",))
    got = preset(reported).over(asked(max_tokens=5, stop=["Y"]))
    assert (got.max_tokens, got.stop) == (5, ("Y",))


def test_without_overrides_a_request_is_left_as_it_is() -> None:
    request = asked(temperature=0.3)
    assert preset({}).over(request) is request


@pytest.mark.parametrize(
    ("reported", "param"),
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
def test_what_is_wrong_is_named(reported: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        preset(reported)
    assert refused.value.param == param


def test_files_are_found_by_name_and_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "a.yml").write_text("temperature: {override: 0.5}")
    (folder / "b.yaml").write_text("- not\n- a mapping")
    (tmp_path / "secret.yml").write_text("temperature: {override: 0.5}")
    presets = SamplingOverrides(folder)
    assert presets.names() == ("a", "b")
    presets.switch(presets.read("a"))
    assert presets.current.name == "a"
    presets.unload()
    assert presets.current.overrides == {}
    for name in ("../secret", "secret", "b", ""):
        with pytest.raises(InvalidRequest):
            presets.read(name)
    assert SamplingOverrides(folder, "a").current.name == "a"
    with pytest.raises(ConfigError, match="preset"):
        SamplingOverrides(folder, "none")
    assert SamplingOverrides(None).names() == ()
