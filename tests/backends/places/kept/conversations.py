"""What is put back into an engine from a store: beside other jobs, and for many conversations whose
model goes and comes. A tool of tests.
"""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager

from backends.contract.beginnings import Keeping
from backends.contract.protocol import Generation
from backends.engines.engine import Engine, PutBack, Token
from backends.places.kept.store import KeptStore
from tests.backends.container_contract import GREEDY
from tests.backends.places.kept.dear import DearBeginnings

CONVERSATIONS, TOKENS = 50, 8


def letters(seed: int, length: int) -> tuple[int, ...]:
    """A prompt."""
    return tuple(random.Random(seed).choices(range(97, 123), k=length))


def answer(engine: Engine, key: int, prompt: tuple[int, ...], tokens: int = TOKENS) -> list[int]:
    """All of it, while nobody else asks."""
    engine.admit(key, Generation(prompt=prompt, sampling=GREEDY))
    drawn: list[int] = []
    while len(drawn) < tokens:
        drawn += [one.id for one in engine.step() if isinstance(one, Token)]
    engine.release(key)
    return drawn[:tokens]


def tokens_meanwhile(engine: Engine, swap: Callable[[], None], prompt: tuple[int, ...]) -> int:
    """How many tokens another job gets while a conversation is put back, whose answer is the same.
    `swap`: idle slots lose their cells, to the store.
    """
    assert isinstance(engine, Keeping)
    engine.kept = DearBeginnings(KeptStore(memory=20_000_000), "the same engine", "model")
    first = answer(engine, 0, prompt)
    swap()
    engine.admit(1, Generation(prompt=letters(7, 20), sampling=GREEDY))
    while not any(isinstance(one, Token) for one in engine.step()):
        pass
    engine.admit(2, Generation(prompt=prompt, sampling=GREEDY))
    others, again, back = 0, list[int](), 0
    while len(again) < TOKENS:
        for one in engine.step():
            match one:
                case Token(key=1):
                    others += not again
                case Token(key=2, id=token):
                    again.append(token)
                case PutBack(tokens=back):
                    pass
    assert again == first
    assert back >= len(prompt) * 0.9
    for key in (1, 2):
        engine.release(key)
    return others


def kept_of_a_slot_that_is_taken(engine: Engine, shared: int) -> int:
    """Tokens that come back of a conversation, after another one, which begins with `shared` tokens
    alike, had its slot: the only one.
    """
    assert isinstance(engine, Keeping)
    store = KeptStore(memory=20_000_000)
    engine.kept = DearBeginnings(store, "the same engine", "model")
    one, other = (letters(5, shared) + letters(seed, 120 - shared) for seed in (1, 2))
    first = answer(engine, 0, one)
    answer(engine, 1, other)
    assert answer(engine, 2, one) == first
    return store.counts().tokens["memory"]


def texts_after_swaps(
    made: Callable[[], AbstractContextManager[Engine]], swap: Callable[[Engine], None]
) -> None:
    """As many conversations, each of which is swapped out, and gone on with once their model was
    loaded again: all of them are what a model without a store says.
    """
    prompts = [letters(number, 80 + number % 40) for number in range(CONVERSATIONS)]
    with made() as engine:
        expected = [answer(engine, key, prompt) for key, prompt in enumerate(prompts)]
    store = KeptStore(memory=200_000_000)
    for _ in range(2):
        equal = 0
        with made() as engine:
            assert isinstance(engine, Keeping)
            engine.kept = DearBeginnings(store, "the same engine", "model")
            for number, prompt in enumerate(prompts):
                equal += answer(engine, number, prompt) == expected[number]
                swap(engine)
        assert equal == CONVERSATIONS
    assert store.counts().hits["memory"] >= CONVERSATIONS
