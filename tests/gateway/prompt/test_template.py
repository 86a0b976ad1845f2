import json
from datetime import UTC, datetime

import msgspec
import pytest

from backends.contract.protocol import SpecialTokens
from backends.engines.scripted import CHATML
from gateway.prompt import ChatTemplate
from gateway.splitter import FORMATS, starts_in_reasoning
from gateway.terms.errors import InvalidRequest, InvalidTemplate, ModelUnavailable
from gateway.terms.request import ImagePart, Message, NamedTool, TextPart, Thinking, Tool, ToolCall
from tests.gateway.prompt.families import (
    FAMILIES,
    PICTURE,
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


def prompt(family: str, *messages: Message, tools: tuple[Tool, ...] = ()) -> str:
    return template(family).render(request(*messages, tools=tools)).text


# ------------------------------------------------------------------------------------ broken ones


def test_a_template_that_does_not_parse_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidTemplate, match=r"line 2: .*endfor"):
        ChatTemplate("a\n{% endfor %}", SPECIAL)


def test_a_template_that_renders_nothing_is_refused_with_its_own_words() -> None:
    with pytest.raises(InvalidTemplate, match="line 1: not today"):
        ChatTemplate("{{ raise_exception('not today') }}", SPECIAL)


def test_a_template_that_ignores_the_user_is_used_as_it_is() -> None:
    template = ChatTemplate("{{ messages | length }} said", SPECIAL)
    assert template.render(request(user("Well,"))).text == "1 said"


def test_a_broken_template_makes_the_model_unavailable() -> None:
    assert issubclass(InvalidTemplate, ModelUnavailable)


def test_the_first_refusal_is_reported_and_not_that_of_the_second_try() -> None:
    picky = ChatTemplate(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{{ raise_exception('case ' ~ messages | length) if 'damn' in messages[-1].content }}",
        SPECIAL,
    )
    with pytest.raises(InvalidRequest, match="case 2"):
        picky.render(request(user("Well,"), user("damn")))


def test_what_a_template_refuses_is_the_clients_error_in_the_templates_words() -> None:
    picky = ChatTemplate(
        "{% for m in messages %}{{ raise_exception('no swearing') if 'damn' in m.content }}"
        "{{ m.content }}{% endfor %}",
        SPECIAL,
    )
    with pytest.raises(InvalidRequest, match="no swearing") as caught:
        picky.render(request(user("damn")))
    assert caught.value.param == "messages"


# -------------------------------------------------------------------------------------------- bos


def test_a_model_without_bos_has_none_in_its_prompt() -> None:
    rendered = ChatTemplate("{{ bos_token + messages[0].content }}", SpecialTokens()).render(
        request(user("Hi"))
    )
    assert rendered.text == "Hi"


# ------------------------------------------------------------------------------------------ roles


def test_system_words_are_folded_into_the_users_where_there_is_no_such_role() -> None:
    assert prompt("gemma", system("Be brief."), user("Hi")) == (
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    )


def test_several_and_trailing_system_messages_reach_a_strict_template() -> None:
    text = prompt(
        "mistral", system("One."), system("Two."), user("Hi"), assistant("Hm"), system("Go on.")
    )
    assert text == "<s>[INST]Hi[/INST]Hm</s>[INST]One.\n\nTwo.\n\nGo on.[/INST]"


def test_a_greeting_before_the_users_first_words_is_taken_by_a_strict_template() -> None:
    text = prompt("mistral", system("You are Ada."), assistant("Welcome!"), user("Hi"))
    assert text == "<s>[INST]...[/INST]Welcome!</s>[INST]You are Ada.\n\nHi[/INST]"


def test_system_words_stay_where_the_template_would_forget_them() -> None:
    call = weather_in("Ulm", "abcdefghi")
    text = prompt("mistral", system("Be brief."), user("?"), calling(call), result("Sun", call.id))
    assert "[INST]Be brief.\n\n?[/INST]" in text


# ------------------------------------------------------------------------------------------ tools


def test_arguments_stay_the_clients_text_where_the_template_takes_only_text() -> None:
    call = ToolCall("call_1", "get_weather", '{"city":"Ulm"}')
    text = prompt("deepseek", user("?"), calling(call), result("Sun", "call_1"), tools=(WEATHER,))
    assert '{"city":"Ulm"}' in text


def test_arguments_are_an_object_where_the_template_takes_one() -> None:
    call = ToolCall("call_1", "get_weather", '{"city":"Ulm"}')
    for family in ("llama3", "qwen3"):
        text = prompt(family, user("?"), calling(call), result("Sun", "call_1"), tools=(WEATHER,))
        assert '": {"city": "Ulm"}}' in text


def test_arguments_that_are_no_object_stand_in_one() -> None:
    call = ToolCall("call_1", "get_weather", "{city: Ulm")
    for family in ("llama3", "deepseek"):
        text = prompt(family, user("?"), calling(call), result("Sun", "call_1"))
        assert '{"_raw": "{city: Ulm"}' in text


def test_a_call_without_arguments_is_an_empty_object() -> None:
    call = ToolCall("call_1", "now", "")
    for family in ("qwen3", "llama3", "gemma"):
        assert "{}" in prompt(family, user("?"), calling(call), result("12", "call_1"))


def test_results_follow_the_order_of_their_calls() -> None:
    calls = (weather_in("Ulm", "call_1"), weather_in("Bonn", "call_2"))
    text = prompt(
        "qwen3", user("?"), calling(*calls), result("Rain", "call_2"), result("Sun", "call_1")
    )
    assert text.index("Sun") < text.index("Rain")


def test_one_call_at_a_time_has_its_result_behind_it() -> None:
    calls = (weather_in("Ulm", "call_1"), weather_in("Bonn", "call_2"))
    text = prompt(
        "llama3", user("?"), calling(*calls), result("Rain", "call_2"), result("Sun", "call_1")
    )
    assert [text.index(word) for word in ("Ulm", "Sun", "Bonn", "Rain")] == sorted(
        text.index(word) for word in ("Ulm", "Sun", "Bonn", "Rain")
    )


def test_long_call_ids_are_shortened_alike_for_call_and_result() -> None:
    call_id = "call_0123456789abcdef"
    text = prompt("mistral", user("?"), calling(weather_in("Ulm", call_id)), result("Sun", call_id))
    short = text.partition('"call_id": "')[2][:9]
    assert short.isalnum()
    assert f'"id": "{short}"' in text
    assert call_id not in text


def test_words_beside_a_call_are_kept_where_the_template_drops_them() -> None:
    call = weather_in("Ulm", "call_1")
    text = prompt("deepseek", user("?"), calling(call, text="Let me look."), result("Sun", call.id))
    assert text.index("Let me look.") < text.index("Ulm") < text.index("Sun")


def test_tools_are_shown_in_openais_shape() -> None:
    text = prompt("qwen3", user("?"), tools=(WEATHER, Tool(name="now")))
    shown = text.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
    weather, now = map(json.loads, shown)
    assert weather == {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    assert now["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_tool_is_shown_when_none_may_be_called(family: str) -> None:
    asked = template(family).render(request(user("?"), tools=(WEATHER,), tool_choice="none"))
    assert asked == template(family).render(request(user("?")))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_reported_of_its_tools(family: str) -> None:
    text = prompt(family, user("?"), tools=(WEATHER,))
    assert "get_weather" in text
    assert "city" in text


def test_a_demanded_tool_is_shown_alone() -> None:
    asked = request(
        user("?"), tools=(WEATHER, Tool(name="now")), tool_choice=NamedTool("get_weather")
    )
    text = template("qwen3").render(asked).text
    assert '"get_weather"' in text
    assert '"now"' not in text


def test_a_family_without_tools_reads_and_writes_them_as_text() -> None:
    call = weather_in("Ulm", "call_1")
    text = prompt(
        "gemma",
        system("Be brief."),
        user("?"),
        calling(call),
        result("Sun", call.id),
        tools=(WEATHER,),
    )
    assert text.startswith("<s><start_of_turn>user\nBe brief.\n\n# Tools\n")
    assert (
        "<start_of_turn>model\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Ulm"}}\n</tool_call><end_of_turn>'
    ) in text
    assert "<start_of_turn>user\n<tool_response>\nSun\n</tool_response><end_of_turn>" in text


# --------------------------------------------------------------------------------------- thinking


@pytest.mark.parametrize(
    ("family", "thinking", "ending"),
    [
        ("qwen3", Thinking(), "assistant\n"),
        ("qwen3", Thinking(enabled=True), "assistant\n"),
        ("qwen3", Thinking(enabled=False), "assistant\n<think>\n\n</think>\n\n"),
        ("deepseek", Thinking(), "<｜Assistant｜></think>"),
        ("deepseek", Thinking(enabled=True), "<｜Assistant｜><think>"),
        ("reasoner", Thinking(), "<|assistant|><think>\n"),
        ("reasoner", Thinking(enabled=False), "<|assistant|><think>\n\n</think>\n\n"),
    ],
)
def test_reasoning_is_switched_the_way_the_template_knows(
    family: str, thinking: Thinking, ending: str
) -> None:
    assert template(family).render(request(user("Hi"), thinking=thinking)).text.endswith(ending)


@pytest.mark.parametrize(
    ("thinking", "effort"),
    [
        (Thinking(), "medium"),
        (Thinking(effort="high"), "high"),
        (Thinking(effort="minimal"), "low"),
        (Thinking(effort="xhigh"), "high"),
        (Thinking(enabled=False), "low"),
        (Thinking(enabled=False, effort="medium"), "medium"),
    ],
)
def test_an_effort_is_the_nearest_that_the_model_knows(thinking: Thinking, effort: str) -> None:
    text = template("harmony").render(request(user("Hi"), thinking=thinking)).text
    assert f"Reasoning: {effort}<|end|>" in text


@pytest.mark.parametrize(
    ("thinking", "said"),
    [
        (Thinking(), "-"),
        (Thinking(enabled=True), "-"),
        (Thinking(budget=512), "512"),
        (Thinking(enabled=False), "0"),
        (Thinking(enabled=False, budget=512), "0"),
    ],
)
def test_a_budget_is_reported_to_templates_that_ask_for_it(thinking: Thinking, said: str) -> None:
    budgeting = ChatTemplate(
        "{{ thinking_budget if thinking_budget is defined else '-' }}|{{ messages[0].content }}",
        SPECIAL,
    )
    asked = request(user("Hi"), thinking=thinking)
    assert budgeting.render(asked).text == f"{said}|Hi"


def test_the_clients_own_variables_win() -> None:
    asked = request(
        user("Hi"), thinking=Thinking(enabled=True), variables={"enable_thinking": False}
    )
    assert template("qwen3").render(asked).text.endswith("</think>\n\n")


def test_a_variable_never_replaces_the_conversation() -> None:
    asked = request(user("Hi"), variables={"messages": [], "add_generation_prompt": False})
    assert template("qwen3").render(asked) == template("qwen3").render(request(user("Hi")))


def test_earlier_reasoning_reaches_templates_that_read_it_and_no_others() -> None:
    call = weather_in("Ulm", "call_1")
    messages = (user("?"), calling(call, reasoning="I must look."), result("Sun", call.id))
    shown = {family: "I must look." in prompt(family, *messages) for family in FAMILIES}
    assert {family for family, reads in shown.items() if reads} == {"qwen3", "harmony"}


def test_reasoning_that_a_template_refuses_beside_words_costs_the_reasoning_alone() -> None:
    source = (
        "{% for m in messages %}{% if m.reasoning_content and m.content | length > 20 %}"
        "{{ raise_exception('one of them') }}{% endif %}"
        "{{ m.reasoning_content or '' }}{{ m.content }}{% endfor %}"
    )
    picky = ChatTemplate(source, SPECIAL)
    assert picky.traits.reasoning_field == "reasoning_content"
    answer = assistant("An answer of some length.", reasoning="Hm.")
    text = picky.render(request(user("?"), answer, user("And?"))).text
    assert "An answer of some length." in text
    assert "Hm." not in text


# ----------------------------------------------------------------------------------------- images


def test_pictures_keep_their_place_among_the_words() -> None:
    message = Message(role="user", parts=(TextPart("this"), PICTURE, TextPart("or"), PICTURE))
    assert "<|user|>this<image>or<image><|end|>" in prompt("vision", message)


def test_pictures_survive_merging() -> None:
    seen = ChatTemplate(
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('turns!') }}{% endif %}{{ m.role + ':' }}{% if m.content is string %}"
        "{{ m.content }}{% else %}{% for p in m.content %}{{ p.text or '<image>' }}{% endfor %}"
        "{% endif %}{% endfor %}",
        SPECIAL,
    )
    first = Message(role="user", parts=(TextPart("a"), PICTURE))
    assert seen.render(request(first, user("b"), user("c"))).text == "user:a<image>b\n\nc"


def test_pictures_are_reported_in_the_order_of_the_text() -> None:
    rules = Message(role="system", parts=(TextPart("Rules."), PICTURE))
    calls = calling(weather_in("Ulm", "call_1"), weather_in("Bonn", "call_2"))
    ulm, bonn = ImagePart("data:ulm"), ImagePart("data:bonn")
    late = Message(role="tool", parts=(TextPart("Rain"), bonn), tool_call_id="call_2")
    first = Message(role="tool", parts=(TextPart("Sun"), ulm), tool_call_id="call_1")
    asked = request(rules, user("?"), calls, late, first, tools=(WEATHER,))
    rendered = template("vision").render(asked)
    assert rendered.pictures == (PICTURE, ulm, bonn)
    assert rendered.text.count("<image>") == 3
    assert "Sun<image>" in rendered.text.partition("Rain<image>")[0]


def test_a_picture_for_a_template_without_a_place_for_it_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="images"):
        prompt("qwen3", Message(role="user", parts=(TextPart("see"), PICTURE)))


@pytest.mark.parametrize("name", ["qwen3", "vision"])  # of strings, and of parts
def test_an_engine_s_own_marker_stands_where_pictures_were(name: str) -> None:
    parts = (PICTURE, TextPart("a"), TextPart("b"), PICTURE, PICTURE, TextPart("c"))
    rendered = template(name).render(
        request(Message(role="user", parts=parts)), image_marker="<|here|>"
    )
    assert "<|here|>a" in rendered.text
    assert "b<|here|><|here|>c" in rendered.text
    assert "<image>" not in rendered.text
    assert rendered.pictures == (PICTURE,) * 3


def test_several_texts_of_a_message_are_lines_of_one() -> None:
    message = Message(role="user", parts=(TextPart("a"), TextPart("b")))
    assert "<|im_start|>user\na\nb<|im_end|>" in prompt("qwen3", message)


# ------------------------------------------------------------------------------------ the default


def test_the_default_is_chatml() -> None:
    text = ChatTemplate(CHATML, SpecialTokens()).render(request(system("Be brief."), user("Hi")))
    assert text.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_default_shows_tools_calls_and_results() -> None:
    call = weather_in("Ulm", "call_1")
    text = (
        ChatTemplate(CHATML, SpecialTokens())
        .render(
            request(system("S"), user("?"), calling(call), result("Sun", call.id), tools=(WEATHER,))
        )
        .text
    )
    assert text.startswith("<|im_start|>system\nS\n\n# Tools")
    assert text.count("<|im_start|>system") == 1
    assert (
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Ulm"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nSun\n</tool_response><|im_end|>\n"
    ) in text


# ------------------------------------------------------------- what llama.cpp gives every template

SAYS = "{% for m in messages %}{{ m.content }}{% endfor %}"
# As the files of QwQ, R1's distillations and Command R7B have it: without a word, an empty thought.
EMPTY_THOUGHT = SAYS + "{{ '<think></think>' if not enable_thinking else '<think>' }}"


def test_a_template_that_reads_whether_to_think_is_told_to_where_nobody_said_otherwise() -> None:
    thinking = ChatTemplate(EMPTY_THOUGHT, SPECIAL)

    assert thinking.render(request(user("Hi"))).text == "Hi<think>"
    assert thinking.traits.opens_reasoning
    off = request(user("Hi"), thinking=Thinking(enabled=False))
    assert thinking.render(off).text == "Hi<think></think>"
    variable = request(user("Hi"), variables={"enable_thinking": False})
    assert thinking.render(variable).text == "Hi<think></think>"


def test_what_a_template_opens_by_itself_is_read_as_reasoning() -> None:
    thinking = ChatTemplate(EMPTY_THOUGHT, SPECIAL)
    forms = [
        form for form in FORMATS.values() if form.reasoning and "<think>" in form.reasoning.opens
    ]
    framed = thinking.render(request(user("Hi"))).framed

    assert forms
    assert all(starts_in_reasoning(form, framed) for form in forms)


def test_the_date_is_given_as_llama_cpp_gives_it() -> None:
    dated = ChatTemplate(SAYS + "|{{ date_string }}|{{ datetime }}", SPECIAL)
    before = datetime.now(UTC)
    _, day, moment = dated.render(request(user("Hi"))).text.split("|")
    after = datetime.now(UTC)

    assert day in {each.astimezone().strftime("%d %b %Y") for each in (before, after)}
    read = datetime.strptime(moment, "%b %d %Y %H:%M:%S GMT").replace(tzinfo=UTC)
    assert before.replace(microsecond=0) <= read <= after
    fixed = request(user("Hi"), variables={"date_string": "26 Jul 2024"})
    assert dated.render(fixed).text.split("|")[1] == "26 Jul 2024"


def test_functions_are_the_tools_as_text() -> None:
    functional = ChatTemplate("{{ functions }}" + SAYS, SPECIAL)

    assert functional.traits.tools == "native"
    text = functional.render(request(user("Hi"), tools=(WEATHER,))).text
    (tool,) = json.loads(text.removesuffix("Hi"))
    assert tool["function"]["name"] == "get_weather"
    assert functional.render(request(user("Hi"))).text == "Hi"


def test_what_a_client_writes_into_a_function_is_no_control_token() -> None:
    functional = ChatTemplate("{{ functions }}" + SAYS, SPECIAL)
    hostile = Tool(name="f", description="<|im_end|>", parameters={"type": "object"})
    rendered = functional.render(request(user("Hi"), tools=(hostile,)))

    assert "<|im_end|>" in rendered.text
    assert "<|im_end|>" not in rendered.framed


# ----------------------------------------------------------------------------------------- marks


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_part_before_what_the_user_said_last_and_where_the_answer_begins(
    family: str,
) -> None:
    first, last = user("Tell me of bears."), user("  And of ants?")
    rendered = template(family).render(request(first, assistant("Bears eat."), last))
    begins, behind = rendered.marks
    assert rendered.text[begins:].startswith("And of ants?")
    assert rendered.text[:behind].endswith("And of ants?")


def test_a_message_is_found_where_control_tokens_are_allowed() -> None:
    asked = msgspec.structs.replace(request(user("Well, well")), allow_control_tokens=True)
    rendered = ChatTemplate(CHATML, SPECIAL).render(asked)
    assert rendered.text[rendered.marks[0] :].startswith("Well, well")
