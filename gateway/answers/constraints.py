"""The constraints of an answer: the request's shape and its tools, as one grammar for the job.

Grammars are made in worker threads and kept by what they were made of: conversations bring the same
tools with every message.
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec

from backends.contract.conversation import Shape
from backends.contract.grammar_limits import control_tokens
from backends.contract.latest import Latest
from backends.contract.protocol import Constraint, ModelContainer
from gateway.answers.interpreter import Interpreter, is_held
from gateway.constraints.checking import fault_of
from gateway.constraints.compiling import fault_unconstrained, grammar_of
from gateway.constraints.grammars import ShapeGrammar
from gateway.constraints.values import Unwritable
from gateway.splitter.grammar import OutputGrammar, WantedOutput, output_grammar
from gateway.terms.errors import InvalidRequest
from gateway.terms.request import ChatRequest, GenerationParams, Unapplied
from gateway.terms.tasks import Wanted, WorkerThreads

# What is wrong with a content.
ContentCheck: TypeAlias = Callable[[str], Awaitable[str | None]]


T = TypeVar("T")
KEPT = 128  # grammars of each kind


class AnswerConstraint(msgspec.Struct, frozen=True):
    """For the job `constraint`, for the client `unapplied`, for the finished content `check`.

    `optional`: not requested by the client. Where the engine can't compile it, the answer goes
    without.
    """

    constraint: Constraint | None = None
    unapplied: tuple[Unapplied, ...] = ()
    check: ContentCheck | None = None
    optional: bool = False


FREE = AnswerConstraint()
UNCARRIED = "the grammar carries a looser form of it"
NO_GRAMMAR = "the engine has no grammar for these tools"
BEGUN = "an answer that the client began is not constrained"
WITHOUT_TOOLS = AnswerConstraint(unapplied=(Unapplied("tools", NO_GRAMMAR, partly=True),))
WITHOUT_STRICT = AnswerConstraint(unapplied=(Unapplied("tools[].strict", BEGUN, partly=True),))


class Constraints:
    """One per server."""

    def __init__(self, threads: WorkerThreads) -> None:
        self._threads = threads
        self._shapes = Latest[Hashable, ShapeGrammar](KEPT)
        self._outputs = Latest[Hashable, OutputGrammar | None](KEPT)
        self._control = Latest[Hashable, Mapping[str, int]](KEPT)  # of a vocabulary, text to id

    async def text(
        self, answering: GenerationParams, container: ModelContainer
    ) -> AnswerConstraint:
        """Of a text completion, whose whole output has the shape. Raises InvalidRequest."""
        if answering.shape is None:
            return FREE
        _require(container, answering.shape.field)
        shape = await self._shape(answering.shape)
        return self._bound(OutputGrammar(shape.text), shape, answering)

    async def chat(
        self,
        request: ChatRequest,
        interpreter: Interpreter,
        framed: str,
        container: ModelContainer,
    ) -> AnswerConstraint:
        """Of a chat's answer to the prompt `framed`. The reasoning before it stays free.

        Raises InvalidRequest for a shape, a tool or a choice that can't be kept to.
        """
        answering, shape = request.answering, request.answering.shape
        demanded = request.tool_choice not in ("auto", "none")
        if demanded or shape is not None:
            field = shape.field if shape is not None else "tool_choice"
            _require(container, field)
            if request.continue_final:
                text = "Not together with an answer that was begun by the client."
                raise InvalidRequest.at(field, text)
        elif not is_held(request, container.info) or not request.callable_tools:
            return (
                WITHOUT_STRICT if request.tool_choice == "auto" and _any_strict(request) else FREE
            )
        compiled = await self._shape(shape) if shape is not None else None
        optional = not (demanded or shape or request.allowed is not None or _any_strict(request))
        try:
            output = await self._output(request, interpreter, framed, container, compiled)
        except InvalidRequest:
            if optional:
                return WITHOUT_TOOLS
            raise
        if output is None:
            return FREE
        bound = self._bound(output, compiled, answering)
        return msgspec.structs.replace(bound, optional=optional)

    def remote(self, shape: Shape | None) -> ContentCheck | None:
        """The check of another server's answer, since it is unknown here whether that server
        enforces a shape; None where there is none.
        """
        return None if shape is None else self._beside(partial(fault_unconstrained, shape))

    def _beside(self, fault: Callable[[str], str | None]) -> ContentCheck:
        """The check beside the event loop."""
        return lambda content: self._threads.run(lambda _wanted: fault(content))

    async def _kept(
        self, known: Latest[Hashable, T], key: Hashable, make: Callable[[Wanted], T]
    ) -> T:
        """The value of `key`, made in a thread if it isn't known. What `make` raises isn't kept."""
        value = known.pop(key) if key in known else await self._threads.run(make)
        known[key] = value
        return value

    async def _shape(self, shape: Shape) -> ShapeGrammar:
        return await self._kept(self._shapes, shape, lambda _wanted: grammar_of(shape))

    async def _output(
        self,
        request: ChatRequest,
        interpreter: Interpreter,
        framed: str,
        container: ModelContainer,
        shape: ShapeGrammar | None,
    ) -> OutputGrammar | None:
        """The grammar of reasoning, text, calls and shape; None: the output may be anything."""
        special, output_format = container.info.special, interpreter.format
        control = await self._kept(
            self._control, special, lambda _wanted: control_tokens(container)
        )
        thinking, tail = interpreter.thinking(request, framed), interpreter.ending(framed)
        wanted = WantedOutput(
            tools=request.callable_tools,
            tool_choice=request.tool_choice,
            parallel=not request.one_call,
            shape=shape.entries if shape is not None else (),
        )

        def work(_wanted: Wanted) -> OutputGrammar | None:
            try:
                return output_grammar(
                    output_format, wanted, control=control, thinking=thinking, prompt_tail=tail
                )
            except Unwritable as error:  # by this format
                field = "tools" if wanted.tools else "tool_choice"
                raise InvalidRequest.at(field, error) from None

        asked = (request.callable_tools, request.tool_choice, request.one_call)
        key = (
            msgspec.json.encode((output_format, asked, thinking, tail)),
            special,
            request.answering.shape,
        )
        return await self._kept(self._outputs, key, work)

    def _bound(
        self, output: OutputGrammar, shape: ShapeGrammar | None, answering: GenerationParams
    ) -> AnswerConstraint:
        """Forced text is fed where no log probabilities are wanted for it."""
        notes = (*shape.relaxed, *shape.closed) if shape else ()
        names = (*(f"{note.place}.{note.keyword}" for note in notes), *output.relaxed)
        check = shape.check if shape is not None else None
        return AnswerConstraint(
            Constraint(grammar=output.text, fast_forward=answering.logprobs is None),
            tuple(Unapplied(name, UNCARRIED, partly=True) for name in names),
            None if check is None else self._beside(partial(fault_of, check)),
        )


def _require(container: ModelContainer, field: str) -> None:
    """Raises InvalidRequest where the engine takes no masks."""
    if not container.info.constrains:
        backend = container.info.backend
        raise InvalidRequest.at(field, f"{backend} can't hold an output to a form")


def _any_strict(request: ChatRequest) -> bool:
    """A tool's schema, or the grammar of its input, that the client relies on."""
    return any(
        tool.strict or (tool.input is not None and tool.input.shape is not None)
        for tool in request.callable_tools
    )
