"""A model's interpreter: the chat template, the output format and why it was chosen, the presets
of sampling parameters, and the capabilities that follow from the template.

Reading a template takes some ten milliseconds, because the analysis renders it several times. So it
is read once, in a worker thread.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeAlias

import anyio
import msgspec
import structlog
from anyio import to_thread
from msgspec.structs import replace

from backends.contract.latest import Latest
from backends.contract.protocol import ModelContainer, ModelInfo, SpecialTokens, ThinkingBudget
from backends.contract.remote import RemoteTarget
from backends.places.upstream.upstream import Container
from config.document import parse
from config.errors import ConfigError
from gateway.answers.control_tokens import Spellings
from gateway.answers.recording import Split
from gateway.answers.stopping import Splitting, StopStrings
from gateway.dialects.fields import read_fields
from gateway.dialects.openai import read_text
from gateway.dialects.parameters import SamplingWire
from gateway.prompt import (
    DEFAULT_TEMPLATE,
    FULL,
    TURNS,
    Allowance,
    ChatTemplate,
    RenderedPrompt,
    with_reasoning,
)
from gateway.registry import ModelEntry, ModelStatus
from gateway.splitter import (
    FORMATS,
    Format,
    Recognised,
    Splitter,
    reasoning_ends,
    recognise,
    starts_in_reasoning,
)
from gateway.splitter.grammar import Thinking
from gateway.terms.errors import InvalidRequest, InvalidTemplate
from gateway.terms.paths import chosen_file, listed
from gateway.terms.request import (
    ChatRequest,
    GenerationParams,
    Message,
    RequestedSampling,
    TextPart,
    Unapplied,
)
from gateway.terms.tasks import Wanted

log = structlog.get_logger(__name__)

_LENGTHS = frozenset({"max_tokens", "min_tokens", "stop"})
_KNOWN = frozenset(SamplingWire.__struct_fields__) | _LENGTHS


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The override of one parameter: it stands in where a request says nothing; with `force`
    whatever the request says; with `additive` a list goes in front of the request's.
    """

    override: Any
    force: bool = False
    additive: bool = False


class OverridePreset(msgspec.Struct, frozen=True, kw_only=True):
    """Overrides by parameter, as their author wrote them, and sorted as they are applied."""

    name: str | None = None
    overrides: Mapping[str, Override] = {}
    default: GenerationParams = GenerationParams()
    forced: GenerationParams = GenerationParams()
    added: GenerationParams = GenerationParams()

    def over(self, params: GenerationParams) -> GenerationParams:
        """`params` with the overrides applied."""
        if not self.overrides:
            return params
        sampling = _over(_over(self.default.sampling, params.sampling), self.forced.sampling)
        limits = (self.forced.max_tokens, params.max_tokens, self.default.max_tokens)
        return replace(
            params,
            sampling=_joined(self.added.sampling, sampling),
            max_tokens=next((limit for limit in limits if limit is not None), None),
            min_tokens=self.forced.min_tokens or params.min_tokens or self.default.min_tokens,
            stop=self.added.stop + (self.forced.stop or params.stop or self.default.stop),
        )


def preset(given: Mapping[str, Any], name: str | None = None) -> OverridePreset:
    """The overrides in `given`. Raises InvalidRequest, naming the parameter at fault."""
    overrides: dict[str, Override] = {}
    for key, value in given.items():
        try:
            overrides[key] = msgspec.convert(value, Override)
        except msgspec.ValidationError as error:
            raise InvalidRequest.at(key, error) from None
    kinds: dict[str, dict[str, Override]] = {"forced": {}, "added": {}, "default": {}}
    for key, one in overrides.items():
        kind = "forced" if one.force else "added" if one.additive else "default"
        if kind == "added" and not isinstance(one.override, list):
            raise InvalidRequest.at(key, "only a list can be additive")
        kinds[kind][key] = one
    return OverridePreset(
        name=name, overrides=overrides, **{kind: _answering(these) for kind, these in kinds.items()}
    )


class SamplingOverrides:
    """The overrides in force (`current`, from the next request on), and the YAML files to choose
    others from.
    """

    def __init__(self, folder: Path | None, name: str | None = None) -> None:
        """Raises ConfigError where the preset `name` can't be used."""
        self._folder = folder
        self.current = OverridePreset()
        self._configured = name
        if name is not None:
            try:
                self.current = self.read(name)
            except InvalidRequest as error:
                raise ConfigError("the configuration", "$.preset", error.message) from None

    def apply(self, folder: Path | None, name: str | None, chosen: OverridePreset) -> None:
        """From now on this is the folder, and `chosen` in force where the configuration names
        another preset than before: what an administrator has chosen since stays.
        """
        self._folder = folder
        if self._configured != name:
            self._configured, self.current = name, chosen

    def names(self) -> tuple[str, ...]:
        """What may be chosen now. Scans the folder."""
        return tuple(listed(self._folder, (".yml", ".yaml")))

    def read(self, name: str) -> OverridePreset:
        """The preset called `name`. Raises InvalidRequest. Blocks to read a small file."""
        path = chosen_file("Preset", name, listed(self._folder, (".yml", ".yaml")), "preset")
        try:
            given, _ = parse(path.read_text("utf-8"), path.name)
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise InvalidRequest(f"{name} can't be read: {error}", param="preset") from error
        if not isinstance(given, dict):
            raise InvalidRequest(f"{name} contains no named parameters", param="preset")
        return preset(given, name)


def _answering(overrides: Mapping[str, Override]) -> GenerationParams:
    """As if a request had said so: the same spellings, the same limits."""
    values = {name: one.override for name, one in overrides.items() if one.override is not None}
    fields = read_fields(msgspec.json.encode(values))
    for name in fields.values.keys() - _KNOWN:
        raise InvalidRequest(f"{name} is not a sampling parameter", param=name)
    return read_text(msgspec.json.encode({**values, "prompt": ""})).request.answering


def _over(low: RequestedSampling, high: RequestedSampling) -> RequestedSampling:
    texts = low.text_biases if "logit_bias" not in high.named else ()
    return RequestedSampling(
        high.over(low.values), low.named | high.named, high.text_biases or texts
    )


def _joined(added: RequestedSampling, requested: RequestedSampling) -> RequestedSampling:
    """Lists in front of those that are there."""
    joined = {name: getattr(added.values, name) + _list(requested, name) for name in added.named}
    return RequestedSampling(
        replace(requested.values, **joined),
        requested.named | added.named,
        added.text_biases + requested.text_biases,
    )


def _list(requested: RequestedSampling, name: str) -> tuple[Any, ...]:
    items: Iterable[Any] = getattr(requested.values, name) if name in requested.named else ()
    return tuple(items)


# Chat templates that administrators put in place of a model's own, until they take them back.


class Chosen(msgspec.Struct, frozen=True):
    """A template by its name, and its text at the time it was chosen."""

    name: str
    source: str


class Templates:
    """`folder` holds NAME.jinja files; None: there is nothing to choose from."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._chosen: dict[str, Chosen] = {}

    def apply(self, folder: Path | None) -> None:
        """From now on this is the folder; what was chosen stays."""
        self._folder = folder

    def names(self) -> tuple[str, ...]:
        """What may be chosen now. Scans the folder."""
        return tuple(self._files())

    def read(self, name: str, param: str) -> Chosen:
        """The template called `name`. Reads and tries it; blocks for some milliseconds.

        Raises InvalidRequest for an unknown name and for a template that can't be used; `param` is
        the field that named it.
        """
        path = chosen_file("Template", name, self._files(), param)
        try:
            source = path.read_text("utf-8")
            ChatTemplate(source, SpecialTokens())
        except (OSError, UnicodeDecodeError, InvalidTemplate) as error:
            raise InvalidRequest(f"{name} can't be used: {error}", param=param) from error
        return Chosen(name, source)

    def switch(self, model: str, chosen: Chosen) -> None:
        """From the next request on `model` uses `chosen`."""
        self._chosen[model] = chosen

    def unload(self, model: str) -> None:
        """Back to the model's own."""
        self._chosen.pop(model, None)

    def chosen(self, model: str) -> str | None:
        """The name of the template in place of the model's own."""
        found = self._chosen.get(model)
        return found.name if found else None

    def source(self, entry: ModelEntry) -> str | None:
        """The text in place of what the model carries: chosen, else configured."""
        found = self._chosen.get(entry.name)
        return found.source if found else entry.template

    def _files(self) -> Mapping[str, Path]:
        return listed(self._folder, (".jinja",))


class Interpreter(msgspec.Struct, frozen=True):
    """The template that makes a prompt of a conversation, and the format that makes events of an
    answer.
    """

    template: ChatTemplate
    recognised: Recognised
    spellings: Spellings
    keep_reasoning: Literal["auto"] | bool = "auto"  # of earlier turns
    stops: tuple[str, ...] = ()  # texts that end an answer, and are no tokens
    marks_reasoning: bool = True  # its template or its vocabulary has a marker of reasoning

    @property
    def format(self) -> Format:
        return self.recognised.format

    @property
    def split(self) -> Split:
        """By which rules, in words."""
        return Split(self.recognised.format.id, self.recognised.why)

    def render(
        self,
        request: ChatRequest,
        container: Container,
        allowance: Allowance = FULL,
        wanted: Wanted = lambda: True,
    ) -> RenderedPrompt:
        """The prompt, with pictures where this container finds them. Raises as
        `ChatTemplate.render`.
        """
        if self.keep_reasoning != "auto":
            request = with_reasoning(request, self.template.traits, keep=self.keep_reasoning)
        shown = request.tools if is_held(request, container.info) else request.callable_tools
        tools = () if self.recognised.why == UNTAUGHT else shown
        found = self.template.render(
            replace(request, tools=tools),
            image_marker=container.info.image_marker,
            allowance=allowance,
            wanted=wanted,
        )
        if self.recognised.why != UNTAUGHT:
            return found
        lost = (Unapplied("tools", UNTAUGHT),) if request.tools else ()
        chat = Unapplied("messages", UNTAUGHT, partly=True)
        return replace(found, unapplied=(*found.unapplied, chat, *lost))

    def splitter(self, request: ChatRequest, params: GenerationParams, prompt: str) -> Splitting:
        """A fresh one for an answer to `prompt`, the rendered text as the template framed it:
        nothing a client wrote says how an answer begins. Stop strings end it, and not the job: an
        engine can't distinguish an answer from reasoning. `params`: with the presets.
        """
        is_inline = request.thinking.shown == "inline"
        splitter = Splitter(
            self.format,
            in_reasoning=starts_in_reasoning(self.format, prompt),
            tools=request.callable_tools,
            parse_tools=request.tool_choice != "none",
            split_reasoning=not is_inline,
            prompt_tail=prompt[-TAIL:],
            first_call_number=sum(len(message.tool_calls) for message in request.messages),
        )
        if not params.stop:
            return splitter
        in_reasoning = params.stop_in_reasoning
        return StopStrings(splitter, params.stop, in_reasoning=in_reasoning, inline=is_inline)

    def thinking(self, request: ChatRequest, prompt: str) -> Thinking:
        """Whether an answer to `prompt` begins inside reasoning, may begin with it, or may not."""
        if starts_in_reasoning(self.format, prompt):
            return "opened"
        thinking = request.thinking
        off = thinking.enabled is False or thinking.budget == 0 or not self.marks_reasoning
        return "off" if off else "possible"

    def ending(self, prompt: str) -> str:
        """As much of the end of `prompt` as says how an answer begins, the same for every prompt
        that a template ends alike.
        """
        headers = self.format.headers
        ends = (self.format.implied_opener, *(headers.ends if headers else ()))
        length = max(map(len, ends))
        return prompt[len(prompt) - length :]

    def budget(
        self, request: ChatRequest, prompt: str, container: ModelContainer
    ) -> ThinkingBudget | None:
        """The thinking budget as the driver enforces it, `prompt` as for the splitter; None
        when there is none, or no reasoning to limit.
        """
        thinking, reasoning = request.thinking, self.format.reasoning
        if thinking.budget is None or reasoning is None:
            return None
        closing = thinking.closing + reasoning.close
        return ThinkingBudget(
            tokens=thinking.budget,
            closing=container.tokenize(closing, special=True),
            opens=reasoning.opens,
            closes=reasoning_ends(
                self.format, parse_tools=bool(request.tools) and request.tool_choice != "none"
            ),
            anywhere=reasoning.anywhere,
            is_open=starts_in_reasoning(self.format, prompt),
        )


def is_held(request: ChatRequest, info: ModelInfo) -> bool:
    """A grammar can hold the answer to the tools that may be called."""
    return info.constrains and not request.continue_final


DESCRIBED_TOOLS = "hermes_json"
UNTAUGHT = "no chat template: use completions"
MOST_INTERPRETERS = 64  # interpreters; templates can be switched without end
TAIL = 512  # characters of the prompt that may say how an answer begins


SWITCH = "enable_thinking"  # the variable of most templates, and what clients set


def as_configured(request: ChatRequest, entry: ModelEntry) -> ChatRequest:
    """`request` with what the configuration says of its model where it says nothing itself: the
    system message, and variables of the template.
    """
    if entry.system is not None and not any(one.role == "system" for one in request.messages):
        system = Message(role="system", parts=(TextPart(entry.system),))
        request = replace(request, messages=(system, *request.messages))
    if not entry.template_variables:
        return request
    variables, thinking = dict(entry.template_variables), request.thinking
    if isinstance(thinks := variables.get(SWITCH), bool):
        if thinking.enabled is None:
            thinking = replace(thinking, enabled=thinks)
        else:
            del variables[SWITCH]  # the request says otherwise
    variables |= request.template_variables
    return replace(request, thinking=thinking, template_variables=variables)


class Interpreters:
    """One for each template and tokenizer; the `MOST_INTERPRETERS` last used are kept."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._known = Latest[Hashable, Interpreter](MOST_INTERPRETERS)

    async def of(
        self, container: Container, entry: ModelEntry, request: ChatRequest
    ) -> Interpreter:
        """Waits for a thread where the template must be read first. Raises InvalidTemplate."""
        info = container.info
        calling = request.tools or any(message.tool_calls for message in request.messages)
        source = self._templates.source(entry) or (info.tool_template if calling else None)
        template = source or info.chat_template
        own = (info.special, info.response_template, info.architecture)
        key = (entry.name, template, *own, entry.format, request.format, entry.keep_reasoning)
        found = self._known.get(key)
        if found is None:
            found = await to_thread.run_sync(interpret, info, entry, source, request.format)
        self._known[key] = found  # used last, so forgotten last
        return found


def interpret(
    info: ModelInfo, entry: ModelEntry, source: str | None, named: str | None = None
) -> Interpreter:
    """`source` (chosen or configured) wins over what the model carries, and that over the default;
    the format `named` in a request over all others. Raises InvalidTemplate.
    """
    source = source or info.chat_template or DEFAULT_TEMPLATE
    template = ChatTemplate(source, info.special, entry.name)
    if named:
        recognised = Recognised(FORMATS[named], "named in the request")
    else:
        recognised = recognised_format(entry, info, source, template)
    log.info("format of answers", model=entry.name, id=recognised.format.id, why=recognised.why)
    template = template.speaking(recognised.format)
    # With all markers that frame a model's turns, reasoning and calls.
    spellings = Spellings(info.special, "\n".join((source, *_reasoning(recognised.format))))
    stops: tuple[str, ...] = ()
    if recognised.why == UNTAUGHT:
        log.warning(UNTAUGHT, model=entry.name)
        stops = tuple(text for text in TURNS if text not in info.special.control)
    if not recognised.reads_calls:
        log.warning("answers may show markers", model=entry.name, format=recognised.why)
    known = "\n".join((source, *info.special.control))
    marks = recognised.format.headers is not None or any(
        marker in known for marker in _reasoning(recognised.format)
    )
    return Interpreter(template, recognised, spellings, entry.keep_reasoning, stops, marks)


def _reasoning(form: Format) -> Sequence[str]:
    return (*form.reasoning.opens, *form.reasoning.closes) if form.reasoning else ()


def recognised_format(
    entry: ModelEntry, info: ModelInfo | None, source: str, template: ChatTemplate | None
) -> Recognised:
    """The output format of a model with the template `source`; without `info` it isn't loaded yet.

    Config wins over what is recognised, and a file's own word over what the template shows. Before
    a load the control tokens are unknown, so the format of a model whose template has few markers
    may change after the load.
    """
    if entry.format:
        return Recognised(FORMATS[entry.format], "named in the configuration")
    if source == DEFAULT_TEMPLATE:
        return Recognised(FORMATS["plain"], UNTAUGHT)
    found = recognise(
        template=source,
        control_tokens=info.special.control if info else (),
        model_type=info.architecture if info else entry.files.architecture,
        response_template=info.response_template if info else None,
    )
    if template is None:
        return found
    if found.format.id != "declared":
        found = template.proven(found)
    if template.traits.tools == "described":
        # The template knows no tools, so the prompt asks for calls in a form of ours. The model
        # may have one of its own all the same.
        own = found.format.syntaxes
        syntaxes = tuple(dict.fromkeys((*FORMATS[DESCRIBED_TOOLS].syntaxes, *own)))
        described = msgspec.structs.replace(found.format, syntaxes=syntaxes)
        found = Recognised(described, f"{found.why}; its tools are described in the prompt")
    return found


MOST_MODELS = 4_096  # models, each with its templates
PATIENCE = 0.025  # seconds a list waits for models not known yet


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known from a model's files or its container."""

    # "tools", "reasoning", "vision"; "embedding" or "rerank", then nothing else; None: not known
    capabilities: tuple[str, ...] | None
    recognised: Recognised
    template: str  # the text in force
    efforts: tuple[str, ...] = ()  # of reasoning, that the template takes


# Name, template, format, what another server reported, and whether it is loaded.
ModelKey: TypeAlias = tuple[str, str | None, str | None, RemoteTarget | None, bool]


class Capabilities:
    """Caches what it found. A list of models doesn't wait for all of it: what isn't known in time
    is in the next list.
    """

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._known = Latest[ModelKey, Known](MOST_MODELS)  # templates can be switched without end
        self._one_looks = Lock()

    async def of(self, status: ModelStatus) -> Known | None:
        """What is known of one model; None where its files can't be used."""
        if status.entry is None:
            return None
        key = self._key(status, status.entry)
        if key not in self._known:
            known = partial(_known, status, status.entry, key[1])
            await to_thread.run_sync(self._analyse, key, known, abandon_on_cancel=True)
        return self._known.get(key)

    async def learn(self, statuses: Sequence[ModelStatus]) -> None:
        """Analyse all of them, one by one, so that no caller waits long for a single one."""
        for status in statuses:
            await self.of(status)

    async def of_all(self, statuses: Sequence[ModelStatus]) -> Mapping[str, Known]:
        """What is known of all, by model id, within `PATIENCE`.

        A model just loaded is reported as it was before, until its control tokens have been read.
        """
        with anyio.move_on_after(PATIENCE):
            await self.learn(statuses)
        found = {}
        for status in statuses:
            if status.entry is not None:
                key = self._key(status, status.entry)
                if known := self._known.get(key) or self._known.get((*key[:4], False)):
                    found[status.id] = known
        return found

    def _key(self, status: ModelStatus, entry: ModelEntry) -> ModelKey:
        own = status.info.chat_template if status.info else entry.files.chat_template
        source = self._templates.source(entry) or own
        return entry.name, source, entry.format, entry.files.remote, status.info is not None

    def _analyse(self, key: ModelKey, known: Callable[[], Known]) -> None:
        """In a worker thread, one at a time: a second caller finds it cached."""
        with self._one_looks:
            if key not in self._known:
                self._known[key] = known()


def _known(status: ModelStatus, entry: ModelEntry, source: str | None) -> Known:
    if (remote := entry.files.remote) is not None and source is None:
        elsewhere = Recognised(FORMATS["plain"], "the upstream splits its answers")
        return Known(capabilities=remote.capabilities, recognised=elsewhere, template="")
    if status.task != "generate":
        no_text = Recognised(FORMATS["plain"], "it writes no text")
        can = ("embedding",) if status.task == "embed" else ("rerank",)
        return Known(capabilities=can, recognised=no_text, template="")
    info, text = status.info, source or DEFAULT_TEMPLATE
    vision = ("vision",) if "image" in status.modalities else ()
    try:
        template = ChatTemplate(text, info.special if info else SpecialTokens())
    except InvalidTemplate as error:
        recognised = recognised_format(entry, info, text, None)
        broken = Recognised(recognised.format, f"{recognised.why}; but {error.message}")
        return Known(capabilities=vision, recognised=broken, template=text)
    recognised, traits = recognised_format(entry, info, text, template), template.traits
    tools = ("tools",) if recognised.format.syntaxes else ()
    thinks = traits.reasoning and recognised.format.reasoning is not None
    reasoning = ("reasoning",) if thinks else ()
    return Known(
        capabilities=(*tools, *reasoning, *vision),
        recognised=recognised,
        template=text,
        efforts=traits.efforts if thinks else (),
    )
