"""200 schemas from the field on models too hot to keep to anything by themselves: what is finished
satisfies its schema, and what is cut could have gone on.
"""

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from jsonschema.validators import validator_for

import bundled
from backends.contract import catalog
from backends.contract.protocol import Cause, Constraint, ModelContainer
from backends.contract.samplers import Sampling
from config.engines import LlamaCppOptions, TransformersOptions
from gateway.constraints.checking import fault_of
from gateway.constraints.grammars import ShapeGrammar
from tests.backends.container_contract import Subject, job, run, text_of
from tests.gateway.constraints.machine import Case, Machine, cases, schema

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

AT_ONCE = 16
HOT = 1.5
LONGEST = 200  # tokens
ENDINGS = ('"', "}", "]")  # likelier than the model has them: by itself it hardly comes to an end
BIAS = 10.0
FINISHED = 100  # answers of 200, at least; about 145 are
PROMPT = "Hello!"


async def llamacpp() -> ModelContainer:
    files = catalog.recognise(bundled.GGUF)
    options = LlamaCppOptions(max_concurrent=AT_ONCE, context_length=256)
    return await catalog.BACKENDS["llamacpp"].container.load(files, options, lambda _: None)


async def transformers() -> ModelContainer:
    files = catalog.recognise(bundled.SAFETENSORS, "transformers")
    options = TransformersOptions(device="cpu", max_concurrent=AT_ONCE, context_length=256)
    return await catalog.BACKENDS["transformers"].container.load(files, options, lambda _: None)


class Answer(msgspec.Struct, frozen=True):
    """What a model said, held to a schema."""

    case: Case
    made: ShapeGrammar
    text: str
    cause: Cause


async def answered(subject: Subject, number: int, case: Case) -> Answer:
    made = await anyio.to_thread.run_sync(schema, case.schema)
    ends = [subject.container.tokenize(text, special=False)[-1] for text in ENDINGS]
    asked = job(
        subject,
        PROMPT,
        constraint=Constraint(grammar=made.text, fast_forward=number % 2 == 0),
        sampling=Sampling(
            temperature=HOT, seed=number, logit_bias=tuple((token, BIAS) for token in ends)
        ),
        max_tokens=LONGEST,
    )
    pieces, ended = await run(subject.container, asked)
    return Answer(case, made, text_of(pieces), ended.cause)


async def all_answers(container: ModelContainer) -> list[Answer]:
    """To every schema, `AT_ONCE` at a time."""
    subject = Subject(container, prompt=PROMPT, long=PROMPT)
    limited, answers = anyio.CapacityLimiter(AT_ONCE), list[Answer]()

    async def one(number: int, case: Case) -> None:
        async with limited:
            answers.append(await answered(subject, number, case))

    async with anyio.create_task_group() as tasks:
        for number, case in enumerate(cases()):
            tasks.start_soon(one, number, case)
    return answers


def satisfies(document: Any, text: str) -> bool:
    return bool(validator_for(document)(document).is_valid(json.loads(text)))


def wrong_of(answer: Answer) -> str | None:
    """How a finished answer breaks the promise: what the grammar carries holds, and of what it
    doesn't carry the check says what jsonschema says.
    """
    assert answer.made.check is not None
    valid = satisfies(answer.case.schema, answer.text)
    if not answer.made.relaxed:
        return None if valid else "doesn't satisfy its schema"
    fault = fault_of(answer.made.check, answer.text)
    return None if valid == (fault is None) else f"valid: {valid}, fault: {fault}"


@pytest.mark.parametrize("loaded", [llamacpp, transformers])
async def test_answers_satisfy_their_schemas(
    loaded: Callable[[], Awaitable[ModelContainer]],
) -> None:
    container = await loaded()
    answers = await all_answers(container)
    await container.aclose()
    wrong = []
    for answer in answers:
        if answer.cause == "end_token":
            fault = wrong_of(answer)
        else:
            begun = Machine(answer.made.text).begins(answer.text)
            fault = None if begun else "can't begin a text of its grammar"
        if fault is not None:
            wrong.append((answer.case.id, answer.text, fault))
    assert wrong == []
    causes = Counter(answer.cause for answer in answers)
    assert set(causes) <= {"end_token", "max_tokens"}
    assert causes["end_token"] >= FINISHED
