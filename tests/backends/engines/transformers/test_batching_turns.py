"""What is computed again of a conversation: hardly anything, whatever a model's layers keep. Over
HTTP, as chat frontends go on: the same again, the last message edited, the next turn.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.backends.engines.transformers.test_batching_architectures import BATCHED, write
from tests.backends.pairs import kinds_of, quick
from tests.backends.turns import (
    LONG,
    SHORT,
    Talker,
    conversation,
    four_conversations_take_turns,
    hardly_anything_is_computed_again,
)
from tests.served import Served, served

WORDS = (57, 64, 66, 50, 51, 62)  # letters that are not merged with each other: Q X Z J K V
LONGEST = 8_192
WAYS = ("gpt_oss", "deepseek_v3", "qwen3_5_text", "mamba")  # to keep a conversation, each once
KINDS = quick(BATCHED)
# ChatML, where an answer stands in the next turn's prompt as it was written.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def written(kind: str, folder: Path) -> Path:
    """The model, in a folder of its name."""
    write(kind, folder / kind, max_position_embeddings=LONGEST)
    (folder / kind / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return folder / kind


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """With the kinds that are asked for: making all takes longer than asking one."""
    folder = tmp_path_factory.mktemp("kinds")
    models = []
    for kind in kinds_of(request):
        options = {"context_length": LONGEST, "threads": 1, "device": "cpu"}
        models.append({"name": kind, "path": str(written(kind, folder)), "options": options})
    with served(folder, {"models": models}) as running:
        yield running


@pytest.mark.parametrize("kind", KINDS)
def test_hardly_anything_is_computed_again(server: Served, kind: str) -> None:
    again(server, kind, SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WAYS)
def test_hardly_anything_of_a_long_one_is_computed_again(server: Served, kind: str) -> None:
    again(server, kind, LONG)


def again(server: Served, kind: str, length: int) -> None:
    talk = conversation(2 * length, name=str(length))  # a token is of two letters about
    hardly_anything_is_computed_again(Talker(server, WORDS), kind, talk)


@pytest.mark.parametrize("kind", KINDS)
def test_four_conversations_take_turns(server: Served, kind: str) -> None:
    four_conversations_take_turns(Talker(server, WORDS), kind)
