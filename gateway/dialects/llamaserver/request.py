"""Parses llama-server's completion and infill bodies.

All that samples is read as OpenAI's text completion has it, whose fields know llama-server's names.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.dialects.fields import Fields, fields_of, json_object
from gateway.dialects.openai.request import TextExchange, read_text_fields
from gateway.errors import InvalidRequest
from gateway.request import Fill, FillFile, Prompt, TextRequest

MOST_FIELDS = 64  # of an answer, that a request may choose

_PROMPT_FORMS = (
    "Expected a text, a list of texts and token ids, an object with prompt_string, or a list of "
    "those."
)


class CompletionWire(msgspec.Struct, frozen=True, kw_only=True):
    """What OpenAI's text completion doesn't have."""

    return_tokens: bool = False
    return_progress: bool = False
    post_sampling_probs: bool = False
    response_fields: Annotated[list[str], Meta(max_length=MOST_FIELDS)] = []


class InfillWire(msgspec.Struct, frozen=True, kw_only=True):
    """The text around the gap. `prompt` is more of what stands before it."""

    input_prefix: str
    input_suffix: str
    input_extra: "list[ExtraWire]" = []
    prompt: str = ""


class ExtraWire(msgspec.Struct, frozen=True, kw_only=True):
    """Another file of the project."""

    text: str
    filename: str = "tmp"


class CompletionExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A completion, and the form of its answer."""

    request: TextRequest
    stream: bool = False
    ignored: tuple[str, ...] = ()
    return_tokens: bool = False
    post_sampling_probs: bool = False
    response_fields: tuple[str, ...] = ()

    @property
    def choices(self) -> int:
        """How many answers it has."""
        return len(self.request.prompts) * self.request.answering.n


def read_completion(body: bytes) -> CompletionExchange:
    """What a `/completion` body means. Raises InvalidRequest, which names the field."""
    values = json_object(body)
    prompts = read_prompts(values.get("prompt"))
    return _exchange(values, CompletionWire, prompts=prompts)


def read_infill(body: bytes) -> CompletionExchange:
    """What an `/infill` body means. Raises InvalidRequest, which names the field."""
    values = json_object(body)
    wire = Fields(_given(values), {}).read(InfillWire)
    files = tuple(FillFile(one.filename, one.text) for one in wire.input_extra)
    fill = Fill(wire.input_prefix + wire.prompt, wire.input_suffix, files)
    return _exchange(values, InfillWire, prompts=("",), fill=fill)


def _exchange(
    values: Mapping[str, Any],
    shape: type[msgspec.Struct],
    *,
    prompts: tuple[Prompt, ...],
    fill: Fill | None = None,
) -> CompletionExchange:
    wire = Fields(_given(values), {}).read(CompletionWire)
    own = {*CompletionWire.__struct_fields__, *shape.__struct_fields__}
    rest = {name: value for name, value in values.items() if name not in own}
    read = read_text_fields(fields_of({**rest, "prompt": ""}), least=0)
    answering = msgspec.structs.replace(
        read.request.answering,
        after_samplers=wire.post_sampling_probs and read.request.answering.logprobs is not None,
        reports_progress=wire.return_progress and read.stream,
        returns_tokens=wire.return_tokens or read.stream,
    )
    request = msgspec.structs.replace(
        read.request, prompts=prompts, fill=fill, answering=answering, returns_prompts=True
    )
    return CompletionExchange(
        request=request,
        stream=read.stream,
        ignored=_ignored(read, wire),
        return_tokens=wire.return_tokens,
        post_sampling_probs=answering.after_samplers,
        response_fields=tuple(wire.response_fields),
    )


def _ignored(read: TextExchange, wire: CompletionWire) -> tuple[str, ...]:
    """Progress is reported in streams alone."""
    pointless = wire.return_progress and not read.stream
    return (*read.ignored, *(("return_progress",) if pointless else ()))


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without nulls, which say that a field isn't given."""
    return {name: value for name, value in values.items() if value is not None}


# ------------------------------------------------------------------------------------------ prompts


def read_prompts(value: Any) -> tuple[Prompt, ...]:
    """One prompt, or several: texts, lists of token ids and texts, objects with a text."""
    if value is None:
        raise InvalidRequest("prompt: This field is required.", param="prompt")
    if isinstance(value, list) and not _is_one(value):
        return tuple(_prompt(item, f"prompt[{index}]") for index, item in enumerate(value))
    return (_prompt(value, "prompt"),)


def _is_one(items: list[Any]) -> bool:
    """Whether a list is one prompt: token ids, with or without texts among them. Texts alone are
    prompts of their own. An empty one is faulty either way.
    """
    kinds = {type(item) for item in items}
    return kinds <= {int, str} and kinds != {str}


def _prompt(value: Any, path: str) -> Prompt:
    match value:
        case str(text):
            return text
        case {"prompt_string": str(text)}:
            if value.get("multimodal_data"):
                raise _fault(f"{path}.multimodal_data", "Pictures are taken in chat messages.")
            return text
        case {"prompt_string": _}:
            raise _fault(f"{path}.prompt_string", "Expected a text.")
        case [_, *_]:
            return tuple(_part(part, f"{path}[{index}]") for index, part in enumerate(value))
        case []:
            raise _fault(path, "At least one token or text is required.")
    raise _fault(path, _PROMPT_FORMS)


def _part(part: Any, path: str) -> int | str:
    if isinstance(part, bool) or not isinstance(part, int | str):
        raise _fault(path, "Expected a token id or a text.")
    if isinstance(part, int) and not 0 <= part < 2**31:
        raise _fault(path, "Expected a token id.")
    return part


def _fault(path: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{path}: {message}", param=path)
