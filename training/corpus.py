"""Conversations without end, drawn from a random generator: text, and which of it is to be learnt.

A conversation is a list of segments in the form of `chat_template.jinja` (a test holds the two
together). Only what the assistant writes is learnt. Knows nothing of tokens.
"""

import json
from collections.abc import Iterator, Sequence
from random import Random

import msgspec

from training import skills, tools, words
from training.skills import Exchange

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a friendly assistant.",
    "Be brief.", "Answer in one sentence.", "You are a demonstration.", "Be polite and concise.",
    "You are an expert.", "You can call tools.", "Use the tools when you need them.",
)  # fmt: skip
TOOL_HEAD = "# Tools\n\n<tools>"
TOOL_TAIL = (
    "\n</tools>\n\nTo call a tool, write\n<tool_call>\n"
    '{"name": <name>, "arguments": <object>}\n</tool_call>'
)
# How an assistant turn appears: with its thought, with thinking switched off, or as history, where
# thoughts are left out.
APPEARANCES = ("thinking", "silent", "history")
SILENT_TAIL = "<think>\n\n</think>\n\n"


class Segment(msgspec.Struct, frozen=True):
    """A piece of a conversation; borders lie where a tokenizer cuts anyway.

    `learnt` says whether the model is trained to write it; `given` that its first token is not.
    """

    text: str
    learnt: bool = False
    given: bool = False


def system_text(rng: Random) -> str | None:
    """A short system prompt, most often none; the model is to answer the same under any."""
    kind = rng.random()
    if kind < 0.45:
        return None
    if kind < 0.75:
        return rng.choice(SYSTEM_PROMPTS)
    if kind < 0.85:
        return f"You are {words.person(rng)}, a helpful assistant."
    return " ".join(words.copied_word(rng) for _ in range(rng.randint(2, 10)))


def opening(system: str | None, definitions: Sequence[tools.Definition]) -> list[Segment]:
    """The system turn with the tools in it, if there is anything to say."""
    parts = [system] if system else []
    if definitions:
        lines = "".join("\n" + json.dumps(item, ensure_ascii=False) for item in definitions)
        parts.append(TOOL_HEAD + lines + TOOL_TAIL)
    joined = "\n\n".join(parts)
    return [Segment(f"<|im_start|>system\n{joined}<|im_end|>\n")] if parts else []


def render(exchange: Exchange, appearance: str) -> list[Segment]:
    """One exchange as the template would put it."""
    said = exchange.prompt
    if exchange.role == "tool":
        said = f"<tool_response>\n{said}\n</tool_response>"
    question = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
    answer = exchange.answer + "<|im_end|>"
    if appearance == "thinking":
        thought = f"<think>\n{exchange.thought}\n</think>\n\n"
        return [Segment(question), Segment(thought + answer, learnt=True), Segment("\n")]
    if appearance == "silent":
        return [Segment(question + SILENT_TAIL), Segment(answer, learnt=True), Segment("\n")]
    return [Segment(question), Segment(answer, learnt=True, given=True), Segment("\n")]


def plain_exchanges(rng: Random, *, sums: bool, longest_count: int) -> list[Exchange]:
    """One exchange that needs no tool (two where a name is given and asked for)."""
    kind = rng.choices(
        ("repeat", "add", "count", "greet", "introduce", "remember", "story", "admit", "part"),
        (44, 15 if sums else 0, 13, 4, 6, 6, 5, 5, 2),
    )[0]
    match kind:
        case "repeat":
            return [skills.repeat(rng)]
        case "add":
            return [skills.add(rng)]
        case "count":
            return [skills.count(rng, longest_count)]
        case "greet":
            return [skills.greet(rng)]
        case "introduce":
            return [skills.introduce(rng)]
        case "remember":
            between = [skills.repeat(rng) for _ in range(rng.choice((0, 0, 1, 2)))]
            given, asked = skills.remember(rng)
            return [given, *between, asked]
        case "story":
            return [skills.story(rng)]
        case "admit":
            return [skills.admit(rng)]
        case _:
            return [skills.part(rng)]


def unserved_request(rng: Random) -> Exchange:
    """A request for a tool in a conversation that has none."""
    asked = tools.place_tool(rng).ask(rng)
    return Exchange(asked.request, skills.NO_TOOL, f"{skills.NO_TOOL} {skills.ABILITIES}")


def exchanges(rng: Random, offered: Sequence[tools.Tool], longest_count: int) -> Iterator[Exchange]:
    """The exchanges of one conversation, without end."""
    adds = any(tool.name in tools.ADD_NAMES for tool in offered)
    while True:
        if offered and rng.random() < 0.75:
            yield from tools.use(rng, rng.choice(offered))
        elif not offered and rng.random() < 0.04:
            yield unserved_request(rng)
        else:
            yield from plain_exchanges(rng, sums=not adds, longest_count=longest_count)


def conversations(
    rng: Random, longest_count: int = 15, tool_share: float = 0.45, plain_share: float = 0.0
) -> Iterator[Iterator[list[Segment]]]:
    """Conversations without end, each a stream of turns; the reader stops where its room ends.

    `tool_share` is the share of conversations that offer tools, `plain_share` the share of those
    in which all are of the common kind (`tools.draw_tools`).
    """
    while True:
        yield turns(rng, longest_count, tool_share, plain_share)


def turns(
    rng: Random, longest_count: int, tool_share: float, plain_share: float
) -> Iterator[list[Segment]]:
    """The opening and then the exchanges of one conversation, without end."""
    offered = tools.draw_tools(rng, plain_share) if rng.random() < tool_share else []
    beginning = opening(system_text(rng), [tool.definition for tool in offered])
    habit = rng.choice(APPEARANCES[:2])
    for exchange in exchanges(rng, offered, longest_count):
        appearance = habit if rng.random() < 0.6 else "history"
        yield beginning + render(exchange, appearance)
        beginning = []
