"""The table of bounds covers every field, and holds at both ends of every number."""

import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from backends.contract import bounds
from backends.contract.bounds import (
    BUDGET,
    ENCODER_INPUT,
    GENERATION,
    GREEDY_BELOW,
    SAMPLING,
    bounded,
    check_choice,
    check_inputs,
)
from backends.contract.encoder import EncoderInput
from backends.contract.errors import InvalidJob, PromptTooLong
from backends.contract.protocol import (
    Constraint,
    Generation,
    Image,
    ModelInfo,
    Pixels,
    ThinkingBudget,
)
from backends.contract.samplers import Number, Sampling, Texts
from tests.every import for_every

INFO = ModelInfo(
    backend="scripted",
    format="script",
    architecture="bounded",
    context_length=100,
    max_concurrent=1,
    vocab_size=256,
    size_bytes=0,
    modalities=("text", "image"),
)
BUDGETED = ThinkingBudget(tokens=1, closing=(1,), opens=("<a>",), closes=("</a>",), is_open=True)
TABLES: dict[type[msgspec.Struct], Any] = {
    Sampling: SAMPLING,
    Generation: GENERATION,
    ThinkingBudget: BUDGET,
}


def job(table: object, **changes: Any) -> Generation:
    """A sound job, but for a field of the struct that `table` is about."""
    made = Generation(prompt=(1, 2), thinking=BUDGETED)
    if table is Sampling:
        return msgspec.structs.replace(made, sampling=Sampling(**changes))
    if table is ThinkingBudget:
        return msgspec.structs.replace(made, thinking=msgspec.structs.replace(BUDGETED, **changes))
    return msgspec.structs.replace(made, **changes)


def field(job: Generation, table: object, name: str) -> Any:
    struct = {Sampling: job.sampling, ThinkingBudget: job.thinking}.get(table, job)  # type: ignore[call-overload]
    return getattr(struct, name)


def _numbers() -> Iterator[tuple[type, str, Number, bool]]:
    """Struct, field, bound, and whether the field holds whole numbers."""
    for struct, table in TABLES.items():
        for info in msgspec.structs.fields(struct):
            bound = table[info.name]
            if isinstance(bound, Number):
                yield struct, info.name, bound, "float" not in str(info.type)


NUMBERS = tuple(_numbers())


@pytest.mark.parametrize(
    ("struct", "table"), TABLES.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_every_field_has_its_bound(struct: type[msgspec.Struct], table: dict[str, Any]) -> None:
    assert set(struct.__struct_fields__) == set(table)


@pytest.mark.parametrize(
    ("struct", "table"), TABLES.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_the_defaults_are_within_as_they_are(
    struct: type[msgspec.Struct], table: dict[str, Any]
) -> None:
    """`bounded` looks at the other values alone."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(struct)}
    for name, value in defaults.items():
        if value is not msgspec.NODEFAULT:
            assert not table[name].fault(value)
            assert not table[name].fault_for(value, INFO)
            assert table[name].fitted(value, INFO) is value


def test_a_job_of_defaults_stays_as_it_is() -> None:
    assert bounded(Generation(prompt=(1,)), INFO) == Generation(prompt=(1,))
    assert not list(bounds.faults(Sampling()))


def beyond(bound: Number, *, whole: bool) -> Iterator[float]:
    if whole:
        yield int(bound.low) - 1
        yield -(10**5000)
        if bound.high < math.inf:
            yield int(bound.high) + 1
            yield 10**5000
        return
    yield from (math.nan, math.inf, -math.inf)
    yield math.nextafter(bound.low, -math.inf)
    yield math.nextafter(bound.high, math.inf)


@for_every(("table", "name", "bound", "whole"), NUMBERS)
def test_a_number_beyond_its_bounds_is_refused_by_name(
    table: type, name: str, bound: Number, whole: bool
) -> None:
    for value in beyond(bound, whole=whole):
        with pytest.raises(InvalidJob) as caught:
            bounded(job(table, **{name: value}), INFO)
        assert caught.value.param == ("thinking_budget" if table is ThinkingBudget else name)


@for_every(("table", "name", "bound", "whole"), NUMBERS)
def test_a_number_at_its_bounds_is_taken(
    table: type, name: str, bound: Number, whole: bool
) -> None:
    for end in (bound.low, bound.high):
        if end < math.inf:
            value = int(end) if whole else end
            bounded(job(table, **{name: value}), INFO)


@for_every(("table", "name", "bound", "whole"), NUMBERS)
def test_more_than_the_model_has_means_all_of_it(
    table: type, name: str, bound: Number, whole: bool
) -> None:
    if bound.enough is None:
        return
    most = {"context": INFO.context_length, "vocabulary": INFO.vocab_size}[bound.enough]
    for value in (most + 1, 2**31, 4294967297, 2**63, 10**5000):
        assert field(bounded(job(table, **{name: value}), INFO), table, name) == most
    for value in (int(bound.low), most - 1, most):
        assert field(bounded(job(table, **{name: value}), INFO), table, name) == value


def test_every_number_that_reaches_native_code_fits_32_bits_or_is_a_seed() -> None:
    for _, name, bound, whole in NUMBERS:
        if whole and name != "seed":
            assert bound.low >= -(2**31)
            assert bound.enough is not None or bound.high < 2**31


@pytest.mark.parametrize(
    ("table", "name", "bound"),
    [
        (struct, name, bound)
        for struct, table in TABLES.items()
        for name, bound in table.items()
        if isinstance(bound, Texts) and bound.count > 1
    ],
)
def test_lists_of_texts_are_bounded_in_number_and_length(
    table: type, name: str, bound: Texts
) -> None:
    total = bound.total or bound.size * bound.count
    full = ("x" * bound.size,) * (total // bound.size)
    for value in (full, ("x",) * bound.count):
        bounded(job(table, **{name: value}), INFO)
    for value in (
        (*full, "x" * (total % bound.size + 1)),
        ("x",) * (bound.count + 1),
        ("x" * (bound.size + 1),),
        ("\ud83d",),
    ):
        with pytest.raises(InvalidJob) as caught:
            bounded(job(table, **{name: value}), INFO)
        assert caught.value.param == ("thinking_budget" if table is ThinkingBudget else name)


@pytest.mark.parametrize("token", [-1, 256, 2**31, 2**63, 10**4000])
def test_a_token_outside_the_vocabulary_is_refused_by_the_field_it_is_in(token: int) -> None:
    for wrong, param in (
        (Sampling(banned_tokens=(token,)), "banned_tokens"),
        (Sampling(allowed_tokens=(1, token)), "allowed_tokens"),
        (Sampling(logit_bias=((1, 0.0), (token, 1.0))), "logit_bias"),
    ):
        with pytest.raises(InvalidJob, match="not in the vocabulary") as caught:
            bounded(Generation(prompt=(1,), sampling=wrong), INFO)
        assert caught.value.param == param
    with pytest.raises(InvalidJob) as caught:
        bounded(Generation(prompt=(1, token)), INFO)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("name", ["banned_tokens", "allowed_tokens", "logit_bias"])
def test_no_list_of_tokens_is_longer_than_the_vocabulary(name: str) -> None:
    one: Any = (1, 0.5) if name == "logit_bias" else 1
    bounded(job(Sampling, **{name: (one,) * 256}), INFO)
    with pytest.raises(InvalidJob) as caught:
        bounded(job(Sampling, **{name: (one,) * 257}), INFO)
    assert caught.value.param == name


@pytest.mark.parametrize("bias", [math.nan, math.inf, 1e30, -1e30])
def test_a_bias_is_a_number_one_can_add(bias: float) -> None:
    with pytest.raises(InvalidJob) as caught:
        bounded(job(Sampling, logit_bias=((1, bias),)), INFO)
    assert caught.value.param == "logit_bias"
    bounded(job(Sampling, logit_bias=((1, -math.inf),)), INFO)  # a ban


@pytest.mark.parametrize(("side", "size"), [(0, 0), (2, 11), (2, 13), (-2, 12)])
def test_a_picture_has_the_bytes_it_says(side: int, size: int) -> None:
    image = Image(side, side, Pixels(bytes(size)))
    with pytest.raises(InvalidJob) as caught:
        bounded(Generation(prompt=(1,), images=(image,)), INFO)
    assert caught.value.param == "messages"


def test_a_prompt_that_is_empty_or_fills_the_context_is_refused() -> None:
    with pytest.raises(InvalidJob):
        bounded(Generation(prompt=()), INFO)
    with pytest.raises(PromptTooLong):
        bounded(Generation(prompt=(1,) * 100), INFO)


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-40, 1e-38, 9e-6])
def test_a_temperature_that_overflows_single_precision_is_greedy(temperature: float) -> None:
    assert bounded(job(Sampling, temperature=temperature), INFO).sampling.temperature == 0
    dynamic = job(Sampling, min_temp=0.0, max_temp=temperature, temperature=1.0)
    if temperature:
        assert bounded(dynamic, INFO).sampling.temperature == 0


def test_a_temperature_above_that_stays_and_dynamic_temperature_ends_there() -> None:
    assert bounded(job(Sampling, temperature=1e-5), INFO).sampling.temperature == 1e-5
    warm = bounded(job(Sampling, min_temp=0.0, max_temp=2.0), INFO).sampling
    assert (warm.min_temp, warm.max_temp, warm.temperature) == (GREEDY_BELOW, 2.0, 1.0)
    still = bounded(job(Sampling, min_temp=0.0, max_temp=0.0), INFO).sampling
    assert (still.min_temp, still.max_temp, still.temperature) == (0.0, 0.0, 1.0)


def test_a_model_s_own_odd_defaults_are_neutral() -> None:
    odd = {"temperature": math.nan, "top_k": 40, "top_p": 7.0}
    assert bounds.recommended(odd) == Sampling(top_k=40)


HELD = msgspec.structs.replace(INFO, constrains=True)


def test_a_grammar_has_a_largest_size_in_bytes() -> None:
    most = bounds.GENERATION["constraint"].size  # type: ignore[attr-defined]
    bounded(job(Generation, constraint=Constraint(grammar="x" * most)), HELD)
    for text in ("x" * (most + 1), "ü" * (most // 2 + 1), "\ud800"):
        with pytest.raises(InvalidJob) as refused:
            bounded(job(Generation, constraint=Constraint(grammar=text)), HELD)
        assert refused.value.param == "response_format"


def test_an_engine_that_takes_no_masks_refuses_a_grammar() -> None:
    with pytest.raises(InvalidJob, match="scripted can't be held to a grammar") as refused:
        bounded(job(Generation, constraint=Constraint(grammar="{}")), INFO)
    assert refused.value.param == "response_format"


ALL = tuple(range(INFO.vocab_size))
NEVER = float("-inf")


@pytest.mark.parametrize(
    ("forbidden", "param"),
    [
        ({"banned_tokens": ALL}, "logit_bias"),
        ({"logit_bias": tuple((token, NEVER) for token in ALL)}, "logit_bias"),
        ({"banned_tokens": ALL[:100], "logit_bias": tuple((t, NEVER) for t in ALL[100:])}, None),
        ({"banned_tokens": ALL[1:], "ban_eos": True}, None),
        ({"allowed_tokens": (5,), "banned_tokens": (5,)}, "allowed_tokens"),
        ({"allowed_tokens": (0,), "ban_eos": True}, "allowed_tokens"),
    ],
)
def test_a_job_that_forbids_every_token_is_refused(
    forbidden: dict[str, Any], param: str | None
) -> None:
    """Token 0 is the end."""
    with pytest.raises(InvalidJob, match="Every token is forbidden") as refused:
        check_choice(job(Sampling, **forbidden), INFO, lambda token: token == 0)
    assert refused.value.param == (param or "logit_bias")


def test_a_job_that_must_say_more_can_t_be_left_with_ends_alone() -> None:
    made = job(Sampling, allowed_tokens=(0,))
    check_choice(made, INFO, lambda token: token == 0)
    with pytest.raises(InvalidJob, match="Every token"):
        check_choice(msgspec.structs.replace(made, min_tokens=1), INFO, lambda token: token == 0)


@pytest.mark.parametrize(
    "left", [{"banned_tokens": ALL[1:]}, {"banned_tokens": ALL[:-1]}, {"allowed_tokens": (5,)}]
)
def test_a_job_that_leaves_one_token_is_none(left: dict[str, Any]) -> None:
    check_choice(job(Sampling, **left), INFO, lambda token: token == 0)


EXTREMES = """
import random, sys
import bundled
import msgspec
from backends.contract import catalog
from backends.contract.bounds import Number
from backends.contract.bounds import SAMPLING, bounded
from backends.engines.engine import PromptRead, Token
from backends.engines.llamacpp import loading
from backends.engines.llamacpp.engine import LlamaCppEngine
from backends.contract.protocol import Generation, Sampling
from config.engines import LlamaCppOptions

options = LlamaCppOptions(max_concurrent=1, context_length=128, threads=1)
engine = LlamaCppEngine(loading.load(catalog.recognise(bundled.GGUF), options, lambda _: True))
rng, kinds = random.Random(0), {f.name: str(f.type) for f in msgspec.structs.fields(Sampling)}

def extreme(name):
    bound = SAMPLING[name]
    high = bound.high if bound.high != float("inf") else 2**63
    inner = bound.low + (min(high, 3) - bound.low) * rng.random()
    value = rng.choice((bound.low, high, inner))
    return value if "float" in kinds[name] else int(value)

def others():
    yield {}
    yield {"allowed_tokens": (5,), "banned_tokens": (5,)}
    yield {"logit_bias": tuple((token, float("-inf")) for token in range(engine.info.vocab_size))}
    yield {"logit_bias": tuple((token, 1e4) for token in range(engine.info.vocab_size))}
    yield {"ban_eos": True, "dry_sequence_breakers": ("x" * 40, "\\0", "🚂" * 10)}
    yield {"temperature_last": True}

numbers = [name for name, bound in SAMPLING.items() if isinstance(bound, Number)]
for turn in range(int(sys.argv[1])):
    chosen = numbers if turn % 3 == 0 else rng.sample(numbers, 1 + turn % 5)
    extremes = {name: extreme(name) for name in chosen} | rng.choice(list(others()))
    print(extremes if len(str(extremes)) < 2000 else turn, flush=True)
    sampling = Sampling(**extremes)
    job = Generation(prompt=tuple(range(300, 330)), sampling=sampling, min_tokens=turn % 2)
    engine.admit(turn, bounded(job, engine.info))
    drawn = 0
    while drawn < 8:
        for token in engine.step():
            if isinstance(token, PromptRead):
                continue
            assert isinstance(token, Token) and 0 <= token.id < engine.info.vocab_size, token
            drawn += 1
    engine.release(turn)
engine.close()
print("alive")
"""


def survives(turns: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXTREMES, str(turns)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout.endswith("alive\n"), done.stdout[-2000:] + done.stderr[-2000:]


def test_no_sampling_within_the_bounds_ends_llama_cpp_s_process() -> None:
    survives(150)


@pytest.mark.long
def test_no_sampling_within_the_bounds_ever_ends_llama_cpp_s_process() -> None:
    survives(5_000)


def test_every_field_of_an_encoders_input_has_a_bound() -> None:
    assert ENCODER_INPUT.keys() == set(EncoderInput.__struct_fields__)


@pytest.mark.parametrize(
    ("count", "tokens", "param"),
    [(2_049, 1, "input"), (2_048, 100, None), (1, 101, "input[0]"), (2, 0, "input[0]")],
)
def test_how_much_one_request_may_have_encoded(count: int, tokens: int, param: str | None) -> None:
    inputs = [EncoderInput((1,) * tokens)] * count
    if param is None:
        check_inputs(inputs, INFO)
        return
    with pytest.raises(InvalidJob) as caught:
        check_inputs(inputs, INFO)
    assert caught.value.param == param


def test_all_texts_together_have_a_bound() -> None:
    wide = msgspec.structs.replace(INFO, context_length=10_000)
    with pytest.raises(InvalidJob, match="1,048,576"):
        check_inputs([EncoderInput((1,) * 10_000)] * 105, wide)
