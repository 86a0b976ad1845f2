"""The sampling defaults of a GGUF file's model are those it was converted with."""

import json
from pathlib import Path
from typing import Any

import gguf

from backends.contract.samplers import DEFAULTS, Sampling
from backends.engines.llamacpp.recognition import recognise
from training import gguf_file


def write(path: Path, **carried: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in carried.items():
        add = writer.add_int32 if isinstance(value, int) else writer.add_float32
        add(f"general.sampling.{name}", value)
    writer.add_sampling_sequence("top_k;temperature")
    gguf_file.finish(writer)
    return path


def suggested(path: Path) -> Sampling:
    found = recognise(path)
    assert found is not None
    return found.generation_defaults


def test_what_the_file_carries_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", temp=0.5, top_k=20, top_p=0.75, penalty_last_n=64, mirostat=2)
    expected = Sampling(temperature=0.5, top_k=20, top_p=0.75, penalty_range=64, mirostat_mode=2)
    assert suggested(path) == expected


def test_else_the_file_beside_it_says(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    assert suggested(path) == DEFAULTS
    config = {"temperature": 0.6, "top_k": 20, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert suggested(path) == Sampling(temperature=0.6, top_k=20)


def test_values_of_an_odd_kind_are_passed_over(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_string("general.sampling.temp", "hot")
    writer.add_bool("general.sampling.top_k", True)
    gguf_file.finish(writer)
    assert suggested(tmp_path / "m.gguf") == DEFAULTS
