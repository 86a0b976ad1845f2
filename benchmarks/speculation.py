"""What drafts bring and cost: an edit of 400 tokens, and text that doesn't repeat, with and without
them, in turns.

Both are asked of one engine, whose requests have drafts (`auto`) or ask for none (`off`): where the
weights and the cache of an engine happen to lie in memory makes it up to 5 % faster or slower than
another of the same model, which is more than what is to be measured. So is what a shared machine
does meanwhile: each turn is compared with its own neighbour, and who comes first alternates.

    python -m benchmarks.speculation [--engines llamacpp transformers] [--size 27M] [--rounds 5]
                                     [--streams 1 4] [--tokens 400] [--threads 1]
                                     [--weights q8_0] [--drafted-weights q8_0]
                                     [--parts real given own]

First, SmolLM2 of the lab (tests/real) in llama.cpp says its own words, greedily: it is asked to
repeat a text of the prompt, and for a story.

The other models have random weights (`benchmarks.realistic`), which copy nothing. So what an answer
says is given: the engine computes its logits and samples from them as ever, and the token of the
script stands in for the one that was sampled. An edit is the prompt's code again with three changed
tokens. Steps, batches, sampling and the policy are the real ones; how much of a draft is accepted
is the script's.

Tokens a second are those of an answer's steps, prompts aside; the middle of the rounds, and of how
many times as fast one was in each. What comes before the first round, in which costs are measured,
is left out. Last, a model with a draft model
(`benchmarks.drafting`) answers by itself, from its own weights, greedily, to random prompts; how
many of the drafted tokens were accepted is in the table. For llama-server's own drafts see
`benchmarks.speculation_served`: it can't be given an answer.

The last two columns are those for each second of processor time, from the first token of the last
to begin on. Neighbours on the machine change them little; threads that wait are counted, too, so
they are to be read with `--threads 1` alone. What a step of several tokens costs is the kernels'
business, see `benchmarks.step_costs`: on one core of an AMD EPYC llama.cpp takes 3.0 times as long
for two tokens as for one with weights of Q8_0, and 8.4 times for 16; with BF16 2.0 and 5.3 times.
"""

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import anyio
import msgspec
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import bundled
from backends.contract import catalog
from backends.contract.protocol import Ended, Generation, Piece
from backends.contract.samplers import Sampling
from backends.engines.driver import DrivenContainer
from backends.engines.engine import Engine
from backends.engines.llamacpp import loading as llamacpp
from backends.engines.llamacpp.batch import LlamaJob
from backends.engines.llamacpp.engine import LlamaCppEngine
from backends.engines.llamacpp.rows import Rows
from backends.engines.sampling.state import SamplerState
from backends.engines.transformers import loading as transformers_loading
from backends.engines.transformers.engine import TransformersEngine
from backends.engines.transformers.sampler import Sampled, Sampler
from benchmarks import drafting as drafted
from benchmarks import realistic, report
from benchmarks.realistic import SIZES, Shape
from benchmarks.vocabulary import tokenizer
from config.engines import DraftOptions, LlamaCppOptions, TransformersOptions
from tests.real import lab

Text: TypeAlias = tuple[list[int], list[int]]  # a prompt, and its answer
MODES: Mapping[str, int | None] = {"off": 0, "auto": None}  # `Generation.drafts`
CHANGES = 3
FIRST = 2_000  # of the tokens that texts don't consist of
LENGTH = 2_048
# Of `auto`, how many times the tokens a second of `off`; by engine, text and streams.
TARGETS: Mapping[tuple[str, str, int], float] = {
    ("smollm2", "repeat", 1): 1.0,
    ("smollm2", "repeat", 4): 1.0,
    ("smollm2", "story", 1): 0.99,
    ("smollm2", "story", 4): 0.99,
    ("llamacpp", "edit", 1): 1.8,
    ("llamacpp", "edit", 4): 1.3,
    ("llamacpp", "chat", 1): 0.99,
    ("llamacpp", "chat", 4): 0.99,
    ("llamacpp", "own words, draft model", 1): 1.5,
    ("transformers", "edit", 1): 1.5,
    ("transformers", "edit", 4): 1.4,
    ("transformers", "chat", 1): 0.99,
    ("transformers", "chat", 4): 0.99,
    ("transformers", "own words, draft model", 1): 1.4,
}


class Script:
    """What each prompt is answered with."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int, ...], list[int]] = {}

    def add(self, text: Text) -> None:
        self._answers[tuple(text[0])] = text[1]

    def next(self, prompt: Sequence[int], said: int) -> int:
        return self._answers[tuple(prompt)][said]


class ScriptedRows(Rows, kw_only=True):
    """Samples as ever, and says what the script says."""

    script: Script

    def _token(self, running: LlamaJob, row: int) -> int:
        super()._token(running, row)
        said = len(running.tokens) - running.prompt_tokens
        return self.script.next(running.job.prompt, said)


class ScriptedSampler(Sampler, kw_only=True):
    """The same for transformers."""

    script: Script

    def sample(
        self, states: Sequence[SamplerState], logits: torch.Tensor
    ) -> Sequence[Sampled | Exception]:
        super().sample(states, logits)
        return [Sampled(self._next(state), None) for state in states]

    def _next(self, state: SamplerState) -> int:
        prompt = state._prompt  # noqa: SLF001
        return self.script.next(state.tokens[:prompt], len(state.tokens) - prompt)


def llamacpp_engine(
    folder: Path, shape: Shape, weights: str, threads: Any, script: Script
) -> Engine:
    """Over a GGUF file of `shape`."""
    path = folder / "model.gguf"
    if not path.exists():
        realistic.write(path, shape)
        drafted.convert(path, weights)
    files = catalog.recognise(path)
    assert files is not None
    options = LlamaCppOptions(
        max_concurrent=4,
        context_length=LENGTH,
        threads=threads,
    )
    engine = LlamaCppEngine(llamacpp.load(files, options, lambda _: True))
    engine._rows = ScriptedRows(*_fields(engine._rows), script=script)  # noqa: SLF001
    return engine


def transformers_engine(
    folder: Path, shape: Shape, _weights: str, threads: Any, script: Script
) -> Engine:
    """Over a folder with weights of 32 bits."""
    path = folder / "model"
    if not path.exists():
        _write(path, shape)
    files = catalog.recognise(path, "transformers")
    options = TransformersOptions(
        device="cpu",
        max_concurrent=4,
        context_length=LENGTH,
        threads=threads,
    )
    engine = TransformersEngine(transformers_loading.load(files, options, lambda _: True))
    batching: Any = engine._batching  # noqa: SLF001
    batching._sampler = ScriptedSampler(*_fields(batching._sampler), script=script)  # noqa: SLF001
    return engine


def _fields(struct: msgspec.Struct) -> tuple[Any, ...]:
    return msgspec.structs.astuple(struct)


def _write(path: Path, shape: Shape) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // shape.head,
        num_key_value_heads=shape.groups,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer(shape.vocabulary).save(str(path / "tokenizer.json"))
    described = json.loads((bundled.SAFETENSORS / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(described))


ENGINES: Mapping[str, Callable[[Path, Shape, str, Any, Script], Engine]] = {
    "llamacpp": llamacpp_engine,
    "transformers": transformers_engine,
}


def edit(dice: random.Random, tokens: int) -> Text:
    """Code, and the same with some changes."""
    code = dice.choices(range(300, 2_000), k=tokens)
    changed = list(code)
    for place in dice.sample(range(tokens), CHANGES):
        changed[place] = dice.randrange(300, 2_000)
    return code, changed


def chat(dice: random.Random, tokens: int) -> Text:
    """Words of a skewed vocabulary: runs of three come again, and go on differently."""
    words = [300 + int(dice.paretovariate(0.9)) % 1_500 for _ in range(2 * tokens)]
    return words[:tokens], words[tokens:]


TEXTS: Mapping[str, Callable[[random.Random, int], Text]] = {"edit": edit, "chat": chat}


class Speed(msgspec.Struct, frozen=True):
    """Tokens a second of all together, and for each second of processor time."""

    tokens: float
    by_processor: float


async def answered(
    container: DrivenContainer, jobs: Sequence[Generation]
) -> tuple[Speed, Sequence[Ended]]:
    """All of them at once, from the first token of the last to begin to the end."""
    ends: list[Ended] = []
    said = begun = 0
    since: tuple[float, int] = (0.0, 0)  # when all had begun: processor time, and tokens said

    async def answer(job: Generation) -> None:
        nonlocal said, begun, since
        async with container.generate(job) as outputs:
            first = True
            async for output in outputs:
                if isinstance(output, Ended):
                    ends.append(output)
                    continue
                said += len(output.tokens) if isinstance(output, Piece) else 0
                begun += first
                if first and begun == len(jobs):
                    since = time.process_time(), said
                first = False

    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(answer, job)
    used = time.process_time() - since[0]
    total = sum((end.completion_tokens - 1) / end.decode for end in ends)
    return Speed(total, (said - since[1]) / used), ends


def scripted(script: Script, texts: Sequence[Text]) -> Sequence[Generation]:
    """Whose answers the script gives."""
    for text in texts:
        script.add(text)
    greedy = Sampling(temperature=0, ban_eos=True)
    return [
        Generation(prompt=tuple(text[0]), sampling=greedy, max_tokens=len(text[1]))
        for text in texts
    ]


class Found(msgspec.Struct, frozen=True):
    """Of each round what was reached in it, by mode."""

    engine: str
    text: str
    streams: int
    rounds: Sequence[Mapping[str, Speed]]
    weights: str = ""
    accepted: float | None = None  # of the drafted tokens, where a model drafted them

    def tokens(self, mode: str) -> float:
        return median(one[mode].tokens for one in self.rounds)

    def by_processor(self, mode: str) -> float:
        return median(one[mode].by_processor for one in self.rounds)

    @property
    def times(self) -> float:
        return median(one["auto"].tokens / one["off"].tokens for one in self.rounds)

    @property
    def times_by_processor(self) -> float:
        return median(one["auto"].by_processor / one["off"].by_processor for one in self.rounds)


async def in_turns(
    container: DrivenContainer,
    jobs: Callable[[random.Random, int], Sequence[Generation]],
    rounds: int,
) -> tuple[Sequence[Mapping[str, Speed]], Sequence[Ended]]:
    """Jobs of the same texts in each mode, of others in each round. The first round is left out.

    `jobs`: (dice, first token of the prompts) -> jobs; the first token differs, so that no prompt
    is in the cache already.
    """
    found: list[Mapping[str, Speed]] = []
    ends: list[Ended] = []
    for turn in range(rounds + 1):
        speeds: dict[str, Speed] = {}
        for place, mode in enumerate(list(MODES)[:: 1 if turn % 2 else -1]):
            each = jobs(random.Random(turn), FIRST + 2 * turn + place)
            asked = [msgspec.structs.replace(one, drafts=MODES[mode]) for one in each]
            speeds[mode], ended = await answered(container, asked)
            ends += ended
        found.append(speeds)
    return found[1:], ends


async def measured(engine: str, options: argparse.Namespace) -> Sequence[Found]:
    """One engine with all texts and numbers of streams."""
    script, shape, threads = Script(), SIZES[options.size], options.threads or "auto"
    results: list[Found] = []
    with tempfile.TemporaryDirectory() as made:
        made_of = Path(made), shape, options.weights, threads, script
        container = DrivenContainer(ENGINES[engine](*made_of))
        for kind, write in TEXTS.items():
            for streams in options.streams:

                def jobs(dice: random.Random, first: int) -> Sequence[Generation]:
                    texts = [write(dice, options.tokens) for _ in range(streams)]  # noqa: B023
                    return scripted(script, [([first, *text], answer) for text, answer in texts])

                rounds, _ = await in_turns(container, jobs, options.rounds)
                weights = options.weights if engine == "llamacpp" else "f32"
                results.append(Found(engine, kind, streams, rounds, weights))
        await container.aclose()
    return results


REAL = "smollm2"
# Prompts of SmolLM2, each of a number, which makes it another.
LINES = "".join(
    f"{at}. The {color} house stands by the river.\n"
    for at, color in enumerate(
        ("red", "blue", "green", "white", "yellow", "old", "new", "small", "tall", "grey"), start=1
    )
)
WISHES = {
    "repeat": f"Text {{}}. Repeat these lines exactly, all of them:\n{LINES}",
    "story": "Tell me a story of {} travellers who meet in a town by the sea.",
}


async def of_real(engine: str, options: argparse.Namespace) -> Sequence[Found]:
    """SmolLM2 in llama.cpp."""
    results: list[Found] = []
    files = catalog.recognise(lab.smollm2())
    if engine != "llamacpp" or files is None:
        return results
    settings = LlamaCppOptions(
        max_concurrent=4, context_length=LENGTH, threads=options.threads or "auto"
    )
    container = DrivenContainer(LlamaCppEngine(llamacpp.load(files, settings, lambda _: True)))
    for kind, wish in WISHES.items():
        for streams in options.streams:

            def jobs(_: random.Random, first: int) -> Sequence[Generation]:
                wishes = (wish.format(100 * first + stream) for stream in range(streams))  # noqa: B023
                texts = (
                    f"<|im_start|>user\n{one}<|im_end|>\n<|im_start|>assistant\n" for one in wishes
                )
                return own_words([container.tokenize(text, special=True) for text in texts])

            rounds, ends = await in_turns(container, jobs, options.rounds)
            drafted = sum(end.drafted_tokens for end in ends)
            accepted = sum(end.accepted_tokens for end in ends) / drafted if drafted else None
            results.append(Found(REAL, kind, streams, rounds, "q4_1", accepted))
    await container.aclose()
    return results


OWN = "own words, draft model"
# What a small model can pay for is a large one: of each engine as large as it computes in minutes.
LARGE: Mapping[str, str] = {"llamacpp": "300M", "transformers": "27M"}
OPTIONS: Mapping[str, type[LlamaCppOptions] | type[TransformersOptions]] = {
    "llamacpp": LlamaCppOptions,
    "transformers": TransformersOptions,
}


def drafting(engine: str, folder: Path, shape: Shape, weights: str, threads: Any) -> Engine:
    """Over a pair of models."""
    if engine == "llamacpp":
        large, small = drafted.pair(folder, shape, weights)
    else:
        large, small = drafted.folders(folder, shape)
    options = OPTIONS[engine](
        max_concurrent=4,
        context_length=LENGTH,
        threads=threads,
        draft=DraftOptions(model=str(small)),
    )
    files = catalog.recognise(large, engine)
    if isinstance(options, LlamaCppOptions):
        return LlamaCppEngine(llamacpp.load(files, options, lambda _: True))
    return TransformersEngine(transformers_loading.load(files, options, lambda _: True))


def own_words(prompts: Sequence[Sequence[int]]) -> Sequence[Generation]:
    """What the model says by itself."""
    greedy = Sampling(temperature=0, ban_eos=True)
    return [Generation(prompt=tuple(one), sampling=greedy, max_tokens=128) for one in prompts]


async def by_model(engine: str, options: argparse.Namespace) -> Sequence[Found]:
    """With a draft model and without."""
    size = options.drafted_size or LARGE[engine]
    shape, threads, results = SIZES[size], options.threads or "auto", []
    with tempfile.TemporaryDirectory() as made:
        made_of = Path(made), shape, options.drafted_weights, threads
        container = DrivenContainer(drafting(engine, *made_of))
        for streams in options.streams:

            def jobs(dice: random.Random, first: int) -> Sequence[Generation]:
                words = [dice.choices(range(300, FIRST), k=63) for _ in range(streams)]  # noqa: B023
                return own_words([[first, *each] for each in words])

            rounds, ends = await in_turns(container, jobs, min(options.rounds, 2))
            accepted = sum(end.accepted_tokens for end in ends)
            part = accepted / max(1, sum(end.drafted_tokens for end in ends))
            weights = options.drafted_weights if engine == "llamacpp" else "f32"
            results.append(Found(engine, OWN, streams, rounds, weights, part))
        await container.aclose()
    return results


PARTS: Mapping[str, Callable[[str, argparse.Namespace], Coroutine[Any, Any, Sequence[Found]]]] = {
    "real": of_real,
    "given": measured,
    "own": by_model,
}


def table(found: Sequence[Found]) -> Iterator[str]:
    """Markdown."""
    heads = ("off", "auto", "times", "accepted", "by processor, off", "auto", "times")
    yield f"| engine | weights | text | streams | {' | '.join(heads)} |"
    yield "|---|---|---|" + "--:|" * (1 + len(heads))
    for one in found:
        speeds = " | ".join(f"{one.tokens(mode):,.0f}" for mode in MODES)
        spent = " | ".join(f"{one.by_processor(mode):,.0f}" for mode in MODES)
        accepted = "" if one.accepted is None else f"{one.accepted:.2f}"
        cells = f"{one.engine} | {one.weights} | {one.text} | {one.streams} | {speeds}"
        yield (
            f"| {cells} | {one.times:.2f} | {accepted} | {spent} | {one.times_by_processor:.2f} |"
        )


def targets(found: Sequence[Found]) -> Iterator[report.Target]:
    """Those that are known for what was measured."""
    for one in found:
        least = TARGETS.get((one.engine, one.text, one.streams))
        if least is not None:
            promise = f"{one.engine}, {one.text}, {one.streams} streams: at least {least} times"
            yield report.Target(promise, f"{one.times:.2f}", one.times >= least)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--size", choices=SIZES, default="27M")
    parser.add_argument(
        "--drafted-size", choices=SIZES, help="with a draft model; else 300M, transformers 27M"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--threads", type=int, help="fixed; else measured, as `threads: auto` does")
    parser.add_argument("--weights", choices=drafted.WEIGHTS, default="q8_0", help="of llama.cpp")
    parser.add_argument("--drafted-weights", choices=drafted.WEIGHTS, default="q8_0")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args(argv)
    machine, began = report.machine(), time.perf_counter()
    found = [
        one
        for part in options.parts
        for engine in options.engines
        for one in asyncio.run(PARTS[part](engine, options))
    ]
    print(
        f"{machine.processor}, {machine.cores} cores, load before {machine.load_before:.1f}, ",
        end="",
    )
    print(f"after {os.getloadavg()[0]:.1f}; {time.perf_counter() - began:.0f} s\n")
    print("\n".join(table(found)), "\n")
    report.tell(targets(found))


if __name__ == "__main__":
    main()
