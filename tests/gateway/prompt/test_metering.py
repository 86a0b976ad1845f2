"""Whatever a template does is paid for: it ends soon, and has made little."""

import resource
from pathlib import Path
from typing import Any

import pytest
from jinja2.filters import FILTERS

from backends.contract.protocol import SpecialTokens
from gateway.prompt import ChatTemplate
from gateway.prompt.environment import ENVIRONMENT, CompiledTemplate, TemplateRefused
from gateway.prompt.metering import AT_ONCE, TEXT_METHODS, Allowance, LimitExceeded, Meter
from gateway.prompt.template import RenderedPrompt
from gateway.terms.errors import InvalidRequest, InvalidTemplate
from gateway.terms.request import ChatRequest, Message, TextPart
from gateway.terms.tasks import Abandoned
from tests.every import for_every

SMALL = Allowance(steps=300_000, size=16 << 20, seconds=2.0)

# One a line; comments stand in Jinja's own marks.
HOSTILE = [
    line
    for line in Path(__file__).with_name("hostile_templates.txt").read_text().splitlines()
    if not line.startswith("{#")
]


@pytest.mark.slow
@for_every("source", HOSTILE)
def test_a_template_that_grows_or_never_ends_is_stopped(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((TemplateRefused, LimitExceeded)):
        CompiledTemplate(source).render({}, Meter(SMALL))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert grown < 100 << 10


@for_every("name", sorted(set(dir(str)) - set(TEXT_METHODS)))
def test_a_method_nobody_metered_is_out_of_reach(name: str) -> None:
    if name in {"format", "format_map"}:
        return  # metered where they are looked up
    with pytest.raises(TemplateRefused):
        CompiledTemplate(f"{{{{ 'x'.{name}() }}}}").render({})


def test_every_filter_of_jinja_s_is_there() -> None:
    assert {*filter(str.isidentifier, ENVIRONMENT.filters)} == FILTERS.keys()


def test_a_source_as_long_as_no_template_is_refused() -> None:
    with pytest.raises(TemplateRefused):
        CompiledTemplate("x" * (1 << 20))


def test_escaping_as_for_pages_is_refused() -> None:
    with pytest.raises(TemplateRefused):
        CompiledTemplate("{% autoescape true %}{{ x }}{% endautoescape %}")


def chat(*texts: str) -> ChatRequest:
    return ChatRequest(
        model="", messages=tuple(Message(role="user", parts=(TextPart(text),)) for text in texts)
    )


EVERY_MESSAGE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def rendered(source: str, request: ChatRequest, **named: Any) -> RenderedPrompt:
    return ChatTemplate(source, SpecialTokens(), "the-model").render(request, **named)


def test_a_limit_names_the_template() -> None:
    grown = "{% if 'now' in messages[0].content %}{{ 'x' * 999999999 }}{% endif %}"
    with pytest.raises(InvalidRequest, match=r"template of 'the-model' was stopped.*256 MiB"):
        rendered(EVERY_MESSAGE + grown, chat("now"))


def test_a_template_that_never_ends_is_found_when_it_is_read() -> None:
    loop = "{% for a in range(99999) %}"
    endless = f"{EVERY_MESSAGE}{loop}{loop}{{% endfor %}}{{% endfor %}}"
    with pytest.raises(InvalidTemplate, match=r"template of 'the-model' was stopped.*steps"):
        ChatTemplate(endless, SpecialTokens(), "the-model")


def test_many_messages_are_too_much_to_render_at_once_and_not_too_much_at_all() -> None:
    request = chat(*["Hello."] * 20_000)
    with pytest.raises(LimitExceeded):
        rendered(EVERY_MESSAGE, request, allowance=AT_ONCE)
    assert rendered(EVERY_MESSAGE, request).text == "Hello." * 20_000


def test_a_rendering_nobody_waits_for_stops() -> None:
    with pytest.raises(Abandoned):
        rendered(EVERY_MESSAGE, chat(*["Hello."] * 20_000), wanted=lambda: False)
