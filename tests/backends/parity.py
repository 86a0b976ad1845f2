"""What all engines are asked to agree on: fifty prompts for the bundled model, and the answers a
container gives to them.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from transformers import AutoTokenizer

import bundled
from backends.contract import catalog
from backends.contract.protocol import Cause, Generation, ModelContainer
from config.engines import EngineOptions
from tests.backends.container_contract import GREEDY, run, text_of

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
WORDS = ("apple", "river", "lantern", "violet", "thunder", "pebble", "orchard", "window")
CITIES = ("Paris", "Oslo", "Lima", "Cairo", "Tokyo")
QUESTIONS = (
    "Hello!",
    "Who are you?",
    "Thank you!",
    "Tell me a short story.",
    "Count from 3 to 9.",
    *(f"Repeat after me: {word}" for word in WORDS),
    *(f"What is {left} + {left + 3}?" for left in range(1, 8)),
    *(f"What is the weather in {city}?" for city in CITIES),
)
LOGPROB_TOLERANCE = 0.05  # half precision on the one side, single on the other


class Answer(msgspec.Struct, frozen=True):
    """A greedy answer, as far as engines can agree on it."""

    text: str
    cause: Cause
    prompt_tokens: int
    completion_tokens: int


def prompts() -> list[str]:
    """Every question with thinking and without, those about the weather with a tool."""
    tokenizer = AutoTokenizer.from_pretrained(bundled.SAFETENSORS)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            tools=[WEATHER] if "weather" in question else None,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        for question in QUESTIONS
        for thinking in (True, False)
    ]


async def load(
    backend: str, options: EngineOptions, path: Path = bundled.SAFETENSORS
) -> ModelContainer:
    files = catalog.recognise(path, backend)
    return await catalog.BACKENDS[backend].container.load(files, options, lambda _: None)


async def answers(container: ModelContainer, stop: Sequence[str] = ()) -> list[Answer]:
    """To all prompts, one after another."""
    found = []
    for prompt in prompts():
        tokens = container.tokenize(prompt, special=True)
        asking = Generation(prompt=tokens, sampling=GREEDY, max_tokens=200, stop=tuple(stop))
        pieces, ended = await run(container, asking)
        counts = ended.prompt_tokens, ended.completion_tokens
        found.append(Answer(text_of(pieces), ended.cause, *counts))
    return found


async def logprobs(container: ModelContainer) -> list[float]:
    """Of the first tokens of ten answers."""
    values = []
    for prompt in prompts()[::5]:
        tokens = container.tokenize(prompt, special=True)
        asking = Generation(prompt=tokens, sampling=GREEDY, max_tokens=8, logprobs=1)
        pieces, _ = await run(container, asking)
        values += [logprob.chosen.logprob for piece in pieces for logprob in piece.logprobs]
    return values
