"""The models in a folder: their names, what comes and goes, and what can't be used."""

import os
from pathlib import Path

from config.settings import Config
from gateway.hub.cache import repositories
from gateway.registry import ModelLibrary
from gateway.registry.folders import LEADS_OUT
from tests.gateway.registry.test_library import Readers, library, names, put


def test_models_are_named_by_their_path_below_the_root(tmp_path: Path) -> None:
    put(tmp_path / "llama.Q4.gguf")
    put(tmp_path / "org" / "qwen3" / "Q8.gguf")
    put(tmp_path / "org" / "gemma" / "config.json")
    put(tmp_path / "org" / "notes.txt")
    assert names(library(tmp_path)) == ["llama.Q4", "org/gemma", "org/qwen3/Q8"]


def test_the_parts_of_a_split_model_are_one(tmp_path: Path) -> None:
    for part in (1, 2, 3):
        put(tmp_path / f"large-{part:05}-of-00003.gguf")
    assert names(library(tmp_path)) == ["large"]


def test_the_files_of_a_folder_that_is_a_model_are_no_models(tmp_path: Path) -> None:
    put(tmp_path / "gemma" / "config.json")
    put(tmp_path / "gemma" / "extra.gguf")
    assert names(library(tmp_path)) == ["gemma"]


def test_a_root_that_is_a_model_itself_is_named_after_its_folder(tmp_path: Path) -> None:
    put(tmp_path / "gemma" / "config.json")
    assert names(library(tmp_path / "gemma")) == ["gemma"]


def test_models_behind_links_that_lead_out_of_the_root_are_unusable(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    put(root / "inside.gguf")
    put(outside / "secret.gguf")
    put(outside / "model" / "config.json")
    (root / "link.gguf").symlink_to(outside / "secret.gguf")
    (root / "folder").symlink_to(outside)
    (root / "model").symlink_to(outside / "model")
    (root / "dead.gguf").symlink_to(root / "nowhere")
    (root / "nowhere.gguf").symlink_to(outside / "nowhere")
    (root / "loop").symlink_to(root)
    (root / "circle.gguf").symlink_to(root / "circle.gguf")
    found = library(root)
    assert names(found) == ["inside"]
    assert {one.name: one.reason for one in found.unusable()} == dict.fromkeys(
        ["link", "model"], LEADS_OUT
    )


def test_what_cannot_be_used_hides_no_model_of_the_same_name(tmp_path: Path) -> None:
    put(tmp_path / "a.gguf")
    put(tmp_path / "a" / "config.json", "broken")
    assert names(found := library(tmp_path)) == ["a"]
    assert not found.unusable()


def test_hidden_folders_hold_nothing_that_can_be_asked_for(tmp_path: Path) -> None:
    put(tmp_path / ".downloads" / "half" / "config.json")
    put(tmp_path / "whole" / "config.json")
    assert names(library(tmp_path)) == ["whole"]


def test_a_root_that_is_not_there_yet_is_empty_until_it_comes(tmp_path: Path) -> None:
    shelf = library(tmp_path / "later")
    assert names(shelf) == []
    put(tmp_path / "later" / "a.gguf")
    shelf.refresh()
    assert names(shelf) == ["a"]


def test_what_comes_goes_and_changes_is_seen_and_the_rest_is_not_read_again(tmp_path: Path) -> None:
    readers = Readers()
    put(tmp_path / "one" / "a.gguf")
    gone = put(tmp_path / "two" / "b.gguf")
    shelf = ModelLibrary(Config(model_dirs=(str(tmp_path),)), recognise=readers)
    kept = shelf.resolve("one/a")
    readers.read.clear()
    gone.unlink()
    put(tmp_path / "three" / "c.gguf")
    shelf.refresh()
    assert names(shelf) == ["one/a", "three/c"]
    assert shelf.resolve("one/a") is kept
    assert readers.read == ["c.gguf"]


def test_a_file_that_grows_while_it_is_downloaded_is_seen_when_it_is_whole(tmp_path: Path) -> None:
    path = put(tmp_path / "a.gguf", "broken")
    shelf = library(tmp_path)
    assert names(shelf) == []
    path.write_text("whole at last")
    shelf.refresh()
    assert names(shelf) == ["a"]


def test_a_file_name_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path / "a40.gguf")
    put(tmp_path / os.fsdecode(b"b\xff20.gguf"))
    (tmp_path / os.fsdecode(b"folder\xfe")).mkdir()
    (tmp_path / os.fsdecode(b"models--org--x\xff")).mkdir()
    assert names(library(tmp_path)) == ["a40"]
    assert repositories(tmp_path) == []
