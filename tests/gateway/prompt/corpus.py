"""The chat templates of models as their makers publish them: those in llama.cpp's repository, which
llama-cpp-python's source distribution carries. None of them is committed here.

pip brings the release that constraints.txt names, once for a machine; a newer one brings its
templates into every test that goes through them, without a line being added. Where it can't be had
those tests are skipped, and say so; in CI they fail.
"""

import fcntl
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jinja2
import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import ModelInfo, SpecialTokens
from config.engines import ScriptedOptions
from gateway.answers.interpreter import Interpreter, interpret
from gateway.prompt.conversation import given_variables
from gateway.registry import ModelEntry

ROOT = Path(__file__).parents[3]
LIBRARY = "llama-cpp-python"
PLACE = re.compile(r"[^/]+/vendor/llama\.cpp/models/templates/([^/]+)\.jinja")
LONGEST_DOWNLOAD = 600  # seconds, for 75 MB
GIVEN = frozenset(("enable_thinking", "date_string", "datetime", "functions"))
SPECIAL = SpecialTokens(bos="<s>", eos="</s>")


@cache
def templates() -> Mapping[str, str]:
    """Their texts by their names."""
    pinned = re.search(rf"^{LIBRARY}==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    cache_root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache_root / "roundhouse" / f"templates-{pinned[1]}"
    with _alone(folder):
        if not folder.is_dir():
            _fetch(pinned[0], folder)
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.jinja"))}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(pinned: str, folder: Path) -> None:
    with TemporaryDirectory(dir=folder.parent) as made:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", LIBRARY, "--dest", made, pinned]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=LONGEST_DOWNLOAD)
        except (subprocess.SubprocessError, OSError) as error:
            unreachable(f"pip can't download the source of {pinned}: {error}")
        (archive,) = Path(made).glob("*.tar.gz")
        unpacked = Path(made) / "templates"
        unpacked.mkdir()
        with tarfile.open(archive) as content:
            for member in content:
                if (named := PLACE.fullmatch(member.name)) and (
                    file := content.extractfile(member)
                ):
                    (unpacked / f"{named[1]}.jinja").write_bytes(file.read())
        unpacked.rename(folder)


def unreachable(why: str) -> None:
    """The templates aren't there."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@cache
def interpreter(name: str) -> Interpreter:
    """A model with the template `name`, as it is served."""
    files = ModelFiles(
        path=Path(name),
        backend="scripted",
        format="script",
        architecture="",
        size_bytes=0,
        context_length=64,
        cache_bytes_per_token=0,
    )
    info = ModelInfo(
        backend="scripted",
        format="script",
        architecture="",
        context_length=64,
        max_concurrent=1,
        vocab_size=257,
        size_bytes=0,
        special=SPECIAL,
        chat_template=templates()[name],
    )
    return interpret(info, ModelEntry(name=name, files=files, options=ScriptedOptions()), None)


@cache
def _plain(name: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.filters["safe"] = str
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment.from_string(templates()[name])


def _tojson(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def plain(
    name: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> str | None:
    """What Jinja alone makes of a conversation, without anything of ours; None where it fails."""
    given = given_variables(GIVEN, tools)
    try:
        return _plain(name).render(
            messages=messages,
            tools=tools,
            documents=None,
            bos_token=SPECIAL.bos,
            eos_token=SPECIAL.eos,
            add_generation_prompt=True,
            **given,
        )
    except (jinja2.TemplateError, TypeError, AttributeError, KeyError):
        return None
