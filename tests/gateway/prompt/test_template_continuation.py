import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engines.scripted import CHATML
from gateway.prompt import ChatTemplate
from gateway.terms.errors import InvalidRequest
from gateway.terms.request import Message, Thinking
from tests.gateway.prompt.families import (
    FAMILIES,
    SPECIAL,
    WEATHER,
    assistant,
    calling,
    request,
    result,
    system,
    template,
    user,
    weather_in,
)


def text(family: str, *messages: Message, thinking: Thinking | None = None) -> str:
    return template(family).render(request(user("Hi"), *messages, thinking=thinking)).text


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ("llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
        ("mistral", "[INST]Hi[/INST]"),
        ("gemma", "<start_of_turn>model\n"),
        ("deepseek", "<｜Assistant｜></think>"),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>"),
        ("vision", "<|assistant|>"),
        ("reasoner", "<|assistant|>"),
    ],
)
def test_an_answer_goes_on_in_its_own_turn_left_open(family: str, head: str) -> None:
    assert text(family, assistant("Once upon")).endswith(head + "Once upon")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_finished_answer_is_followed_by_another(family: str) -> None:
    asked = (user("Hi"), assistant("Once upon"))
    whole = template(family).render(request(*asked, continue_final=False))
    assert whole.prefix == ""
    assert "Once upon" in whole.text
    assert not whole.text.endswith("Once upon")


@given(
    words=st.text(min_size=1).filter(lambda words: not words.lstrip().startswith(("<", "[", "◁"))),
    family=st.sampled_from(FAMILIES),
)
def test_every_character_of_a_prefix_is_kept(words: str, family: str) -> None:
    rendered = template(family).render(request(user("Hi"), assistant(words)))
    assert rendered.prefix == words
    assert rendered.text.endswith(words)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_last_answer_is_one_not_begun(family: str) -> None:
    assert text(family, assistant("")) == text(family)


@pytest.mark.parametrize(
    ("family", "tail"),
    [
        ("qwen3", "assistant\n<think>\nHm.\n</think>\n\nWell"),
        (
            "harmony",
            "analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Well",
        ),
        ("reasoner", "<|assistant|><think>\nHm.\n</think>\nWell"),
        ("deepseek", "<｜Assistant｜><think>Hm.\n</think>\nWell"),
        ("llama3", "<|end_header_id|>\n\n<think>\nHm.\n</think>\nWell"),
    ],
)
def test_reasoning_before_a_prefix_is_written_as_the_model_would(family: str, tail: str) -> None:
    rendered = template(family).render(
        request(user("Hi"), assistant("<think>\nHm.\n</think>\nWell"))
    )
    assert rendered.text.endswith(tail)
    assert rendered.prefix == "Well"


@pytest.mark.parametrize(
    ("family", "tail"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\nHm, so"),
        ("harmony", "<|channel|>analysis<|message|>Hm, so"),
        ("reasoner", "<|assistant|><think>\nHm, so"),
        ("deepseek", "<｜Assistant｜><think>Hm, so"),
    ],
)
def test_reasoning_that_broke_off_goes_on(family: str, tail: str) -> None:
    for broken in (assistant("<think>\nHm, so"), assistant("", reasoning="Hm, so")):
        rendered = template(family).render(request(user("Hi"), broken))
        assert rendered.text.endswith(tail)
        assert rendered.prefix == ""


def test_reasoning_sent_apart_stands_before_the_prefix() -> None:
    tail = text("qwen3", assistant("Well", reasoning="Hm."))
    assert tail.endswith("<think>\nHm.\n</think>\n\nWell")


def test_reasoning_sent_apart_stays_out_of_templates_that_read_none() -> None:
    assert "Hm." not in text("reasoner", assistant("Well", reasoning="Hm."))


def test_a_prefix_is_never_taken_for_reasoning() -> None:
    opening = (
        "{% for m in messages %}{{ '[' + m.role + ']' }}{{ '<think>' if m.role == 'assistant' }}"
    )
    always = ChatTemplate(opening + "{{ m.content }}{% endfor %}", SPECIAL)
    rendered = always.render(request(user("Hi"), assistant("Well")))
    assert rendered.text.endswith("[assistant]<think>\n\n</think>\n\nWell")


def test_a_template_that_hides_the_last_answer_still_goes_on_from_it() -> None:
    hiding = ChatTemplate(
        "{% for m in messages %}{% if not (loop.last and m.role == 'assistant') %}{{ m.content }}"
        "{% endif %}{% endfor %}{{ '>' if add_generation_prompt }}",
        SPECIAL,
    )
    assert hiding.render(request(user("Hi"), assistant("Well"))).text == "Hi>Well"


def test_a_prefix_after_a_tools_result() -> None:
    call = weather_in("Ulm", "call_1")
    asked = request(
        user("?"), calling(call), result("Sun", call.id), assistant("It is"), tools=(WEATHER,)
    )
    for family in FAMILIES:
        rendered = template(family).render(asked).text
        assert rendered.endswith("It is")
        assert "Sun" in rendered


def test_a_prefix_behind_another_answer_of_a_strict_template() -> None:
    tail = text("gemma", assistant("One."), assistant("Two"))
    assert tail.endswith("<start_of_turn>model\nOne.\n\nTwo")


@pytest.mark.parametrize(
    "messages",
    [(), (user("Hi"),), (system("S"),), (user("Hi"), calling(weather_in("Ulm", "call_1")))],
)
def test_nothing_to_continue_is_the_clients_error(messages: tuple[Message, ...]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        template("qwen3").render(request(*messages, continue_final=True))
    assert caught.value.param == "messages"


def test_the_default_template_leaves_the_turn_open() -> None:
    rendered = ChatTemplate(CHATML, SPECIAL).render(request(user("Hi"), assistant("Once")))
    assert rendered.text.endswith("<|im_start|>assistant\nOnce")
