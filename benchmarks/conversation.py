"""What each turn of a conversation costs in prompt work: turn ten should cost what two did.

python -m benchmarks.conversation [MODEL]     starts Roundhouse and prints a table
"""

import argparse
import http.client
import json
import time
from pathlib import Path
from typing import Any

import msgspec

import bundled
from benchmarks.peers import roundhouse

QUESTIONS = (
    "Hello!",
    "What is 2 plus 3?",
    "Repeat after me: brave copper.",
    "Count to five.",
    "Who are you?",
    "What is 4 plus 4?",
    "Repeat after me: quiet lantern.",
    "Tell me a story.",
    "What is 1 plus 7?",
    "Thank you!",
)
MAX_TOKENS = 60


class Turn(msgspec.Struct, frozen=True):
    """The usage of one turn. `computed` is the prompt work: tokens that were not in the cache."""

    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    seconds: float

    @property
    def computed(self) -> int:
        return self.prompt_tokens - self.cached_tokens


def converse(port: int, model: str) -> tuple[Turn, ...]:
    """Ten turns, the answers sent back as a chat frontend does: without the reasoning.

    Raises OSError when nobody listens, KeyError when the answer is an error.
    """
    messages: list[dict[str, str]] = []
    turns = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        turn, answer = _ask(
            port, {"model": model, "messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0}
        )
        messages.append({"role": "assistant", "content": answer})
        turns.append(turn)
    return tuple(turns)


def _ask(port: int, body: dict[str, Any]) -> tuple[Turn, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    started = time.perf_counter()
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"}
    )
    reply = json.loads(connection.getresponse().read())
    seconds = time.perf_counter() - started
    connection.close()
    usage = reply["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    turn = Turn(usage["prompt_tokens"], cached, usage["completion_tokens"], seconds)
    return turn, reply["choices"][0]["message"].get("content") or ""


def table(turns: tuple[Turn, ...]) -> str:
    """A line per turn."""
    head = f"{'turn':>4}  {'prompt':>6}  {'cached':>6}  {'computed':>8}  {'answer':>6}  {'ms':>7}"
    lines = [
        f"{number:>4}  {turn.prompt_tokens:>6}  {turn.cached_tokens:>6}  {turn.computed:>8}"
        f"  {turn.answer_tokens:>6}  {turn.seconds * 1000:>7.1f}"
        for number, turn in enumerate(turns, 1)
    ]
    return "\n".join([head, *lines])


def main() -> None:
    """Start the server, converse, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, default=bundled.GGUF)
    model = parser.parse_args().model
    with roundhouse(str(model)) as running:
        print(table(converse(running.port, model.stem)))


if __name__ == "__main__":
    main()
