"""What holds for every output, however it is cut and wherever it ends."""

import re

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.splitter import FORMATS, Format, Splitter
from gateway.terms.events import Content, Event, Reasoning
from tests.every import for_every
from tests.gateway.splitter.corpus import Case, join, load, run

ALL = load("cases.jsonl")
cases = st.sampled_from(ALL)


@st.composite
def cut_cases(draw: st.DrawFn) -> tuple[Case, list[str]]:
    case = draw(cases)
    cuts = sorted(draw(st.sets(st.integers(0, len(case.raw)), max_size=12)))
    return case, [case.raw[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]


@given(cut_cases())
@settings(max_examples=300)
def test_any_cut_gives_the_same_answer(cut: tuple[Case, list[str]]) -> None:
    case, pieces = cut
    whole = join(run(case, [case.raw]))
    assert join(run(case, pieces)).without_ids() == whole.without_ids()


@given(cases, st.integers(0, 600), st.sampled_from(["stop", "length"]))
@settings(max_examples=300)
def test_an_output_may_end_anywhere(case: Case, end: int, reason: str) -> None:
    case = msgspec.convert({**msgspec.to_builtins(case), "finish_reason": reason}, Case)
    answer = join(run(case, [case.raw[:end]]))
    assert answer.without_ids() == join(run(case, case.raw[:end])).without_ids()


@given(st.sampled_from(sorted(FORMATS)), st.text(max_size=80), st.booleans())
@settings(max_examples=300)
def test_any_text_can_be_split(format: str, text: str, in_reasoning: bool) -> None:
    splitter = Splitter(FORMATS[format], in_reasoning=in_reasoning)
    join([*splitter.feed(text), *splitter.finish("stop")])


def marks(format: Format) -> str:
    """A pattern of all that may be dropped: white space and the format's own markers."""
    texts = [*format.shell_opens, *format.shell_closes]
    if format.reasoning is not None:
        texts += [*format.reasoning.opens, *format.reasoning.closes]
    if (headers := format.headers) is not None:
        texts += [*headers.body_ends, *headers.ends, *headers.openers, *headers.inner]
        texts += ["assistant", "analysis", "final", "commentary", "json"]
    texts += [text.removeprefix(format.implied_opener) for text in texts]
    return "|".join([r"\s+", *(re.escape(text) for text in texts if text)])


def assert_nothing_lost(format: Format, raw: str, events: list[Event]) -> None:
    """All delivered text stands in the output, in order, and between it only markers, or a call."""
    at, called = 0, False
    dropped = re.compile(f"(?:{marks(format)})*")
    for event in events:
        match event:
            case Content(text) | Reasoning(text):
                found = raw.index(text.strip(), at)
                assert called or dropped.fullmatch(raw[at:found])
                at, called = found + len(text.strip()), False
            case _:
                called = True
    assert called or dropped.fullmatch(raw[at:])


@for_every("case", ALL, label=lambda case: case.id)
def test_nothing_is_lost_with_tools_or_without(case: Case) -> None:
    for tools in (case.tools, ()):
        events = run(msgspec.structs.replace(case, tools=tools), [case.raw])
        assert_nothing_lost(FORMATS[case.format], case.raw, events[:-1])  # all but Finished


@for_every("case", ALL, label=lambda case: case.id)
def test_without_splitting_the_content_is_the_output(case: Case) -> None:
    entry = FORMATS[case.format]
    splitter = Splitter(entry, in_reasoning=case.start_in_reasoning, split_reasoning=False)
    answer = join([*splitter.feed(case.raw), *splitter.finish("stop")])
    assert answer.reasoning == ""
    if not (entry.shell_opens or entry.shell_closes or entry.headers):
        assert answer.content.strip() == case.raw.strip()
    for text in (case.expect.reasoning, case.expect.content):
        assert all(line in answer.content for line in (text or "").splitlines())
