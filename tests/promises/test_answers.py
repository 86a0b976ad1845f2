"""What an answer is made of, on a process as users start it, with the bundled model: the same text
in every API, reasoning and calls apart from it, shapes that are kept to, and what a request wants.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import bundled
from tests.gateway.prompt.families import source
from tests.served import Served, events, scripted, served

CHAT = "/v1/chat/completions"
COUNT: list[Any] = [{"role": "user", "content": "Count to five."}]
RAW = "<|im_start|>user\nCount to five.<|im_end|>\n<|im_start|>assistant\n"
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Lisbon?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather of a city", "parameters": CITY}
TOOL = {"type": "function", "function": FUNCTION}
GREEDY = {"temperature": 0}

# API: path, body, where the text of a whole answer stands
ANSWERS: Mapping[str, tuple[str, dict[str, Any], Callable[[Any], str]]] = {
    "chat": (
        CHAT,
        {"messages": COUNT, **GREEDY},
        lambda answer: answer["choices"][0]["message"]["content"],
    ),
    "text": (
        "/v1/completions",
        {"prompt": RAW, "max_tokens": 60, **GREEDY},
        lambda answer: answer["choices"][0]["text"],
    ),
    "responses": (
        "/v1/responses",
        {"input": "Count to five.", **GREEDY},
        lambda answer: answer["output"][-1]["content"][0]["text"],
    ),
    "messages": (
        "/v1/messages",
        {"messages": COUNT, "max_tokens": 60, **GREEDY},
        lambda answer: answer["content"][-1]["text"],
    ),
    "ollama": (
        "/api/chat",
        {"messages": COUNT, "options": GREEDY, "stream": False},
        lambda answer: answer["message"]["content"],
    ),
    "cohere": (
        "/v2/chat",
        {"messages": COUNT, **GREEDY},
        lambda answer: answer["message"]["content"][-1]["text"],
    ),
    "kobold": (
        "/api/v1/generate",
        {"prompt": RAW, "max_length": 60, **GREEDY},
        lambda answer: answer["results"][0]["text"],
    ),
    "tgi": (
        "/generate",
        {"inputs": RAW, "parameters": {"max_new_tokens": 60, "do_sample": False}},
        lambda answer: answer["generated_text"],
    ),
    "llamaserver": (
        "/completion",
        {"prompt": RAW, "n_predict": 60, **GREEDY},
        lambda answer: answer["content"],
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("answers")
    thinker = scripted(folder, "thinker", "<think>Let me see.</think>\n\nSeen.")
    tiny = {"name": "tiny", "path": str(bundled.GGUF), "aliases": ["org/tiny"]}
    pooled = {"name": "pooled", "path": str(bundled.GGUF), "options": {"pooling": "mean"}}
    sees = {"modalities": ["text", "image"], "chat_template": source("vision")}
    seeing = scripted(folder, "seeing", "I see {images}.", **sees)
    with served(folder, {"models": [tiny, thinker, pooled, seeing]}) as server:
        yield server


def said(server: Served, **fields: Any) -> Any:
    """The choice of a chat with the bundled model."""
    answer = server.client.post(CHAT, json={"model": "tiny", **GREEDY, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def streamed(server: Served, path: str, body: Mapping[str, Any]) -> list[Any]:
    """The events of a stream."""
    answer = server.client.post(path, json={"model": "tiny", **body, "stream": True})
    assert answer.status_code == 200, answer.text
    return events(answer.text)


@pytest.mark.parametrize("api", ANSWERS)
def test_every_api_gives_the_model_s_answer(api: str, server: Served) -> None:
    path, body, text_of = ANSWERS[api]
    answer = server.client.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    assert "1, 2, 3, 4, 5" in text_of(answer.json())


def test_a_stream_says_what_the_whole_says(server: Served) -> None:
    """The answer is so long that it is several pieces also where tokens wait for a busy loop."""
    asked = {"messages": COUNT, "ignore_eos": True, "max_tokens": 400}
    chunks = streamed(server, CHAT, {**asked, **GREEDY})
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert len([text for text in deltas if text]) > 3
    assert "".join(deltas) == said(server, **asked)["message"]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_apart_from_content(stream: bool, server: Served) -> None:
    body = {"model": "thinker", "messages": COUNT, "stream": stream}
    answer = server.client.post(CHAT, json=body)
    parts = events(answer.text) if stream else [answer.json()]
    inside = [part["choices"][0]["delta" if stream else "message"] for part in parts]
    assert "".join(each.get("reasoning_content") or "" for each in inside) == "Let me see."
    assert "".join(each.get("content") or "" for each in inside).strip() == "Seen."


@pytest.mark.parametrize(
    ("shown", "content"),
    [("hidden", "Seen."), ("none", "<think>Let me see.</think>\n\nSeen.")],
)
def test_thinking_is_hidden_or_inline(shown: str, content: str, server: Served) -> None:
    choice = said(server, model="thinker", messages=COUNT, reasoning_format=shown)
    assert not choice["message"].get("reasoning_content")
    assert choice["message"]["content"].strip() == content


def test_thinking_is_held_to_a_budget(server: Served) -> None:
    choice = said(server, model="thinker", messages=COUNT, thinking_budget=3)
    reasoning = choice["message"]["reasoning_content"]
    assert "Let me see.".startswith(reasoning)
    assert 0 < len(reasoning) <= 3  # the scripted engine's tokens are bytes
    assert choice["message"]["content"]


def test_a_prompt_s_own_tokens_are_scored(server: Served) -> None:
    body = {"model": "tiny", "prompt": RAW, "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = server.client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    first, *others = choice["logprobs"]["token_logprobs"]
    assert first is None
    assert all(logprob <= 0 for logprob in others)
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"] == RAW


def test_a_call_is_split_from_the_text_and_its_arguments_grow(server: Served) -> None:
    chunks = streamed(server, CHAT, {"messages": WEATHER, "tools": [TOOL], **GREEDY})
    calls = [
        call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls") or ()
    ]
    assert [call["function"]["name"] for call in calls if "name" in call["function"]] == [
        "get_weather"
    ]
    fragments = [call["function"].get("arguments") or "" for call in calls]
    assert len([text for text in fragments if text]) > 1
    assert json.loads("".join(fragments)) == {"city": "Lisbon"}
    content = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "<tool_call>" not in "".join(content)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_that_is_required_matches_its_schema_however_hot_the_model_is(
    server: Served,
) -> None:
    for seed in range(3):
        hot = {"temperature": 2.0, "seed": seed, "max_tokens": 400}
        choice = said(server, messages=COUNT, tools=[TOOL], tool_choice="required", **hot)
        for call in choice["message"]["tool_calls"]:
            assert call["function"]["name"] == "get_weather"
            assert isinstance(json.loads(call["function"]["arguments"])["city"], str)


SHAPES: Mapping[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "n",
                    "schema": {
                        "type": "object",
                        "properties": {"n": {"enum": [1, 2]}},
                        "required": ["n"],
                        "additionalProperties": False,
                    },
                },
            }
        },
        lambda text: json.loads(text)["n"] in (1, 2),
    ),
    "regex": ({"guided_regex": "[a-c]{4}"}, lambda text: bool(re.fullmatch("[a-c]{4}", text))),
    "choice": ({"guided_choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
    "grammar": ({"grammar": 'root ::= "ab" | "cd"'}, lambda text: text in ("ab", "cd")),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_kept_to_however_hot_the_model_is(shape: str, server: Served) -> None:
    fields, fits = SHAPES[shape]
    for seed in range(3):
        choice = said(server, messages=COUNT, **fields, temperature=2.0, seed=seed)
        assert choice["finish_reason"] == "stop"
        assert fits(choice["message"]["content"]), choice


def test_a_shape_that_no_grammar_can_have_is_refused_by_its_field(server: Served) -> None:
    body = {"model": "tiny", "messages": COUNT, "guided_regex": "("}
    answer = server.client.post(CHAT, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "guided_regex"


def test_a_seed_gives_the_same_text_and_another_one_another(server: Served) -> None:
    def text(seed: int) -> str:
        hot = {"temperature": 1.5, "seed": seed}
        return str(said(server, messages=COUNT, **hot, max_tokens=40)["message"]["content"])

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_a_stop_string_ends_the_answer_and_isn_t_part_of_it(server: Served) -> None:
    choice = said(server, messages=COUNT, stop=["4"])
    assert choice["message"]["content"].rstrip().endswith("3,")
    assert choice["finish_reason"] == "stop"


def test_several_choices_are_told_apart(server: Served) -> None:
    chunks = streamed(server, CHAT, {"messages": COUNT, "n": 3, **GREEDY})
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0, 1, 2}


def test_every_token_has_its_likeliest(server: Served) -> None:
    choice = said(server, messages=COUNT, logprobs=True, top_logprobs=3)
    entries = choice["logprobs"]["content"]
    assert choice["message"]["content"] in "".join(entry["token"] for entry in entries)
    for entry in entries:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 3


def test_an_answer_that_was_begun_is_gone_on_with(server: Served) -> None:
    begun = {"role": "assistant", "content": "1, 2, 3,"}
    assert said(server, messages=[*COUNT, begun])["message"]["content"].startswith(" 4, 5")


def test_what_is_not_applied_is_named(server: Served) -> None:
    answer = server.client.post(CHAT, json={"model": "tiny", "messages": COUNT, "wishes": 3})
    assert "wishes" in str(answer.headers)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": COUNT, "temperature": "hot"}, "temperature"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
    ],
)
def test_a_bad_request_names_its_field(body: dict[str, Any], param: str, server: Served) -> None:
    answer = server.client.post(CHAT, json={"model": "tiny", **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_model_that_is_not_there_is_named_with_those_near_it(server: Served) -> None:
    answer = server.client.post(CHAT, json={"model": "tinny", "messages": COUNT})
    assert answer.status_code == 404
    assert "tiny" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["tiny", "org/tiny", "default", ""])
def test_a_model_has_its_aliases_and_no_name_means_the_default(name: str, server: Served) -> None:
    said(server, messages=COUNT)
    assert said(server, model=name, messages=COUNT)["message"]["content"]


def test_tokens_are_counted_alike_by_every_api(server: Served) -> None:
    body = {"model": "tiny", "messages": COUNT}
    counted = server.client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    usage = server.client.post("/v1/messages", json={**body, "max_tokens": 5}).json()["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    tokens = server.client.post("/tokenize", json={"model": "tiny", "content": "Hi"}).json()
    back = server.client.post("/detokenize", json={"model": "tiny", **tokens}).json()
    assert back["content"] == "Hi"


def test_vectors_and_ranks_come_from_a_model_that_embeds(server: Served) -> None:
    body = {"model": "pooled", "input": ["Count to five.", "Count to six.", "Lisbon"]}
    answer = server.client.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    vectors = [item["embedding"] for item in answer.json()["data"]]
    assert all(sum(x * x for x in vector) == pytest.approx(1, abs=1e-3) for vector in vectors)
    ollama = server.client.post("/api/embed", json=body).json()["embeddings"]
    assert ollama[0] == pytest.approx(vectors[0], abs=1e-5)
    near, far = (sum(a * b for a, b in zip(vectors[0], v, strict=True)) for v in vectors[1:])
    assert near > far


def test_a_picture_reaches_the_model(server: Served) -> None:
    png = (
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJg"
        "gg=="
    )
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}},
    ]
    choice = said(server, model="seeing", messages=[{"role": "user", "content": parts}])
    assert choice["message"]["content"].startswith("I see 1x1 #")
    blind = {"model": "tiny", "messages": [{"role": "user", "content": parts}]}
    assert server.client.post(CHAT, json=blind).status_code == 400


def test_a_conversation_s_beginning_is_computed_once(server: Served) -> None:
    long = [{"role": "user", "content": "Count to five. " * 20}]
    said(server, messages=long, max_tokens=1)
    body = {"model": "tiny", "messages": long, "max_tokens": 1}
    usage = server.client.post(CHAT, json=body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] // 2


def test_streams_run_together(server: Served) -> None:
    """Two are open at once, and both go on."""
    body = {"model": "tiny", "messages": COUNT, **GREEDY, "stream": True}
    with (
        server.client.stream("POST", CHAT, json=body) as first,
        server.client.stream("POST", CHAT, json=body) as second,
    ):
        texts = [answer.read().decode() for answer in (second, first)]
    said_by = [
        "".join(e["choices"][0]["delta"].get("content") or "" for e in events(text))
        for text in texts
    ]
    assert said_by[0] == said_by[1] != ""
