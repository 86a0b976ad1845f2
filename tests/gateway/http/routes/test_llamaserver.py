"""llama-server's completions and fillings, as its own tests hold them, on a real socket."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from config.settings import ModelConfig
from tests.backends.places.upstream.far import far, with_status
from tests.backends.random_gguf import FILLING, Dimensions, write
from tests.gateway.http.serving import Running, config, events, serving
from tests.promises.upstreams.test_upstreams import relaying

pytestmark = pytest.mark.anyio

TINY = "roundhouse-tiny"
TEXT = "I believe the meaning of life is"


async def complete(running: Running, **fields: Any) -> Any:
    """The whole answer of the bundled model, greedy."""
    body = {"model": TINY, "prompt": TEXT, "n_predict": 8, "temperature": 0, **fields}
    answer = await running.client.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streamed(running: Running, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": TINY, "prompt": TEXT, "n_predict": 8, "temperature": 0, **fields}
    return events((await running.client.post("/completion", json={**body, "stream": True})).text)


async def refusal(running: Running, **fields: Any) -> dict[str, Any]:
    answer = await running.client.post("/completion", json={"model": TINY, **fields})
    error: dict[str, Any] = answer.json()["error"]
    return {"status": answer.status_code, **error}


async def test_an_answer_tells_how_it_was_made(running: Running) -> None:
    answer = await complete(running, seed=7, return_tokens=True, id_slot=0)
    assert answer["prompt"] == TEXT
    assert answer["truncated"] is False
    assert answer["has_new_line"] is ("\n" in answer["content"])
    assert answer["id_slot"] == 0
    body = {"model": TINY, "tokens": answer["tokens"]}
    text = (await running.client.post("/detokenize", json=body)).json()["content"]
    assert text == answer["content"]
    assert len(answer["tokens"]) == answer["tokens_predicted"] == 8
    used = answer["generation_settings"]
    assert (used["n_predict"], used["seed"], used["temperature"]) == (8, 7, 0)
    assert used["n_ctx"] > 8


async def test_tokens_are_reported_when_they_are_asked_for_and_in_streams(running: Running) -> None:
    assert (await complete(running))["tokens"] == []
    *pieces, last = await streamed(running)
    assert all(piece["tokens"] for piece in pieces)
    tokens = [token for piece in (*pieces, last) for token in piece["tokens"]]
    assert len(tokens) == 8
    assert tokens == (await complete(running, return_tokens=True))["tokens"]


async def test_each_prompt_counts_its_own(running: Running) -> None:
    short, long = TEXT, f"{TEXT} {TEXT}"
    alone = [await complete(running, prompt=prompt) for prompt in (short, long)]
    both = await complete(running, prompt=[short, long])
    assert [one["index"] for one in both] == [0, 1]
    for one, two in zip(alone, both, strict=True):
        assert two["tokens_evaluated"] == one["tokens_evaluated"]
        assert two["tokens_predicted"] == two["timings"]["predicted_n"] == 8
        timings = two["timings"]
        assert timings["cache_n"] == two["tokens_cached"]
        assert timings["prompt_n"] + timings["cache_n"] == two["tokens_evaluated"]


async def test_rates_leave_out_the_token_that_comes_with_the_prompt(running: Running) -> None:
    one = (await complete(running, n_predict=1))["timings"]
    assert (one["predicted_per_second"], one["predicted_per_token_ms"]) == (0, 0)
    more = (await complete(running))["timings"]
    assert more["predicted_per_second"] == pytest.approx(7000 / more["predicted_ms"])


async def test_a_stop_string_is_reported(running: Running) -> None:
    body = {"model": "scripted", "prompt": "Hi", "stop": ["zzz", "script"]}
    answer = (await running.client.post("/completion", json=body)).json()
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", "script")
    assert answer["content"] == "Hello from the "


async def test_a_full_context_is_reported(tmp_path: Path) -> None:
    async with serving(config(tmp_path, context_length=24), tmp_path) as running:
        body = {"model": "scripted", "prompt": "long"}
        answer = (await running.client.post("/completion", json=body)).json()
        assert (answer["truncated"], answer["stop_type"]) == (True, "limit")
        assert answer["tokens_evaluated"] + answer["tokens_predicted"] == 24
        short = (await running.client.post("/completion", json={**body, "n_predict": 20})).json()
        assert (short["truncated"], short["stop_type"]) == (False, "limit")


async def test_new_lines_are_reported(running: Running) -> None:
    grammar = {"grammar": 'root ::= "a\\nb"'}
    assert (await complete(running, **grammar))["has_new_line"] is True


async def test_prompts_may_be_objects_and_mixed(running: Running) -> None:
    body = {"model": TINY, "content": TEXT}
    tokens = (await running.client.post("/tokenize", json=body)).json()["tokens"]
    plain, listed, named = await complete(running, prompt=[TEXT, tokens, {"prompt_string": TEXT}])
    assert plain["content"] == listed["content"] == named["content"]
    mixed = await complete(running, prompt=[*tokens, TEXT])
    assert mixed["prompt"] == TEXT + TEXT
    assert mixed["tokens_evaluated"] == 2 * len(tokens)
    train = (await running.client.post("/tokenize", json={**body, "content": "🚂"})).json()[
        "tokens"
    ]
    assert len(train) > 1
    echoed = await running.client.post(
        "/v1/completions", json={"model": TINY, "prompt": train, "echo": True, "max_tokens": 0}
    )
    assert echoed.json()["choices"][0]["text"] == "🚂"


async def test_only_the_fields_that_were_chosen_are_reported(running: Running) -> None:
    fields = ["content", "generation_settings/n_predict", "prompt"]
    answer = await complete(running, response_fields=fields)
    assert answer.keys() == set(fields)
    assert answer["generation_settings/n_predict"] == 8
    assert "generation_settings" in await complete(running, response_fields=[])
    last = (await streamed(running, response_fields=fields))[-1]
    assert last.keys() == set(fields)


async def test_a_prompt_is_computed_without_an_answer(running: Running) -> None:
    answer = await complete(running, n_predict=0)
    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == (
        "",
        0,
        "limit",
    )
    again = await complete(running)
    assert again["tokens_cached"] == again["tokens_evaluated"] - 1


async def test_a_bias_by_text_is_one_of_its_tokens(running: Running) -> None:
    free = await complete(running, return_tokens=True)
    word = free["content"].split()[0] if free["content"].split() else free["content"]
    body = {"model": TINY, "content": word}
    ids = (await running.client.post("/tokenize", json=body)).json()["tokens"]
    for bias in ([[word, False]], {word: -100}):
        answer = await complete(running, logit_bias=bias, return_tokens=True)
        assert not set(ids) & set(answer["tokens"])
        listed = {one["token"] for one in answer["generation_settings"]["logit_bias"]}
        assert listed == set(ids)


async def test_the_reading_of_a_prompt_is_reported(running: Running) -> None:
    prompt = "This is a test. " * 40
    sent = await streamed(running, prompt=prompt, return_progress=True)
    steps = [one["prompt_progress"] for one in sent if "prompt_progress" in one]
    assert steps[0]["processed"] == steps[0]["cache"] == 0
    assert steps[-1]["processed"] == steps[-1]["total"] == sent[-1]["tokens_evaluated"]
    assert sent[0]["timings"]["prompt_ms"] == sent[0]["timings"]["predicted_n"] == 0
    again = await streamed(running, prompt=prompt, return_progress=True)
    assert again[0]["prompt_progress"]["cache"] > 0
    unread = await running.client.post(
        "/completion", json={"model": TINY, "prompt": "a", "n_predict": 1, "return_progress": True}
    )
    assert unread.headers["x-roundhouse-ignored"] == "return_progress"


async def test_a_chat_s_prompt_is_reported_too(running: Running) -> None:
    body = {
        "model": TINY,
        "messages": [{"role": "user", "content": "This is a test. " * 40}],
        "max_tokens": 2,
        "stream": True,
        "return_progress": True,
    }
    answer = await running.client.post("/v1/chat/completions", json=body)
    sent = events(answer.text.removesuffix("data: [DONE]\n\n"))
    steps = [one["prompt_progress"] for one in sent if "prompt_progress" in one]
    assert steps[-1]["processed"] == steps[-1]["total"] > steps[0]["processed"] == 0


def chances(token: dict[str, Any]) -> dict[int, float]:
    """Of what the token was chosen from."""
    return {one["id"]: one["prob"] for one in token["top_probs"]}


async def test_probabilities_of_what_the_samplers_left(running: Running) -> None:
    wanted = {"temperature": 1, "top_k": 3, "seed": 1, "n_probs": 5, "post_sampling_probs": True}
    await complete(running, **wanted)  # a wider pass rounds otherwise: found in the cache now
    answer = await complete(running, **wanted)
    tokens = answer["completion_probabilities"]
    assert len(tokens) == 8
    for token in tokens:
        assert "logprob" not in token
        assert sum(one["prob"] for one in token["top_probs"]) == pytest.approx(1)
        assert len(token["top_probs"]) == 3
        assert 0 < token["prob"] <= 1
    *pieces, _ = await streamed(running, **wanted)
    again = [token for piece in pieces for token in piece["completion_probabilities"]]
    assert [one["id"] for one in again] == [one["id"] for one in tokens]
    for one, token in zip(again, tokens, strict=True):
        assert chances(one) == pytest.approx(chances(token), rel=1e-2)
    error = await refusal(running, model="scripted", prompt="Hi", **wanted)
    assert (error["status"], error["param"]) == (400, "post_sampling_probs")


async def test_what_an_engine_has_not_is_named(running: Running) -> None:
    body = {"model": "scripted", "prompt": "Hi", "id_slot": 0, "return_progress": True}
    answer = await running.client.post("/completion", json={**body, "stream": True})
    assert answer.headers["x-roundhouse-ignored"] == "id_slot, return_progress"


async def test_an_error_names_the_field_and_the_lengths(running: Running) -> None:
    error = await refusal(running, prompt="word " * 9_000)
    assert (error["status"], error["param"]) == (400, "prompt")
    assert error["n_prompt_tokens"] > error["n_ctx"] > 0
    messages = [{"role": "user", "content": "word " * 9_000}]
    chat = await running.client.post(
        "/v1/chat/completions", json={"model": TINY, "messages": messages}
    )
    error = chat.json()["error"]
    assert (chat.status_code, error["param"]) == (400, "messages")
    assert error["n_prompt_tokens"] > error["n_ctx"] > 0
    error = await refusal(running, prompt="Hi", id_slot=99)
    assert (error["status"], error["param"]) == (400, "id_slot")
    assert "n_ctx" not in error
    error = await refusal(running, prompt="Hi", n_predict="much")
    assert (error["status"], error["param"]) == (400, "n_predict")


async def test_of_a_model_elsewhere_what_can_not_be_known_is_said(tmp_path: Path) -> None:
    choices = [{"index": index, "text": "a", "finish_reason": "stop"} for index in (0, 1)]
    said = {"choices": choices, "usage": {"prompt_tokens": 2, "completion_tokens": 2}}
    async with (
        far(with_status(200, msgspec.json.encode(said))) as one,
        relaying(tmp_path, one) as running,
    ):
        body = {"model": "far", "prompt": ["Hi", {"prompt_string": "Ho"}], "return_tokens": True}
        answer = await running.client.post("/completion", json={**body, "id_slot": 1})
        assert answer.headers["x-roundhouse-ignored"] == "return_tokens"
        assert one.asked[0].json["prompt"] == ["Hi", "Ho"]
        assert one.asked[0].json["id_slot"] == 1
        for fields, param in (
            ({"prompt": [1, "a"]}, "prompt"),
            ({"logit_bias": {"word": -1}}, "logit_bias"),
            ({"n_probs": 1, "post_sampling_probs": True}, "post_sampling_probs"),
        ):
            error = await refusal(running, **{**body, **fields})
            assert (error["status"], error["param"]) == (400, param)
        around = {"model": "far", "input_prefix": "a", "input_suffix": "b"}
        refused = await running.client.post("/infill", json=around)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input_suffix")
        assert (await running.client.get("/slots?model=far")).status_code == 501
    assert len(one.asked) == 1


# ------------------------------------------------------------------------------------------ filling


@pytest.fixture(scope="module")
async def filling(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("filling")
    path = write(folder / "fim.gguf", Dimensions(fills=True, context=512))
    settings = config(folder)
    models = (*settings.models, ModelConfig(name="fim", path=str(path)))
    settings = type(settings)(server=settings.server, models=models)
    async with serving(settings, folder) as running:
        yield running


async def infill(running: Running, **fields: Any) -> Any:
    body = {"model": "fim", "input_prefix": "def add(", "input_suffix": ")", "n_predict": 4}
    body["ignore_eos"] = True  # its weights are random: now and then it would end at once
    answer = await running.client.post("/infill", json={**body, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_gap_is_filled_between_the_model_s_own_tokens(filling: Running) -> None:
    prefix, suffix, middle, repository, file = FILLING
    answer = await infill(filling, prompt="a, ")
    current = f"{repository}project\n{file}current\n"
    assert answer["prompt"] == f"{current}{prefix}def add(a, {suffix}){middle}"
    extra = [{"filename": "a.py", "text": "x = 1\n"}, {"text": "y"}]
    answer = await infill(filling, input_extra=extra)
    files = f"{repository}project\n{file}a.py\nx = 1\n{file}tmp\ny{file}current\n"
    assert answer["prompt"] == f"{files}{prefix}def add({suffix}){middle}"
    assert answer["tokens_predicted"] == 4


async def test_control_tokens_in_the_code_are_text(filling: Running) -> None:
    answer = await infill(filling, input_prefix=FILLING[2])
    body = {"model": "fim", "content": answer["prompt"], "parse_special": True}
    spelled = (await filling.client.post("/tokenize", json=body)).json()["tokens"]
    assert answer["tokens_evaluated"] > len(spelled)


async def test_what_is_nearest_to_the_gap_stays(filling: Running) -> None:
    answer = await infill(
        filling,
        input_prefix="old " * 2_000 + "near",
        input_suffix="next" + " far" * 2_000,
        input_extra=[{"text": "other " * 2_000}],
    )
    prefix, suffix, middle = FILLING[:3]
    assert "near" + suffix + "next" in answer["prompt"]
    assert answer["prompt"].startswith(prefix)
    assert answer["prompt"].endswith(middle)
    assert answer["tokens_evaluated"] + 4 < 512


async def test_a_model_without_such_tokens_says_so(filling: Running) -> None:
    body = {"model": TINY, "input_prefix": "a", "input_suffix": "b"}
    answer = await filling.client.post("/infill", json=body)
    assert answer.status_code == 501
    assert answer.json()["error"]["type"] == "not_supported_error"
