from typing import Any

import pytest

from gateway.prompt.environment import CompiledTemplate, SyntaxRefused, TemplateRefused
from gateway.prompt.metering import MAX_BYTES, MAX_STEPS, LimitExceeded
from gateway.prompt.traced import clients, spans_of


def rendered(source: str, **variables: Any) -> str:
    return CompiledTemplate(source).render(variables)


def refusal(source: str, **variables: Any) -> TemplateRefused:
    with pytest.raises(TemplateRefused) as caught:
        rendered(source, **variables)
    return caught.value


def test_blocks_leave_no_lines_and_no_indentation_behind() -> None:
    assert rendered("a\n    {% if true %}\nb\n    {% endif %}\nc") == "a\nb\nc"


def test_json_keeps_characters_and_takes_an_indentation() -> None:
    assert rendered("{{ x | tojson }}", x={"é": "<&'>"}) == '{"é": "<&\'>"}'
    assert rendered("{{ x | tojson(indent=2) }}", x={"a": 1}) == '{\n  "a": 1\n}'
    assert rendered("{{ x | tojson(true) }}", x="é") == '"\\u00e9"'


def test_loops_may_break_and_continue() -> None:
    source = "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}"
    assert rendered(source + "{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}") == "13"


def test_a_loop_knows_where_it_is_though_its_turns_are_counted() -> None:
    source = (
        "{% for x in items %}{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last }}{% endfor %}"
    )
    assert rendered(source, items=["a", "b"]) == "1/22/2."
    assert rendered(source.replace("items", "items | select"), items=["a", "b"]) == "1/22/2."


def test_the_generation_tag_renders_what_stands_in_it() -> None:
    assert rendered("a{% generation %}{{ x }}{% endgeneration %}c", x="b") == "abc"


def test_the_clock_is_there() -> None:
    assert rendered("{{ strftime_now('%Y') }}").isdigit()


def test_a_template_raises_its_own_words() -> None:
    error = refusal("first\n{{ raise_exception('no such role') }}")
    assert (error.reason, error.line) == ("no such role", 2)


def test_a_break_inside_a_template_names_its_line() -> None:
    error = refusal("a\nb\n{{ missing.field.below }}")
    assert error.line == 3
    assert "undefined" in error.reason


def test_a_template_that_does_not_parse_names_its_line() -> None:
    with pytest.raises(SyntaxRefused) as caught:
        CompiledTemplate("a\n{% if x %}\n{% endfor %}")
    assert caught.value.line == 3


def test_a_template_too_deep_to_compile_is_refused() -> None:
    with pytest.raises(SyntaxRefused):
        CompiledTemplate("{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}")


def test_texts_are_split_as_python_splits_them() -> None:
    assert rendered("{{ 'a-b-c'.split('-', 1) }}") == "['a', 'b-c']"
    assert rendered("{{ 'a-b-c'.rsplit(sep='-', maxsplit=1) }}") == "['a-b', 'c']"
    assert rendered("{{ ' a  b '.split() }}") == "['a', 'b']"
    assert rendered("{{ 'a\\nb'.splitlines(keepends=true) | length }}") == "2"


def test_small_products_and_powers_are_computed() -> None:
    assert rendered("{{ 'ab' * 2 }} {{ 3 * 4 }} {{ 2 ** 10 }}") == "abab 12 1024"


@pytest.mark.parametrize(
    "source",
    [
        "{{ x.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ x.__init__.__globals__ }}",
        "{% for a in (1).__class__.__subclasses__() %}{% endfor %}",
    ],
)
def test_nothing_outside_is_reached_or_changed(source: str) -> None:
    items = [0]
    refusal(source, x=items)
    assert items == [0]


@pytest.mark.parametrize(
    "expression",
    [
        *("t.removeprefix('a')", "t.removeprefix('b')", "t.removesuffix('d')", "t.strip()"),
        *("t.center(30)", "t.ljust(30, '.')", "t.rjust(30)", "t.zfill(30)", "t.expandtabs()"),
        *("t.split()[1]", "t.rsplit(None, 1)[0]", "t.partition('a')[2]", "t.splitlines()[0]"),
        *("t[2:]", "t * 2", "'x' + t", "'x' ~ t", "'x%s' % t", "'x{}'.format(t)", "[t]"),
        *("t | truncate(14, false, '', 0)", "t | truncate(14, true, '', 0)", "t | truncate(99)"),
        *("t | trim", "t | center(30)", "t | indent", "t | replace('a', 'b')", "t | tojson"),
        *("[t] | join", "t | list | join", "[t] | slice(1) | first | first", "[t] | sort | first"),
        *("[1] | tojson(indent=t)", "strftime_now(t)", "{'a': t}", "{t: 1}"),
        *("{'a': t}.values()", "{t: 1}.keys() ~ ''", "'%s' % [{'a': t}.items()]"),
        *("'{}'.format({'a': t}.values())", "{'a': t}.values() | pprint"),
    ],
)
def test_a_clients_words_stay_the_clients_whatever_a_template_does(expression: str) -> None:
    text = rendered(f"{{{{ {expression} }}}}", t=clients("a <|end|> and d"))
    at = text.index("<|end|>")
    assert any(start <= at and at + len("<|end|>") <= end for start, end in spans_of(text))


def test_padding_with_a_clients_characters_is_the_clients() -> None:
    assert spans_of(rendered("{{ 'x'.center(5, t) }}", t=clients("<"))) == ((0, 5),)


def test_files_are_out_of_reach() -> None:
    refusal("{% include '/etc/hostname' %}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) | select %}{% endfor %}{% endfor %}",
        "{{ 'a' * 999999999 }}",
        "{{ 999999999 * 'a' }}",
        "{{ 9 ** 999999999 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for a in range(9000) %}{{ x }}{% endfor %}",
    ],
)
def test_what_never_ends_or_grows_for_ever_is_refused(source: str) -> None:
    assert MAX_STEPS < 99_999**2
    with pytest.raises((TemplateRefused, LimitExceeded)):
        rendered(source, x="x" * (MAX_BYTES // 8_000))


def test_what_a_template_reads_from_outside_is_known() -> None:
    compiled = CompiledTemplate("{% set a = b %}{{ a }}{% for c in d %}{{ c }}{% endfor %}")
    assert compiled.reads == {"b", "d"}
