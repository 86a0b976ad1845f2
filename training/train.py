"""Trains the bundled model: `python -m training.train --seed 0 --out bundled`.

Makes the tokenizer, the weights and both exports from nothing but a seed. The same seed, machine
and number of threads give the same files; it took about twenty minutes on two cores. Runs on the
CPU: the model is too small for a GPU to help.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

import msgspec
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from training import corpus, export, gguf_file
from training.tokenizer import CONTROL_TOKENS, END_OF_TEXT, SIZE, TURN_END, train_tokenizer

IGNORED = -100
# The most numbers that one answer counts, by row length in tokens.
LONGEST_COUNTS = {192: 15, 384: 30, 1024: 100, 2048: 100}
REPORT_EVERY = 100
CHECKPOINT_EVERY = 500


class Stage(msgspec.Struct, frozen=True):
    """A stretch of training with its own optimizer; between stages the weights are rounded to F16.

    The learning rate rises for `warm_up` steps to `peak_rate` and would fall to zero at step
    `cycle`. `row_lengths` maps the tokens of one row to the share of steps that use it: short rows
    teach fast, long rows teach that a conversation goes on. Every step holds about
    `tokens_per_step`.
    """

    name: str
    steps: int
    cycle: int
    warm_up: int
    peak_rate: float
    row_lengths: dict[int, float]
    tokens_per_step: int = 3072
    tool_share: float = 0.45
    plain_share: float = 0.0
    weight_decay: float = 0.05


# Copying appears rather suddenly, after about 1,300 steps at a high rate; only then does it pay to
# let the rate fall. Choosing among tools takes longer than any other
# skill: the last stage is for it.
STAGES = (
    Stage("corpus", 1500, 5000, 400, 4e-3, {192: 0.35, 384: 0.45, 1024: 0.17, 2048: 0.03}),
    Stage("refine", 2400, 2400, 50, 3e-3, {192: 0.5, 384: 0.4, 1024: 0.08, 2048: 0.02}, 2048),
    Stage("tools", 2500, 2500, 50, 3e-3, {192: 0.2, 384: 0.6, 1024: 0.17, 2048: 0.03}, 3072, 0.7),
    Stage("choice", 3000, 3000, 50, 3e-3, {384: 0.9, 1024: 0.1}, 3072, 0.7, 0.75),
)


class Batch(msgspec.Struct, frozen=True):
    """Token ids, and what each position is to predict (`IGNORED` where nothing is learnt)."""

    ids: torch.Tensor
    targets: torch.Tensor


def model_config() -> LlamaConfig:
    """About 0.85 million parameters, embeddings shared with the output."""
    return LlamaConfig(
        vocab_size=SIZE,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=CONTROL_TOKENS.index(TURN_END),
        pad_token_id=CONTROL_TOKENS.index(END_OF_TEXT),
    )


def corpus_texts(seed: int, count: int) -> Iterator[str]:
    """The beginnings of `count` conversations as plain text."""
    rng = Random(f"tokenizer {seed}")
    for turns in islice(corpus.conversations(rng), count):
        yield "".join(segment.text for turn in islice(turns, 3) for segment in turn)


def fill_row(
    tokenizer: Tokenizer, turns: Iterator[list[corpus.Segment]], length: int
) -> tuple[list[int], list[int]]:
    """As many whole turns as fit in `length` tokens; ids, and targets one position ahead."""
    ids: list[int] = []
    learnt: list[int] = []
    for turn in turns:
        new_ids, new_learnt = encode_turn(tokenizer, turn)
        if len(ids) + len(new_ids) > length + 1:
            break
        ids += new_ids
        learnt += new_learnt
    return ids[:-1], learnt[1:]


def encode_turn(
    tokenizer: Tokenizer, turn: Sequence[corpus.Segment]
) -> tuple[list[int], list[int]]:
    """The tokens of a turn, and the same with `IGNORED` where they are not to be learnt."""
    ids: list[int] = []
    learnt: list[int] = []
    for segment in turn:
        tokens = tokenizer.encode(segment.text).ids
        ids += tokens
        targets = list(tokens) if segment.learnt else [IGNORED] * len(tokens)
        if segment.given:
            targets[0] = IGNORED
        learnt += targets
    return ids, learnt


def batches(tokenizer: Tokenizer, stage: Stage, seed: int) -> Iterator[Batch]:
    """Training batches without end."""
    rng = Random(f"{stage.name} {seed}")
    lengths, shares = list(stage.row_lengths), list(stage.row_lengths.values())
    while True:
        length = rng.choices(lengths, shares)[0]
        conversations = corpus.conversations(
            rng, LONGEST_COUNTS[length], stage.tool_share, stage.plain_share
        )
        rows: list[tuple[list[int], list[int]]] = []
        while len(rows) < max(1, stage.tokens_per_step // length):
            row = fill_row(tokenizer, next(conversations), length)
            if row[0]:
                rows.append(row)
        yield pad(rows)


def pad(rows: Sequence[tuple[list[int], list[int]]]) -> Batch:
    """Rows of one length; padding stands at the end, where causal attention never looks back."""
    longest = max(len(ids) for ids, _ in rows)
    padding = CONTROL_TOKENS.index(END_OF_TEXT)
    return Batch(
        torch.tensor([ids + [padding] * (longest - len(ids)) for ids, _ in rows]),
        torch.tensor([targets + [IGNORED] * (longest - len(targets)) for _, targets in rows]),
    )


def loss_of(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross entropy in nats over the learnt tokens."""
    hidden = model.model(batch.ids, use_cache=False).last_hidden_state
    wanted = batch.targets != IGNORED
    return cross_entropy(model.lm_head(hidden[wanted]), batch.targets[wanted])


def optimizer_for(model: LlamaForCausalLM, stage: Stage) -> torch.optim.AdamW:
    """AdamW; the gains of the norms do not decay."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    gains = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": stage.weight_decay},
        {"params": gains, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=stage.peak_rate, betas=(0.9, 0.98))


def train(
    model: LlamaForCausalLM, tokenizer: Tokenizer, stage: Stage, seed: int
) -> Iterator[tuple[int, float]]:
    """One stage; yields each step's number and loss, and changes `model` in place."""
    optimizer = optimizer_for(model, stage)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        stage.peak_rate,
        total_steps=stage.cycle,
        pct_start=stage.warm_up / stage.cycle,
        cycle_momentum=False,
    )
    model.train()
    for step, batch in enumerate(islice(batches(tokenizer, stage, seed), stage.steps), start=1):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield step, loss.item()


def round_weights(model: LlamaForCausalLM) -> None:
    """To what F16 can hold, as the exports do."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())


def report(steps: Iterator[tuple[int, float]], name: str) -> Iterator[int]:
    """Prints the mean loss now and then; yields the step numbers."""
    start, total = time.monotonic(), 0.0
    for step, loss in steps:
        total += loss
        if step % REPORT_EVERY == 0:
            passed = time.monotonic() - start
            print(f"{name} {step} loss {total / REPORT_EVERY:.4f} {passed:.0f} s", flush=True)
            total = 0.0
        yield step


def begin(seed: int, resumed: Path | None) -> tuple[LlamaForCausalLM, Tokenizer]:
    """A new model and tokenizer, or those of an earlier export."""
    torch.manual_seed(seed)
    if resumed:
        folder = resumed / gguf_file.NAME
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return model, Tokenizer.from_file(str(folder / "tokenizer.json"))
    return LlamaForCausalLM(model_config()), train_tokenizer(corpus_texts(seed, 4000))


def main() -> None:
    """Reads the command line, trains stage by stage and exports after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bundled"))
    parser.add_argument("--checkpoints", type=Path, help="also export here while training")
    parser.add_argument("--resume", type=Path, help="start from this export")
    parser.add_argument("--stages-done", type=int, default=0, help="stages to leave out")
    arguments = parser.parse_args()
    model, tokenizer = begin(arguments.seed, arguments.resume)
    print(f"{sum(parameter.numel() for parameter in model.parameters())} parameters", flush=True)
    for stage in STAGES[arguments.stages_done :]:
        for step in report(train(model, tokenizer, stage, arguments.seed), stage.name):
            if arguments.checkpoints and step % CHECKPOINT_EVERY == 0:
                export.export(model, tokenizer, arguments.checkpoints)
        round_weights(model)
        export.export(model, tokenizer, arguments.out)


if __name__ == "__main__":
    main()
