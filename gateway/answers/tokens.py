"""A request's prompt as tokens: a text as it is, a conversation through its model's template.

What is long is done in a thread, given up when the client leaves, and refused before it is
tokenized where it can't fit the model's context.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec

from backends.contract.protocol import ModelContainer, ModelInfo, Tokenizing
from gateway.answers.control_tokens import PromptTokenizer
from gateway.answers.interpreter import Interpreter, Interpreters
from gateway.prompt import AT_ONCE, FULL, Allowance, LimitExceeded, RenderedPrompt
from gateway.registry import Lease
from gateway.terms.errors import ContextLengthExceeded, InvalidRequest, translated
from gateway.terms.request import ChatRequest, ImagePart, TextPart
from gateway.terms.tasks import Abandoned, Wanted, WorkerThreads

T = TypeVar("T")

FEW_TOKENS = 2_048  # so many are spelled at a time; more of them beside the event loop
JOINED = 2  # tokens that may be others where a text is cut
LEFT_OUT = 8  # times what fits: a template may leave much of a conversation out
LONG_TEXT = 8_192  # characters; what is longer is rendered and tokenized beside the event loop


class Prompt(msgspec.Struct, frozen=True):
    """A conversation as the model reads it."""

    interpreter: Interpreter
    rendered: RenderedPrompt
    tokens: tuple[int, ...]
    # See `backends.contract.protocol.Generation`; only where they are heeded.
    marks: tuple[int, ...] = ()


class Tokens(msgspec.Struct):
    """Renders and tokenizes with any container. `allow_control_tokens`: for requests that don't set
    it.
    """

    threads: WorkerThreads
    interpreters: Interpreters
    allow_control_tokens: bool

    async def of(
        self,
        container: Tokenizing,
        text: str,
        *,
        special: bool = True,
        add_bos: bool | None = None,
        param: str = "prompt",
        whole: bool = True,
    ) -> tuple[int, ...]:
        """The tokens of `text`, with one bos in front where the model wants it.

        `special`: the texts of control tokens become those tokens. `add_bos` None: as the model
        does. `param`: the field the text came from. `whole`: it must fit the context. Raises
        ContextLengthExceeded.
        """

        def work(_wanted: Wanted) -> tuple[int, ...]:
            if whole:
                refuse_too_long(container.info, text, param)
            with translated():
                return _of_text(container, text, special=special, add_bos=add_bos)

        return await self.threads.run(work, is_long=len(text) >= LONG_TEXT)

    async def mixed(
        self,
        container: ModelContainer,
        parts: Sequence[int | str],
        *,
        add_bos: bool | None = None,
    ) -> tuple[int, ...]:
        """Token ids and texts in turn, as one prompt. A bos stands in front as in `of`, where the
        first part is a text. Raises ContextLengthExceeded.
        """

        def work(wanted: Wanted) -> tuple[int, ...]:
            found: list[int] = []
            for number, part in enumerate(parts):
                if len(found) > container.info.context_length:
                    break  # the caller refuses so many
                if not wanted():
                    raise Abandoned
                if isinstance(part, int):
                    found.append(part)
                    continue
                refuse_too_long(container.info, part, "prompt")
                bos = False if number else add_bos
                with translated():
                    found += _of_text(container, part, special=True, add_bos=bos)
            return tuple(found)

        return await self.threads.run(work)

    async def spelled(
        self, container: ModelContainer, prompts: Sequence[Sequence[int]]
    ) -> tuple[str, ...]:
        """The prompts as their model reads them, control tokens spelled out."""

        def work(wanted: Wanted) -> tuple[str, ...]:
            return tuple(text_of(container, prompt, wanted) for prompt in prompts)

        return await self.run(work, sum(map(len, prompts)))

    async def run(self, work: Callable[[Wanted], T], tokens: int) -> T:
        """`work` on so many tokens, where they are many beside the event loop."""
        return await self.threads.run(work, is_long=tokens >= FEW_TOKENS)

    async def chat(self, request: ChatRequest, lease: Lease) -> Prompt:
        """The prompt that asks for an answer. Raises InvalidRequest, InvalidTemplate."""
        container = lease.local
        interpreter = await self.interpreters.of(container, lease.entry, request)
        if request.allow_control_tokens is None:
            request = msgspec.structs.replace(
                request, allow_control_tokens=self.allow_control_tokens
            )

        def work(wanted: Wanted, allowance: Allowance = FULL) -> Prompt:
            _refuse_hopeless(container.info, request)
            rendered = interpreter.render(request, container, allowance, wanted)
            if allowance is not FULL and len(rendered.text) > LONG_TEXT:
                raise LimitExceeded("it is long")
            refuse_too_long(container.info, rendered.text, "messages")
            with translated():
                tokens, marks = self._of_prompt(container, interpreter, rendered, wanted)
            return Prompt(interpreter, rendered, tokens, marks)

        if _is_short(request):
            try:
                return work(lambda: True, AT_ONCE)
            except LimitExceeded:
                pass  # it is longer than estimated
        return await self.threads.run(work)

    async def rendered(
        self, request: ChatRequest, lease: Lease
    ) -> tuple[Interpreter, RenderedPrompt]:
        """The prompt as text, for a model whose tokens aren't known here. Raises as `chat`."""
        container = lease.container
        interpreter = await self.interpreters.of(container, lease.entry, request)
        render = partial(interpreter.render, request, container, FULL)
        return interpreter, await self.threads.run(render)

    def _of_prompt(
        self,
        container: ModelContainer,
        interpreter: Interpreter,
        rendered: RenderedPrompt,
        wanted: Wanted,
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Its tokens, and the marks among them."""
        tokenizer = PromptTokenizer(container, interpreter.spellings)
        text, clients, marks = rendered.text, rendered.clients, rendered.marks
        bos = container.info.special.bos
        if container.info.adds_bos and bos and not rendered.framed.startswith(bos):
            text = bos + text
            clients = tuple((start + len(bos), end + len(bos)) for start, end in clients)
            marks = tuple(mark + len(bos) for mark in marks)

        def check() -> None:
            if not wanted():
                raise Abandoned

        check()
        if rendered.pictures and container.info.image_marker is None:
            _refuse_spelled(tokenizer, text, clients)
        tokens = tokenizer.tokens(text, clients, check)

        def before(mark: int) -> int:
            """How many of `tokens` stand before that character. Where they join what is before with
            what is behind, some less.
            """
            check()
            cut = tuple((max(start - mark, 0), end - mark) for start, end in clients if end > mark)
            behind = tokenizer.tokens(text[mark:], cut, check)
            count = len(tokens) - len(behind)
            joined = tokens[count:] != behind if count >= 0 else True
            return max(0, count - JOINED if joined else count)

        return tokens, tuple(map(before, marks)) if container.info.heeds_marks else ()


def _refuse_spelled(
    tokenizer: PromptTokenizer, text: str, clients: tuple[tuple[int, int], ...]
) -> None:
    """Raises InvalidRequest: a model's own processor of images reads the prompt as text again."""
    if found := tokenizer.spelled(text, clients):
        start, end = found[0]
        raise InvalidRequest(
            f"Beside an image this model can't read {text[start:end]!r} as plain text. Leave it "
            "out, or send allow_control_tokens.",
            param="messages",
        )


def refuse_too_long(info: ModelInfo, text: str, param: str) -> None:
    """Raises ContextLengthExceeded for a text of more bytes than so many tokens can hold."""
    longest = info.longest_token_bytes
    if not longest or len(text) * 4 <= info.context_length * longest:
        return  # a character has four bytes at most
    least = -(-len(text.encode("utf-8", "surrogatepass")) // longest)
    if least > info.context_length:
        raise _too_long(info, least, len(text), param)


def _refuse_hopeless(info: ModelInfo, request: ChatRequest) -> None:
    """Raises ContextLengthExceeded for a conversation that no template makes short enough: to
    render one of many megabytes takes ten times their memory.
    """
    longest = info.longest_token_bytes
    if not longest:
        return
    parts = (part for message in request.messages for part in message.parts)
    size = sum(len(part.text) for part in parts if isinstance(part, TextPart))
    if size > LEFT_OUT * info.context_length * longest:
        raise _too_long(info, size // longest, size, "messages")


def _too_long(info: ModelInfo, least: int, characters: int, param: str) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"The prompt has at least {least} tokens ({characters} characters), and the model's "
        f"context holds {info.context_length}.",
        param=param,
        prompt_tokens=least,
        context_length=info.context_length,
    )


def text_of(container: ModelContainer, tokens: Sequence[int], wanted: Wanted) -> str:
    """Their text; bytes that are none are marked. Raises Abandoned."""
    return b"".join(pieces_of(container, tokens, wanted)).decode(errors="replace")


def pieces_of(container: ModelContainer, tokens: Sequence[int], wanted: Wanted) -> Iterator[bytes]:
    """The bytes of each token. Raises Abandoned."""
    for start in range(0, len(tokens), FEW_TOKENS):
        if not wanted():
            raise Abandoned
        yield from container.pieces(tokens[start : start + FEW_TOKENS])


def _of_text(
    container: Tokenizing, text: str, *, special: bool, add_bos: bool | None
) -> tuple[int, ...]:
    bos = container.info.special.bos
    wanted = bool(bos) and (container.info.adds_bos if add_bos is None else add_bos)
    if special:
        begun = not wanted or text.startswith(bos)
        return container.tokenize(text if begun else bos + text, special=True)
    tokens = container.tokenize(text, special=False)
    return container.tokenize(bos, special=True) + tokens if wanted else tokens


def _is_short(request: ChatRequest) -> bool:
    """Whether its texts have less than `LONG_TEXT` characters, or values. Stops counting there."""
    left = LONG_TEXT
    waiting: list[Any] = [(request.messages, request.tools, request.template_variables)]
    while waiting and left >= 0:
        value = waiting.pop()
        left -= len(value) + 1 if isinstance(value, str) else 1
        waiting += islice(_inside(value), max(0, left + 1))
    return left >= 0


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, msgspec.Struct) and not isinstance(value, ImagePart):
        return msgspec.structs.astuple(value)
    return value if isinstance(value, list | tuple) else ()
