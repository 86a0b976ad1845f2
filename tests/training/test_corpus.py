"""The corpus teaches exactly the text that the chat template later writes."""

from itertools import islice
from random import Random
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from bundled import SAFETENSORS
from training import corpus, skills, tools, train


def joined(turns: list[list[corpus.Segment]]) -> str:
    return "".join(segment.text for turn in turns for segment in turn)


def rendered(messages: list[dict[str, Any]], **options: Any) -> str:
    tokenizer = AutoTokenizer.from_pretrained(SAFETENSORS)
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))


def test_a_tool_conversation_reads_as_the_template_writes_it() -> None:
    tool = tools.place_tool(Random(1))
    request, result = tools.use(Random(2), tool)
    call = msgspec.json.decode(request.answer.split("\n")[1])
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": request.prompt},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "content": result.prompt},
        {"role": "assistant", "content": result.answer},
    ]
    turns = [corpus.opening("Be brief.", [tool.definition])]
    turns += [corpus.render(request, "history"), corpus.render(result, "history")]
    assert rendered(messages, tools=[tool.definition]) == joined(turns)


@pytest.mark.parametrize(("appearance", "thinking"), [("thinking", True), ("silent", False)])
def test_what_is_not_learnt_is_the_prompt(appearance: str, thinking: bool) -> None:
    exchange = skills.repeat(Random(3))
    messages = [{"role": "user", "content": exchange.prompt}]
    prompt = rendered(messages, add_generation_prompt=True, enable_thinking=thinking)
    assert corpus.render(exchange, appearance)[0] == corpus.Segment(prompt)


def test_segments_are_cut_where_the_tokenizer_cuts() -> None:
    tokenizer = Tokenizer.from_file(str(SAFETENSORS / "tokenizer.json"))
    for turns in islice(corpus.conversations(Random(4)), 50):
        for turn in islice(turns, 4):
            ids, _ = train.encode_turn(tokenizer, turn)
            assert ids == tokenizer.encode(joined([turn])).ids


def test_a_seed_fixes_the_corpus() -> None:
    first, second = (list(train.corpus_texts(7, 20)) for _ in range(2))
    assert first == second
    assert first != list(train.corpus_texts(8, 20))


def test_most_tools_bear_names_that_no_list_holds() -> None:
    rng = Random(5)
    names = [tool.name for _ in range(200) for tool in tools.draw_tools(rng)]
    assert len(set(names)) > 0.6 * len(names)
