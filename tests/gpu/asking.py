"""What the engines on a card are asked with real weights, and when two greedy answers agree: at the
first token that differs, both tokens were nearly as likely.
"""

import msgspec

from backends.contract.protocol import Generation, ModelContainer, TokenLogprob
from tests.backends.container_contract import GREEDY, run, text_of

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Explain in one sentence why the sky is blue.",
    "Write the numbers from one to ten.",
    "Who wrote Romeo and Juliet?",
    "Translate 'good morning' into Spanish.",
)
# Natural logarithms, at the first token that differs: halves summed in another order, and
# activations that a card and a CPU round to 8 bits for 4-bit weights.
TIE, TIE_OF_4_BITS = 0.35, 1.0


class Said(msgspec.Struct, frozen=True):
    """A greedy answer, and the two likeliest tokens of each step."""

    text: str
    steps: list[TokenLogprob]


def prompt(container: ModelContainer, question: str) -> tuple[int, ...]:
    """ChatML's, which both SmolLM2 and the bundled model are trained on."""
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return container.tokenize(text, special=True)


async def greedy(container: ModelContainer, question: str, tokens: int = 32) -> Said:
    """Ask it."""
    asked = Generation(
        prompt=prompt(container, question), sampling=GREEDY, max_tokens=tokens, logprobs=2
    )
    pieces, _ = await run(container, asked)
    return Said(text_of(pieces), [each for piece in pieces for each in piece.logprobs])


def near(one: Said, other: Said, tie: float = TIE) -> str:
    """Why they don't agree; "" where they do."""
    for mine, theirs in zip(one.steps, other.steps, strict=False):
        if mine.chosen.token != theirs.chosen.token:
            lead = mine.top[0].logprob - mine.top[1].logprob
            words = f"{one.text!r} and {other.text!r} differ, {lead:.2f} apart"
            return "" if lead < tie else words
    return ""
