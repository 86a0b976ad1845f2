"""Reasoning of earlier turns stays in the prompt, or doesn't: as the template does by itself, as
the model's `keep_reasoning` says, or as the request does.
"""

from typing import Any, Literal

import pytest
from msgspec.structs import replace

from gateway.prompt import ChatTemplate, with_reasoning
from gateway.terms.request import Message
from tests.gateway.prompt.families import SPECIAL, assistant, request, user

TURN = (
    "{%- for message in messages %}{%- if message.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{%- if message.reasoning_content and (KEPT or loop.index0 > ns.last) %}"
    "<think>{{ message.reasoning_content }}</think>{%- endif %}"
    "{{ message.content }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)
LAST = "{%- set ns = namespace(last=0) %}"
TEMPLATES = {  # and whether reasoning stays by itself
    "qwen3.5": (LAST + TURN.replace("KEPT", "preserve_thinking"), False),
    "glm": (
        LAST + TURN.replace("KEPT", "(clear_thinking is defined and not clear_thinking)"),
        False,
    ),
    "always": (LAST + TURN.replace("KEPT", "true"), True),
}
THOUGHT = "Bears are large."


def shown(name: str, keep: Literal["auto"] | bool, variables: dict[str, Any] | None = None) -> bool:
    template = ChatTemplate(TEMPLATES[name][0], SPECIAL)
    said: Message = replace(assistant("They eat."), reasoning=THOUGHT)
    asked = request(user("Bears?"), said, user("And ants?"))
    asked = replace(asked, template_variables=variables or {})
    return THOUGHT in template.render(with_reasoning(asked, template.traits, keep=keep)).text


@pytest.mark.parametrize("name", TEMPLATES)
def test_by_itself_a_template_does_as_its_makers_have_it(name: str) -> None:
    assert shown(name, "auto") is TEMPLATES[name][1]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("keep", [True, False])
def test_a_model_is_configured_to_keep_it_or_not(name: str, keep: bool) -> None:
    assert shown(name, keep) is keep


@pytest.mark.parametrize("keep", [True, False])
def test_a_request_comes_before_that(keep: bool) -> None:
    assert shown("qwen3.5", keep, {"preserve_thinking": not keep}) is not keep
    assert shown("glm", keep, {"clear_thinking": keep}) is not keep


def test_reasoning_of_the_last_turn_stays() -> None:
    template = ChatTemplate(TEMPLATES["qwen3.5"][0], SPECIAL)
    said = replace(assistant("They eat."), reasoning=THOUGHT)
    asked = with_reasoning(request(user("Bears?"), said), template.traits, keep=False)
    assert THOUGHT in template.render(asked).text
