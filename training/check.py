"""Scores a saved model, skill by skill: `python -m training.check bundled`.

Questions come from generators the training never saw with these seeds, so their words are new; the
cities of the weather questions are withheld from the corpus. Every question is asked with thinking
on and off, and only an answer that is right to the letter counts.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from training import corpus, skills, tools
from training.gguf_file import NAME
from training.skills import Exchange

UNSEEN_CITIES = (
    "Lisbon", "Nairobi", "Reykjavik", "Montevideo", "Warsaw", "Hamburg", "Bangkok", "Toronto",
    "Kyoto", "Marseille", "Salzburg", "Addis Ababa", "Buenos Aires",
)  # fmt: skip
WEATHER_QUESTIONS = (
    "What is the weather in {}?", "What's the weather like in {}?", "weather in {}",
    "How is the weather in {} today?", "What's the weather in {}?", "How's the weather in {}?",
)  # fmt: skip
WEATHER: tools.Definition = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a given city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
PER_SKILL = 60
BATCH = 30
MOST_NEW_TOKENS = 400


class Question(msgspec.Struct, frozen=True):
    """A conversation that waits for an answer, and the right one."""

    messages: list[dict[str, Any]]
    answer: str
    definitions: list[tools.Definition] = []
    thinking: bool = True


def asked(exchange: Exchange, rng: Random) -> Question:
    """One exchange at the beginning of a conversation without tools."""
    system = corpus.system_text(rng)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": exchange.prompt})
    return Question(messages, exchange.answer)


def alone(skill: Callable[[Random], Exchange]) -> Callable[[Random], Question]:
    """A question maker for a skill that needs no tools and no history."""
    return lambda rng: asked(skill(rng), rng)


def weather(rng: Random) -> Question:
    """The classic tool, with a city that the corpus does not hold."""
    city = rng.choice(UNSEEN_CITIES)
    form = rng.choice(WEATHER_QUESTIONS)
    call = tools.call_text("get_weather", {"city": city})
    return Question([{"role": "user", "content": form.format(city)}], call, [WEATHER])


def call_tool(rng: Random) -> Question:
    """One of one to three invented tools."""
    offered = tools.draw_tools(rng)
    request, _ = tools.use(rng, rng.choice(offered))
    definitions = [tool.definition for tool in offered]
    return Question([{"role": "user", "content": request.prompt}], request.answer, definitions)


def tell_result(rng: Random) -> Question:
    """The answer to a tool's result."""
    tool = tools.place_tool(rng)
    request, result = tools.use(rng, tool)
    call = msgspec.json.decode(request.answer.split("\n")[1])
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": request.prompt},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "content": result.prompt},
    ]
    return Question(messages, result.answer, [tool.definition])


def ignore_tools(rng: Random) -> Question:
    """A plain question where tools are offered."""
    tool = tools.place_tool(rng)
    skill = rng.choice((skills.greet, skills.introduce, skills.repeat, skills.add, skills.count))
    exchange = skill(rng)
    return Question(
        [{"role": "user", "content": exchange.prompt}], exchange.answer, [tool.definition]
    )


def recall(rng: Random) -> Question:
    """The user's name, two exchanges later."""
    given, name = skills.remember(rng)
    return after([given, skills.repeat(rng), skills.add(rng)], name)


def tenth_turn(rng: Random) -> Question:
    """A plain question after nine others."""
    skill = rng.choice((skills.repeat, skills.add, skills.count, skills.introduce))
    return after([any_plain(rng) for _ in range(9)], skill(rng))


def any_plain(rng: Random) -> Exchange:
    """Any plain exchange."""
    return corpus.plain_exchanges(rng, sums=True, longest_count=15)[0]


def after(history: Sequence[Exchange], last: Exchange) -> Question:
    """A question that ends a conversation."""
    messages = []
    for exchange in history:
        messages.append({"role": "user", "content": exchange.prompt})
        messages.append({"role": "assistant", "content": exchange.answer})
    return Question([*messages, {"role": "user", "content": last.prompt}], last.answer)


def sums() -> Iterator[Question]:
    """All hundred sums."""
    for first in range(10):
        for second in range(10):
            prompt = f"What is {first} + {second}?"
            answer = f"{first} + {second} = {first + second}"
            yield Question([{"role": "user", "content": prompt}], answer)


def drawn(make: Callable[[Random], Question], name: str) -> Iterator[Question]:
    """Questions of one skill; the same on every run."""
    rng = Random(f"check {name}")
    return (make(rng) for _ in range(PER_SKILL))


def questions() -> Iterator[tuple[str, list[Question]]]:
    """Every skill by name, with its questions."""
    yield "sums", list(sums())
    makers: dict[str, Callable[[Random], Question]] = {
        "greet": alone(skills.greet),
        "introduce": alone(skills.introduce),
        "repeat": alone(skills.repeat),
        "count": alone(skills.count),
        "story": alone(skills.story),
        "admit": alone(skills.admit),
        "recall a name": recall,
        "weather call": weather,
        "any tool call": call_tool,
        "tell a result": tell_result,
        "ignore tools": ignore_tools,
        "tenth turn": tenth_turn,
    }
    for name, make in makers.items():
        yield name, list(drawn(make, name))


class Examinee:
    """A saved model that answers greedily, through transformers in full precision."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(self, batch: Sequence[Question]) -> list[str]:
        """The texts after the thought, as far as the end of the turn."""
        inputs = self._tokenizer(
            [self._prompt(question) for question in batch],
            return_tensors="pt", padding=True, add_special_tokens=False,
        )  # fmt: skip
        with torch.inference_mode():
            outputs = self._model.generate(
                **inputs, max_new_tokens=MOST_NEW_TOKENS, do_sample=False
            )
        texts = self._tokenizer.batch_decode(outputs[:, inputs["input_ids"].shape[1] :])
        return [text.split("<|im_end|>")[0].split("</think>\n\n")[-1] for text in texts]

    def _prompt(self, question: Question) -> str:
        rendered = self._tokenizer.apply_chat_template(
            question.messages,
            tools=question.definitions or None,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=question.thinking,
        )
        return str(rendered)


def score(examinee: Examinee, asked: Sequence[Question], shown: int) -> float:
    """The share of right answers; prints the first `shown` wrong ones."""
    right = 0
    for start in range(0, len(asked), BATCH):
        batch = asked[start : start + BATCH]
        for question, answer in zip(batch, examinee.answer(batch), strict=True):
            right += answer == question.answer
            if answer != question.answer and shown > 0:
                shown -= 1
                print(f"    asked {question.messages[-1]['content']!r}")
                print(f"    right {question.answer!r}\n    wrong {answer!r}")
    return right / len(asked)


def main() -> None:
    """Reads the command line and prints one line per skill: thinking, silent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("bundled"))
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print per skill")
    arguments = parser.parse_args()
    examinee = Examinee(arguments.out / NAME)
    for name, asked in questions():
        silent = [msgspec.structs.replace(question, thinking=False) for question in asked]
        scores = [score(examinee, part, arguments.show) for part in (asked, silent)]
        print(f"{name:16} {scores[0]:7.1%} {scores[1]:7.1%}", flush=True)


if __name__ == "__main__":
    main()
