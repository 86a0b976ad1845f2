"""Whatever goes between the two ends of a container comes out of its bytes as it went in."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.contract.beginnings import Bytes, SavedSlot
from backends.contract.encoder import EncoderInput
from backends.contract.errors import (
    BackendError,
    GenerationFailed,
    InputTooLong,
    InvalidJob,
    LoadFailed,
    NotAble,
    OutOfMemory,
    PromptTooLong,
    UpstreamError,
)
from backends.contract.messages import (
    Answered,
    Begin,
    Command,
    Event,
    Failure,
    FoundThere,
    KeptAnswer,
    OfferedBytes,
    Outcomes,
    TakenHead,
)
from backends.contract.protocol import (
    Candidate,
    Constraint,
    Ended,
    Generation,
    Image,
    Piece,
    Pixels,
    PromptProgress,
    Scored,
    SlotState,
    ThinkingBudget,
    TokenLogprob,
)
from backends.contract.samplers import Sampling
from tests.backends.loopback import command_of, encode, event_of

LOGPROB = TokenLogprob(Candidate(1, b"\xff", -0.5), (Candidate(2, b"", -math.inf),))
JOB = Generation(
    prompt=(1, 2),
    sampling=Sampling(logit_bias=((3, -math.inf),), dry_sequence_breakers=("\x00", "🚂")),
    stop=("a",),
    thinking=ThinkingBudget(tokens=1, closing=(1,), opens=("<",), closes=(">",), is_open=True),
    constraint=Constraint(grammar="{}"),
    images=(Image(1, 1, Pixels(bytes(range(3)))),),
)
OF_ITS_TYPE: dict[object, object] = {
    Generation: JOB,
    KeptAnswer: FoundThere(
        9,
        "disk",
        TakenHead(
            owner="",
            tokens=b"\x00\xff" * 8,
            cuts_from=3,
            sizes=(70, 5),
            places=(2,),
            seconds=1.5,
            conversation="railway",
        ),
    ),
    tuple[EncoderInput, ...]: (EncoderInput((1, 2), second=1, cut=3), EncoderInput(())),
}
BYTES = st.binary().map(lambda data: np.frombuffer(data, np.uint8))
ENDED = Ended(
    cause="end_token",
    token=3,
    logprob=LOGPROB,
    prompt_tokens=1,
    cached_tokens=0,
    completion_tokens=3,
)


@pytest.mark.parametrize(
    "error",
    [
        BackendError("odd"),
        GenerationFailed("broken"),
        InvalidJob("no", "prompt"),
        InvalidJob("no"),
        NotAble("it can't"),
        LoadFailed("no"),
        OutOfMemory("too much"),
        PromptTooLong(7, 5),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_raised_as_it_came(error: BackendError) -> None:
    event = Outcomes(((1, Failure.of(error)),))
    decoded = event_of(encode(event))
    assert isinstance(decoded, Outcomes)
    ((_, failure),) = decoded.outputs
    assert isinstance(failure, Failure)
    raised = failure.error()
    assert (type(raised), str(raised), vars(raised)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UpstreamError("away"), BackendError),
        (InputTooLong(7, 5, "input"), InvalidJob),
    ],
)
def test_an_error_that_no_job_has_is_the_nearest_that_one_has(
    error: BackendError, kind: type[BackendError]
) -> None:
    raised = Failure.of(error).error()
    assert (type(raised), str(raised)) == (kind, str(error))


def kinds(union: object) -> list[type]:
    return list(union.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", kinds(Command), ids=lambda kind: kind.__name__)
@given(st.data())
def test_any_command_comes_as_it_went(kind: type, data: st.DataObject) -> None:
    fields = {
        field.name: OF_ITS_TYPE[field.type]
        if field.type in OF_ITS_TYPE
        else data.draw(BYTES if field.type == Bytes else st.integers(0, 2**40))
        for field in msgspec.structs.fields(kind)
    }
    command = kind(**fields)
    again = command_of(encode(command))
    assert (type(again), encode(again)) == (kind, encode(command))


@pytest.mark.parametrize(
    "output",
    [
        Piece("Grüße", (1, 2), (LOGPROB, LOGPROB)),
        Piece(""),
        Scored((LOGPROB,)),
        PromptProgress(3, 1, 2, 0.5),
        ENDED,
    ],
    ids=lambda output: type(output).__name__,
)
def test_any_output_comes_as_it_went(output: Piece | Scored | PromptProgress | Ended) -> None:
    step = Outcomes(((1, output), (2**40, output)))
    assert event_of(encode(step)) == step


@pytest.mark.parametrize("kind", kinds(Event), ids=lambda kind: kind.__name__)
def test_any_event_comes_as_it_went(kind: type) -> None:
    values = {"key": 7, "number": 7, "reason": "broken", "outputs": ((7, ENDED),)}
    values["answer"] = SavedSlot(3, np.frombuffer(b"cells", np.uint8))
    values["question"] = OfferedBytes(3, np.frombuffer(b"\x00\xff", np.uint8))
    values |= {"vectors": (b"\x00\xff", b""), "failure": Failure("InvalidJob", "no", "input")}
    values["unreached"] = True
    names = [field.name for field in msgspec.structs.fields(kind)]
    event = kind(**{name: values[name] for name in names})
    again = event_of(encode(event))
    assert (type(again), encode(again)) == (kind, encode(event))


def test_a_slot_s_state_comes_with_its_job() -> None:
    states = (SlotState(id=0, cells=3, task=1, job=JOB), SlotState(id=1))
    [kind] = [one for one in kinds(Answered.__annotations__["answer"]) if hasattr(one, "states")]
    answered = Answered(1, kind(states))
    assert event_of(encode(answered)) == answered


def test_a_token_of_a_step_takes_few_bytes() -> None:
    step = Outcomes(tuple((key, Piece(" the", (300 + key,))) for key in range(16)))
    assert len(encode(step)) < 16 * 32
    assert isinstance(command_of(encode(Begin(1, JOB))), Begin)
