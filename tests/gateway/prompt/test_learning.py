"""What a template writes is read back: by the listed format, else by one learned from it."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.contract.protocol import SpecialTokens
from gateway.prompt.analysis import Trial
from gateway.prompt.environment import CompiledTemplate
from gateway.prompt.learning import TOOLS, proven, turns_of
from gateway.prompt.metering import ANALYSIS, Meter
from gateway.prompt.template import ChatTemplate
from gateway.splitter import FORMATS, Recognised, Splitter, recognise
from gateway.splitter.recognition import REASONING
from gateway.terms.request import Tool
from tests.every import for_every
from tests.gateway.prompt import corpus
from tests.gateway.prompt.new_families import TEMPLATES, UNREAD
from tests.gateway.splitter.corpus import join
from tests.gateway.splitter.grammars import control_of, grammar_of, refused, vocabulary

SPECIAL = SpecialTokens(bos="<s>", eos="</s>")
# Written in ways for which the table's syntaxes have no words, or that no reader takes back whole.
UNLEARNT = {
    "Apriel-1.6-15b-Thinker-fixed",  # its history lacks what opens a thought
    "Kimi-K3",
    "LFM2.5-8B-A1B",  # it writes 'it's'
    "MiniMax-M3",
    "meetkai-functionary-medium-v3.2",
    "muse-glimmer",
    "openai-gpt-oss-120b",
}
LISTED_IN_PART = {"Apriel-1.6-15b-Thinker-fixed": 19, "LFM2.5-8B-A1B": 19}


@cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, SPECIAL)


def untold(source: str) -> Recognised:
    """What is known with no rule: markers of thoughts that are spelled in the template."""
    reasoning = next((markers for markers in REASONING if markers.open in source), None)
    return Recognised(replace(FORMATS["plain"], reasoning=reasoning), "no rule")


@pytest.mark.slow
@for_every("name", corpus.templates, str)
def test_without_a_rule_a_format_is_learned(name: str) -> None:
    source = corpus.templates()[name]
    guess = untold(source)
    found = compiled(source).proven(guess)
    whole = found == guess or found.why.endswith(_all_of(found.why))
    assert whole == (name not in UNLEARNT)


@pytest.mark.slow
def test_most_formats_are_learned_without_a_rule() -> None:
    """Of the 70 templates that the pinned release brings, 63."""
    assert len(UNLEARNT) * 10 <= len(corpus.templates())
    assert corpus.templates().keys() >= UNLEARNT


def _all_of(why: str) -> str:
    """The end of a reason that says that all was read back, with this reason's number."""
    number = why.partition(" of the ")[2].partition(" ")[0]
    return f"; {number} of the {number} answers that it writes are read back"


@pytest.mark.slow
@for_every("name", corpus.templates, str)
def test_the_listed_format_stays_where_it_reads_its_template(name: str) -> None:
    source = corpus.templates()[name]
    listed = recognise(template=source)
    found = compiled(source).proven(listed)
    assert found.format == listed.format
    assert found.why.startswith(listed.why)
    if read := LISTED_IN_PART.get(name):
        assert found.why.endswith(f"; {read} of the 20 answers that it writes are read back")


class CountingTrial(Trial):
    """It knows how often it renders."""

    renders = 0

    def render(self, *given: Any, **more: Any) -> str:
        self.renders += 1
        return super().render(*given, **more)


@pytest.mark.slow
@for_every("name", corpus.templates, str)
def test_a_handful_of_renderings_prove_a_format(name: str) -> None:
    source = corpus.templates()[name]
    trial = CountingTrial(CompiledTemplate(source), {"bos_token": SPECIAL.bos}, Meter(ANALYSIS))
    proven(trial, compiled(source).traits, untold(source))
    assert 0 < trial.renders <= 5


def test_a_template_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is swapped in again, or stands in the configuration twice, costs nothing."""
    source, rendered = TEMPLATES["dots"] + "{# of this test #}", []
    render = CompiledTemplate.render

    def counted(self: CompiledTemplate, *given: Any) -> str:
        rendered.append(self)
        return render(self, *given)

    monkeypatch.setattr(CompiledTemplate, "render", counted)
    first = ChatTemplate(source, SPECIAL).proven(recognise(template=source))
    count = len(rendered)
    assert ChatTemplate(source, SPECIAL, "another").proven(recognise(template=source)) == first
    assert len(rendered) == count > 0


LISTED = {"Beam": "beam", "Inkling": "inkling"}  # headers of messages can't be learned


@pytest.mark.parametrize("family", LISTED)
def test_a_listed_family_reads_all_that_its_template_writes(family: str) -> None:
    listed = recognise(template=TEMPLATES[family])
    assert listed.format.id == LISTED[family]
    assert compiled(TEMPLATES[family]).proven(listed) is listed


@for_every("family", sorted(TEMPLATES.keys() - LISTED.keys()))
def test_a_family_that_is_not_listed_is_learned(family: str) -> None:
    source = TEMPLATES[family]
    found = compiled(source).proven(recognise(template=source))
    assert found.format.id == "learned"
    assert found.format.reasoning is not None
    assert found.why == (
        "learned from the chat template; 20 of the 20 answers that it writes are read back"
    )


WRITTEN = {
    "GigaChat 3.5": 'Hm.</think><｜GCML｜tool_calls><｜GCML｜invoke name="f"><｜GCML｜parameter '
    'name="k" string="false">[1]</｜GCML｜parameter></｜GCML｜invoke></｜GCML｜tool_calls>',
    "IQuest Q1": "Hm.</think><iquest_tool_call>f\n<arg_key>k</arg_key> <arg_value>[1]</arg_value>\n"
    "</iquest_tool_call>",
    "dots": '<think>Hm.</think><dots_function_call><invoke name=f><parameter name="k">[1]'
    "</parameter></invoke></dots_function_call>",
    "K2 Horizon": "Hm.</ifm|think><ifm|tool_call>f<ifm|arg_key>k</ifm|arg_key>"
    "<ifm|arg_value>[1]</ifm|arg_value></ifm|tool_call>",
}  # fmt: skip


@pytest.mark.parametrize("family", WRITTEN)
def test_a_learned_format_reads_a_model(family: str) -> None:
    """As the models write it, which is not quite as their templates do."""
    source = TEMPLATES[family]
    found = compiled(source).proven(recognise(template=source)).format
    parameters = {"type": "object", "properties": {"k": {"type": "array"}}}
    tools = [Tool(name="f", parameters=parameters)]
    opened = WRITTEN[family].startswith("Hm.")
    splitter = Splitter(found, in_reasoning=opened, tools=tools)
    events = [event for character in WRITTEN[family] for event in splitter.feed(character)]
    answer = join([*events, *splitter.finish("stop")])
    assert (answer.reasoning, answer.content) == ("Hm.", "")
    assert (*answer.names, *map(json.loads, answer.arguments)) == ("f", {"k": [1]})


@pytest.mark.parametrize(
    "arguments",
    [
        "{% for k, v in c.function.arguments.items() %}{{ v }} IS {{ k }};{% endfor %}",
        "{{ c.function.arguments }}\n",  # read back, but CALL may be a word of an answer
    ],
)
def test_less_is_claimed_where_calls_cannot_be_told(arguments: str) -> None:
    call = f"CALL {{{{ c.function.name }}}} {arguments}"
    calls = f"{{% for c in m.tool_calls %}}{call}{{% endfor %}}"
    source = (
        "{{ tools | tojson if tools }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        f"{calls}{{% endfor %}}{{{{ '<|assistant|>' if add_generation_prompt }}}}"
    )
    found = compiled(source).proven(recognise(template=source))
    assert found.format == FORMATS["plain"]
    assert found.why.endswith("1 of the 19 answers that it writes are read back")
    assert not found.reads_calls


def test_markers_of_calls_that_are_not_read_are_known() -> None:
    found = compiled(UNREAD).proven(recognise(template=UNREAD))
    assert found.unread == ("<zap:call>", "</zap:call>")
    marks = "".join(f"<zap{number}>" for number in range(300))
    many = UNREAD.replace("</zap:call>", f"{marks}</zap:call>")
    assert len(compiled(many).proven(recognise(template=many)).unread) == 16


def test_a_template_that_writes_without_end_is_not_tried() -> None:
    source = TEMPLATES["dots"] + "{% for i in range(messages | length ** 4) %}<<<<[{% endfor %}"
    assert compiled(source).proven(recognise(template=source)).format.id in {
        "learned",
        "think_text",
    }


@for_every("family", sorted(TEMPLATES.keys() - LISTED.keys()))
def test_the_grammar_of_a_learned_format_allows_what_the_template_writes(family: str) -> None:
    template = compiled(TEMPLATES[family])
    found = template.proven(recognise(template=TEMPLATES[family])).format
    known = vocabulary(tuple(control_of(found)))
    grammar = grammar_of(found, control=known.control, tools=TOOLS)
    assert grammar
    trial = Trial(CompiledTemplate(TEMPLATES[family]), {}, Meter(ANALYSIS))
    turns = turns_of(trial, template.traits)
    calling = [turn.body for turn in turns if turn.said.calls]
    texts = [*calling[:2], calling[-2], calling[-1], "Hello.", "to be or not to=be", "a < b [1] {}"]
    assert [text for text in texts if refused(known, grammar, text)] == []


_EACH = "{% for c in m.tool_calls %}{% set f = c.function %}"
PIECES = (
    *("<a>", "</a>", '<x n="', '">', ">", "[A]", "[", "]", "{", "}", "(", ")", "=", ":", "\n", " "),
    *("<|p|>", "call:", '<|"|>', ",", "'", '"', "◁t▷", "name", "```json", "```", '{"a": ' * 40),
)
slots = st.lists(st.lists(st.sampled_from(PIECES), max_size=3).map("".join), min_size=9, max_size=9)
values = st.sampled_from(["v", "v | tojson", "v if v is string else v | tojson"])


@given(slots, values, st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_template_breaks_it(texts: list[str], value: str, in_json: bool) -> None:
    begin, before, named, keyed, joint, done, close, end, turn = (
        f"{{{{ {text!r} }}}}" if text else "" for text in texts
    )
    pair = f"{keyed}{{{{ k }}}}{joint}{{{{ {value} }}}}{done}"
    pairs = f"{{% for k, v in f.arguments.items() %}}{pair}{{% endfor %}}"
    given_as = "{{ f.arguments | tojson }}" if in_json else pairs
    calls = f"{begin}{_EACH}{before}{{{{ f.name }}}}{named}{given_as}{close}{{% endfor %}}{end}"
    source = (
        f"{{{{ tools | tojson if tools }}}}{{% for m in messages %}}{turn}{{{{ m.role }}}}\n"
        f"{{{{ m.content }}}}{{% if m.tool_calls %}}{calls}{{% endif %}}{{% endfor %}}"
    )
    guess = recognise(template=source)
    found = ChatTemplate(source, SPECIAL).proven(guess)
    assert found.format.id in {guess.format.id, "learned"}
