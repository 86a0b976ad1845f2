import pytest

from backends.engines.scripted import CHATML
from gateway.prompt import ChatTemplate, TemplateTraits
from gateway.prompt.conversation import ThinkingSwitch
from tests.gateway.prompt.families import SPECIAL, source, template


@pytest.mark.parametrize(
    ("family", "traits"),
    [
        (
            "qwen3",
            TemplateTraits(
                arguments="object",
                reasoning_field="reasoning_content",
                thinking_switches=(ThinkingSwitch("enable_thinking", on=True, off=False),),
            ),
        ),
        (
            "llama3",
            TemplateTraits(
                assistant_opens=False,
                arguments="object",
                calls_with_text=False,
                parallel_calls=False,
            ),
        ),
        (
            "mistral",
            TemplateTraits(
                system="leading",
                system_fades=True,
                alternates=True,
                assistant_opens=False,
                arguments="object",
                calls_with_text=False,
                short_call_ids=True,
            ),
        ),
        (
            "gemma",
            TemplateTraits(
                system="none",
                alternates=True,
                assistant_opens=False,
                tools="described",
                calls="described",
                results="described",
            ),
        ),
        (
            "deepseek",
            TemplateTraits(
                call_content="null",
                calls_with_text=False,
                thinking_switches=(ThinkingSwitch("thinking", on=True, off=False),),
            ),
        ),
        (
            "harmony",
            TemplateTraits(
                system="leading",
                arguments="object",
                calls_with_text=False,
                parallel_calls=False,
                reasoning_field="thinking",
                thinking_switches=(ThinkingSwitch("reasoning_effort", on=None, off="low"),),
                efforts=("low", "medium", "high"),
            ),
        ),
        (
            "vision",
            TemplateTraits(
                content="parts",
                images=True,
                tools="described",
                calls="described",
                results="described",
            ),
        ),
        (
            "reasoner",
            TemplateTraits(
                tools="described", calls="described", results="described", opens_reasoning=True
            ),
        ),
    ],
)
def test_a_template_shows_what_it_can_do(family: str, traits: TemplateTraits) -> None:
    assert template(family).traits == traits


def test_the_default_template_can_do_everything_but_reason() -> None:
    traits = ChatTemplate(CHATML, SPECIAL).traits
    assert traits == TemplateTraits()
    assert not traits.reasoning


@pytest.mark.parametrize("family", ["qwen3", "deepseek", "harmony", "reasoner"])
def test_any_sign_of_reasoning_counts(family: str) -> None:
    assert template(family).traits.reasoning


def test_tools_that_are_run_over_unasked_are_an_empty_list() -> None:
    unguarded = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ messages[-1].content }}"
    assert ChatTemplate(unguarded, SPECIAL).traits.no_tools == "empty"


ECHO = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("head", "switch"),
    [
        (
            "{{ 'deep' if thinking_mode == 'enabled' }}",
            ThinkingSwitch("thinking_mode", on="enabled", off="disabled"),
        ),
        (
            "{{ 'quick' if thinking_budget is defined and thinking_budget == 0 }}",
            ThinkingSwitch("thinking_budget", on=None, off=0),
        ),
        (
            """{{ (reasoning_effort or 'no_think') if (reasoning_effort or 'high') == 'high'
            or reasoning_effort == 'no_think' else raise_exception('unknown') }}""",
            ThinkingSwitch("reasoning_effort", on="high", off="no_think"),
        ),
    ],
)
def test_a_switch_is_found_by_what_it_does(head: str, switch: ThinkingSwitch) -> None:
    traits = ChatTemplate(head + ECHO, SPECIAL).traits
    assert traits.thinking_switches == (switch,)


def test_a_variable_that_does_nothing_is_no_switch() -> None:
    traits = ChatTemplate("{% set unused = enable_thinking %}" + ECHO, SPECIAL).traits
    assert traits.thinking_switches == ()


def test_efforts_are_those_that_the_template_takes() -> None:
    head = "{% if reasoning_effort not in ['low', 'high'] %}{{ raise_exception('!') if "
    head += "reasoning_effort is defined }}{% endif %}{{ reasoning_effort or 0 }}"
    assert ChatTemplate(head + ECHO, SPECIAL).traits.efforts == ("low", "high")


@pytest.mark.parametrize(
    ("head", "efforts"),
    [
        ("{% set unused = reasoning_effort %}", 0),
        ("{{ 'deep' if reasoning_effort == 'max' }}", 7),
    ],
)
def test_an_effort_that_lessens_nothing_is_no_switch(head: str, efforts: int) -> None:
    traits = ChatTemplate(head + ECHO, SPECIAL).traits
    assert len(traits.efforts) == efforts
    assert traits.thinking_switches == ()


def test_reading_a_template_again_finds_the_same() -> None:
    assert ChatTemplate(source("qwen3"), SPECIAL).traits == template("qwen3").traits
