"""Raw prompts as tokens: texts, token ids, both in turn, and texts to be filled in."""

from collections.abc import Iterator
from itertools import groupby

from backends.protocol import ModelContainer, SpecialTokens
from gateway.answers.tokens import Tokens
from gateway.errors import InvalidRequest, NotSupported
from gateway.request import Fill, Prompt, TextRequest

# What stands for the repository's and the file's own name, where a model wants names.
PROJECT, CURRENT = "project\n", "current\n"
SNIPPET = "\n\n--- snippet ---\n\n"  # between other files, where a model has no marker for them
LEFT_TO_ANSWER = 4  # a quarter of the context, where the request has no limit


async def text_prompts(
    tokens: Tokens, request: TextRequest, container: ModelContainer
) -> list[tuple[int, ...]]:
    """The request's prompts as tokens, each distinct one tokenized once. Raises GatewayError."""
    if request.fill is not None:
        return [await _filled(tokens, request, request.fill, container)]
    known: dict[Prompt, tuple[int, ...]] = {}
    for prompt in request.prompts:
        if prompt not in known:
            known[prompt] = await _prompt(tokens, request, container, prompt)
    return [known[prompt] for prompt in request.prompts]


def echoes(request: TextRequest, container: ModelContainer) -> tuple[str, ...]:
    """The texts of the prompts, as their client wrote them."""
    return tuple(_text(prompt, container) for prompt in request.prompts)


async def _prompt(
    tokens: Tokens, request: TextRequest, container: ModelContainer, prompt: Prompt
) -> tuple[int, ...]:
    if request.suffix is not None:
        prompt = _framed(request, container, prompt)
    if isinstance(prompt, str):
        return await tokens.of(container, prompt, add_bos=request.add_bos, param="prompt")
    plain = tuple(part for part in prompt if isinstance(part, int))
    if len(plain) == len(prompt):
        return plain
    return await tokens.mixed(container, prompt, add_bos=request.add_bos)


def _framed(request: TextRequest, container: ModelContainer, prompt: Prompt) -> str:
    """`prompt` and the suffix between the model's markers. Raises InvalidRequest."""
    special = container.info.special
    if not special.fill_middle:
        raise InvalidRequest("this model can't fill in before a suffix", param="suffix")
    text = _text(prompt, container)
    return f"{special.fill_prefix}{text}{special.fill_suffix}{request.suffix}{special.fill_middle}"


def _text(prompt: Prompt, container: ModelContainer) -> str:
    """Neighbouring tokens are read together: a character may take several."""
    if isinstance(prompt, str):
        return prompt
    texts: list[str] = []
    for _, alike in groupby(prompt, lambda part: isinstance(part, str)):
        parts = tuple(alike)
        tokens = tuple(part for part in parts if isinstance(part, int))
        texts += [container.detokenize(tokens)] if tokens else map(str, parts)
    return "".join(texts)


# ------------------------------------------------------------------------------------------ filling
# As llama-server has it (server-common.cpp, format_prompt_infill): other files, then what stands
# before and behind. Where all of it doesn't fit, what is nearest to the gap stays.


async def _filled(
    tokens: Tokens, request: TextRequest, fill: Fill, container: ModelContainer
) -> tuple[int, ...]:
    special = container.info.special
    if not (special.fill_prefix and special.fill_suffix and special.fill_middle):
        raise NotSupported("Infill is not supported by this model: it has no tokens for it.")
    before, behind = [
        await tokens.of(container, text, special=False, add_bos=False, param=param, whole=False)
        for text, param in ((fill.prefix, "input_prefix"), (fill.suffix, "input_suffix"))
    ]
    files = await _files(tokens, fill, container)
    bos = await tokens.of(container, "", param="prompt")
    markers = [
        container.tokenize(marker, special=True)
        for marker in (special.fill_prefix, special.fill_suffix, special.fill_middle)
    ]
    room = _room(request, container) - len(bos) - sum(map(len, markers))
    behind = behind[: max(0, room // 4, room - len(before))]
    before = before[max(0, len(before) - max(0, room - len(behind))) :]
    files = files[max(0, len(files) - max(0, room - len(behind) - len(before))) :]
    prefix, suffix, middle = markers
    return (*files, *bos, *prefix, *before, *suffix, *behind, *middle)


async def _files(tokens: Tokens, fill: Fill, container: ModelContainer) -> tuple[int, ...]:
    found: list[int] = []
    for text, special in _file_texts(fill, container.info.special):
        found += await tokens.of(
            container, text, special=special, add_bos=False, param="input_extra", whole=False
        )
    return tuple(found)


def _file_texts(fill: Fill, special: SpecialTokens) -> Iterator[tuple[str, bool]]:
    """Texts, and whether they are markers of the model."""
    if special.fill_repository:
        yield special.fill_repository, True
        yield PROJECT, False
    for file in fill.files:
        if special.fill_file:
            yield special.fill_file, True
            yield f"{file.name}\n", False
        else:
            yield SNIPPET, False
        yield file.text, False
    if special.fill_file:
        yield special.fill_file, True
        yield CURRENT, False


def _room(request: TextRequest, container: ModelContainer) -> int:
    """Tokens of the context that the prompt may have."""
    context, limit = container.info.context_length, request.answering.max_tokens
    left = context // LEFT_TO_ANSWER
    return context - 1 - (left if limit is None else min(limit, left))
