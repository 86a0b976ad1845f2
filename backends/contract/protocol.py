"""The contract between the gateway and a loaded model: what it is and can do, jobs and their
outputs. Knows no engine and no gateway.

What goes to a container and comes back are messages, frozen structs that can be sent as bytes
(`backends.contract.messages`), so the engine may run elsewhere without a caller noticing. Two
things don't cross: a model's tokenizer, which is made anew from `ModelInfo` where texts are read,
and what a reader has its outputs handed to (`Outputs`), which is all on the gateway's side.

A model that generates (`ModelContainer`):

    async with container.generate(job) as outputs:
        async for output in outputs:
            match output:
                case Scored(): ...          # only where `prompt_logprobs` are asked for
                case Piece(): ...
                case Ended(): ...           # always the last one, exactly once
    # here the device no longer works for this job

Times are seconds, sizes are bytes, probabilities are natural logarithms.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from backends.contract.samplers import Sampling

if TYPE_CHECKING:
    from backends.contract.beginnings import Beginnings, SavedSlot

Modality: TypeAlias = Literal["text", "image"]
Task: TypeAlias = Literal["generate", "embed", "rank"]  # the last two: `backends.contract.encoder`


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """Stop reasoning after `tokens` tokens and go on with the answer.

    The driver counts from one of `opens` to the first of `closes` (a call may end reasoning, too);
    at the limit the engine is made to continue with `closing` (a closing message and a close
    marker, tokenized) as if the model had written it.
    """

    tokens: int
    closing: tuple[int, ...]
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    anywhere: bool = False  # what opens does so wherever it stands, else only before all other text
    is_open: bool  # the rendered prompt ends inside reasoning


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """What the whole output must match, from the first sampled token on: reasoning, free text and
    tool calls included.

    `grammar` is llguidance's top-level grammar as JSON text, `{"grammars": [...]}`. A control token
    of the vocabulary stands in it as `<name>` where its text is written so, else as `<[id]>`; a
    text in it never means a control token. When nothing can follow, the job ends with the cause
    "end_token", without such a token. Bans (`banned_tokens`, `ban_eos`, `min_tokens`…) hold within
    the grammar; where it leaves only the end, the job ends.
    """

    grammar: str
    # What the grammar leaves no choice in is fed, not sampled. Not where logprobs are wanted.
    fast_forward: bool = True


class Pixels(bytes):
    """The bytes of a picture: too many for a message, see `backends.contract.framing`."""


class Image(msgspec.Struct, frozen=True):
    """One decoded picture: `rgb` holds height * width * 3 bytes, row by row."""

    width: int
    height: int
    rgb: Pixels


class AdapterScale(msgspec.Struct, frozen=True, array_like=True):
    """How strongly an adapter counts; 1: as it was trained. `adapter` is its name, or its number in
    `ModelInfo.adapters`.
    """

    adapter: int | str
    scale: float


class GenerationTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says of all its jobs, and each of them again."""

    max_tokens: int | None = None  # None: until the context is full; 0: the prompt alone
    min_tokens: int = 0
    stop: tuple[str, ...] = ()  # not included in the text
    logprobs: int | None = None  # alternatives per token; None: no logprobs at all
    after_samplers: bool = False  # `logprobs` are of what the samplers left, not the model's own
    slot: int | None = None  # the one to compute it in, with what is cached there; None: any
    reports_progress: bool = False  # of reading the prompt, see `PromptProgress`
    drafts: int | None = None  # tokens drafted at a time, at most; None: as the model's options say
    # The LoRA adapters that count for it, and no others; None: as the model is loaded.
    adapters: tuple[AdapterScale, ...] | None = None


class Generation(GenerationTerms, frozen=True, kw_only=True):
    """One job. `prompt` is the tokenized prompt; where the model has an image encoder, image k
    stands at its k-th placeholder: `ModelInfo.image_marker`, or what the chat template writes.
    """

    prompt: tuple[int, ...]
    sampling: Sampling = Sampling()
    prompt_logprobs: int | None = None  # the same for the prompt's tokens; see `Scored`
    thinking: ThinkingBudget | None = None
    constraint: Constraint | None = None
    images: tuple[Image, ...] = ()
    request: int | None = None  # jobs of one request share its turns in line; None: it is alone
    # Of the key that it came with: owners take turns in line, and nothing is drafted from another's
    # answers. "": nobody is known.
    owner: str = ""
    # Of its prompt, how many tokens come before the places where later prompts may part from it:
    # before the last user's message, before the answer. Hints alone.
    marks: tuple[int, ...] = ()
    cached_for: str = ""  # whose jobs find what is cached of it; "": that of all alike
    conversation: str = ""  # what its client calls the conversation it belongs to


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A token that could have been chosen. `text` is its bytes; they need not be whole UTF-8."""

    token: int
    text: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """What was chosen, and the best alternatives, from the model's own distribution before
    sampling. What was forced (the closing of a `ThinkingBudget`) is certain: its logprob is 0, and
    it has no alternatives.
    """

    chosen: Candidate
    top: tuple[Candidate, ...] = ()


class Scored(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The next tokens of the prompt and how likely the model finds each after those before it.

    All of them come, in one or several of these, before the first `Piece`. Nothing stands before
    the prompt's first token: its logprob is 0, and it has no alternatives.
    """

    logprobs: tuple[TokenLogprob, ...]


class PromptProgress(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How much of the prompt has been read: `done` of `total` tokens, of which `cached` were in the
    KV cache. `seconds` since its slot was there. The first comes before anything is computed.
    `position` in the line of those that wait for another's `ahead` tokens; 0: it is read.
    """

    total: int
    cached: int
    done: int
    seconds: float
    position: int = 0
    ahead: int = 0

    @property
    def percent(self) -> int:
        """How far it is."""
        return 100 * self.done // max(1, self.total)


# There is one for each token.
class Piece(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Some more text. `tokens` may be empty (flushed text) and `text` too (a token inside a
    character). `parts`: what it was joined from, where a reader came late; else empty.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    parts: "tuple[Piece, ...]" = ()

    @classmethod
    def joined(cls, pieces: "Sequence[Piece]", parts: "Sequence[Piece]" = ()) -> "Piece":
        """All of `pieces` as one."""
        return cls(
            "".join([piece.text for piece in pieces]),
            tuple([token for piece in pieces for token in piece.tokens]),
            tuple([logprob for piece in pieces for logprob in piece.logprobs]),
            tuple(parts),
        )


Cause: TypeAlias = Literal["end_token", "stop_string", "max_tokens", "context_full", "stopped"]


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of an answer. `cached_tokens` are part of `prompt_tokens`: found in the KV cache
    and not computed again.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    # Of cached_tokens, those that were put back from the store of kept conversations, and from
    # where: "memory", "disk".
    kept_tokens: int = 0
    kept_in: str = ""
    drafted_tokens: int = 0  # that were guessed to come next, see `backends.engines.speculation`
    accepted_tokens: int = 0  # of completion_tokens, those that were guessed

    @property
    def computed_tokens(self) -> int:
        """Of the prompt, those that were not cached."""
        return self.prompt_tokens - self.cached_tokens


class Ended(TokenCounts, frozen=True, kw_only=True, tag=True, array_like=True):
    """Why a job ended, and its usage. `token`: the end token, if the model has written one. It
    counts, but has no text, and so no piece; `logprob` is its own, where logprobs are wanted.
    """

    cause: Cause
    stop_string: str | None = None
    token: int | None = None
    logprob: TokenLogprob | None = None
    fault: str = ""  # why the answer is not held to its grammar to the end
    queued: float = 0.0  # waiting for a slot
    prefill: float = 0.0  # from the slot to the first token
    decode: float = 0.0  # from the first token to the last


Output: TypeAlias = Scored | PromptProgress | Piece | Ended


class Outputs(Protocol):
    """What a job gives: an asynchronous iterator of pieces, and its `Ended` as the last."""

    def __aiter__(self) -> AsyncIterator[Output]: ...

    def __anext__(self) -> Awaitable[Output]: ...

    def stop(self) -> None:
        """The reader needs no more: the engine drops the job before its next step, and its `Ended`
        comes with the cause "stopped". What was generated meanwhile may come before it. Does not
        wait; harmless when the job is over.
        """
        ...


class SpecialTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of the special tokens, as chat templates take them, and all control tokens of the
    vocabulary.
    """

    bos: str = ""
    eos: str = ""
    pad: str = ""
    unk: str = ""
    control: tuple[str, ...] = ()
    # fill-in-the-middle: before the text so far, before the suffix, before the answer
    fill_prefix: str = ""
    fill_suffix: str = ""
    fill_middle: str = ""
    fill_repository: str = ""  # before a repository's name
    fill_file: str = ""  # before each of its files


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes a loaded model takes, by use. `engine`: activations and other buffers. `snapshots`:
    what it may take of main memory besides, later and only while that is free: it is promised to
    nobody.
    """

    weights: int
    cache: int
    engine: int
    snapshots: int = 0

    @property
    def total(self) -> int:
        """What is taken once it is loaded."""
        return self.weights + self.cache + self.engine

    def plus(self, other: "MemoryNeed | None") -> "MemoryNeed":
        """What both take."""
        if other is None:
            return self
        return MemoryNeed(
            weights=self.weights + other.weights,
            cache=self.cache + other.cache,
            engine=self.engine + other.engine,
            snapshots=self.snapshots + other.snapshots,
        )


class Vectors(msgspec.Struct, frozen=True, kw_only=True):
    """What the vectors of an embedding model are. `prompts`: texts that its makers put in front of
    others, by what they are for ("query"); `prompt`: of them the one in front of any text.
    """

    width: int  # values
    normalized: bool  # their length is 1
    prompts: Mapping[str, str] = {}
    prompt: str = ""


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter of a model. `scale`: how strongly it counts where a job doesn't say. `file`:
    the name of its file or folder, without those above.
    """

    name: str
    scale: float = 1.0
    file: str = ""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that a model which reads texts wants around them: around one text, and before,
    between and behind those of a pair.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    pair: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] = ((), (), ())
    joined: bool = False  # a pair is one text to it: it isn't told where the second begins
    lower: bool = False  # it reads small letters


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is, on disk and loaded."""

    backend: str  # "llamacpp"
    format: str  # "gguf", "safetensors", "exl2", "exl3", "script"
    architecture: str  # "llama", "qwen3"
    # Tokens, prompt and completion together, for one job; on disk: those it was trained for.
    context_length: int
    size_bytes: int  # weights on disk
    modalities: tuple[Modality, ...] = ("text",)
    chat_template: str | None = None
    tool_template: str | None = None  # in its place where there are tools; None: there is one
    task: Task = "generate"  # where a server answers for it: it isn't known


class ModelInfo(ModelFacts, frozen=True, kw_only=True):
    """What a loaded model is and can do; fixed for its life."""

    max_concurrent: int  # jobs computed together; more wait in line
    vocab_size: int
    # The most bytes of a text that one token may stand for, whatever normalizes it before: a text
    # of n bytes has at least n / longest_token_bytes tokens. 0: unknown, or without limit.
    longest_token_bytes: int = 0
    response_template: str | None = None  # Hugging Face's declarative output format, JSON text
    special: SpecialTokens = SpecialTokens()
    adds_bos: bool = False  # the tokenizer puts bos in front of every text
    image_marker: str | None = None  # stands for an image in a prompt; None: the template's own
    samplers: frozenset[str] = frozenset()  # the fields of Sampling the engine applies
    rewinds: bool = False  # tokens can be taken back, for banned strings
    penalties_first: bool = False  # whatever order `Sampling.samplers` says
    scores_prompts: bool = False  # whether a job may ask for `prompt_logprobs`
    constrains: bool = False  # whether a job may have a `constraint`
    reports_progress: bool = False  # whether a job may request it
    reports_after_samplers: bool = False  # whether a job may ask for it
    keeps_slots: bool = False  # whether a job may name its `slot`, and slots be saved
    heeds_marks: bool = False  # whether a job's `marks` are of use
    chooses_adapters: bool = False  # whether a job may choose of `adapters`
    adapters: tuple[Adapter, ...] = ()
    forces_from: int = 1  # the fewest tokens that are fed sooner than drawn one by one
    drafts: bool = False  # whether a job's `drafts` are of use
    undrafted: str = ""  # why they are not; "": the engine has none
    memory: MemoryNeed | None = None  # what it takes by the engine's own count; None: not known
    vectors: Vectors | None = None  # where its task is "embed"
    reading: Reading | None = None  # where it reads texts and writes none
    layers: Mapping[str, int] = {}  # how many lie on each device; empty: not reported
    buffers: Mapping[str, int] = {}  # bytes by the engine's own names; empty: not reported
    # Bytes on each device, as measured when it was loaded, where it has a process of its own; None:
    # it shares one.
    held: Mapping[str, int] | None = None
    # The file or folder from which its tokenizer can be made in another process
    # (`catalog.ContainerModule.tokenizer`); None: from no file, or it can't be.
    tokenizer_path: str | None = None
    # What computes its cells: the library's version and how it was built. Cells of one build are
    # not put back into another. "": they can't be taken out at all.
    build: str = ""
    library: str | None = None  # as `catalog.LoadFacts.library`, when it was loaded
    # `backends.contract.identity` of a model on another machine, whose files are there; "": it is
    # here.
    identity: str = ""

    def adapter_scales(self, chosen: tuple[AdapterScale, ...] | None = None) -> tuple[float, ...]:
        """How strongly each of `adapters` counts for a job that chose so, within its bounds."""
        if chosen is None:
            return tuple(adapter.scale for adapter in self.adapters)
        scales = {self.adapter_number(each.adapter): each.scale for each in chosen}
        return tuple(scales.get(number, 0.0) for number in range(len(self.adapters)))

    def adapter_number(self, adapter: int | str) -> int | None:
        """The place in `adapters` of a name or a number; None: there is none."""
        if isinstance(adapter, int):
            return adapter if 0 <= adapter < len(self.adapters) else None
        names = [each.name for each in self.adapters]
        return names.index(adapter) if adapter in names else None


class Tokenizer(Protocol):
    """A model's texts and tokens. Needs no device; any thread may call it."""

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        """See `Tokenizing.tokenize`."""
        ...

    def detokenize(self, tokens: Sequence[int]) -> str: ...

    def piece(self, token: int) -> bytes:
        """The token's text as bytes, control tokens included."""
        ...

    def ends(self, token: int) -> bool:
        """Whether the token ends a generation."""
        ...


class SlotState(msgspec.Struct, frozen=True, kw_only=True):
    """A slot at this moment. Counts are tokens."""

    id: int
    cells: int | None = None  # whose cells it holds; None: its engine doesn't report it
    task: int | None = None  # the job that is computed in it; None: it is idle
    job: Generation | None = None
    prompt: int = 0
    generated: int = 0


class Slots(Protocol):
    """The slots of a model, in which its jobs are computed."""

    async def states(self) -> Sequence[SlotState]:
        """All of them, in order, between two steps. Raises BackendError."""
        ...

    async def save(self, slot: int) -> "SavedSlot":
        """The cells of a slot, once it is idle. Raises BackendError."""
        ...

    async def restore(self, slot: int, data: bytes) -> int:
        """Put back what `save` gave, once the slot is idle; its tokens. Raises BackendError."""
        ...

    async def erase(self, slot: int) -> int:
        """Forget a slot's cells, once it is idle; the tokens they held. Raises BackendError."""
        ...


class Tokenizing(Protocol):
    """What engines and containers tell of a model's texts and tokens, whatever its task."""

    @property
    def info(self) -> ModelInfo: ...

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        """`special`: control-token texts become their tokens. Adds no bos of its own."""
        ...

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, control tokens included; broken UTF-8 becomes U+FFFD.

        Raises InvalidJob for a token that is not in the vocabulary.
        """
        ...


class Leasable(Protocol):
    """What the registry asks of whatever it leases, a model in memory or another server's. The
    answers here are those of one of which that can't be said.
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def failure(self) -> str | None:
        """Why it can't be used any more; None while it can. The engine reports it once, before the
        errors of the jobs that it ends.
        """
        return None

    def on_failure(self, tell: Callable[[], None]) -> None:
        """`tell` is called on the event loop's thread when there is a `failure`, whether the model
        is used then or not.
        """
        return

    @property
    def is_unreached(self) -> bool:
        """Whether its failure is that the machine it lies on can't be reached any more."""
        return False

    @property
    def pace(self) -> float | None:
        """Steps a second of the last job that was computed alone; None: that isn't known."""
        return None

    def keep_in(self, beginnings: "Beginnings") -> None:
        """From now on its conversations outlive their slots there; before its first job. An engine
        that can't take them out ignores it.
        """
        return

    async def aclose(self) -> None:
        """Free the device. Called only when no job is open; harmless a second time."""


class LoadedModel(Tokenizing, Leasable, Protocol):
    """What every model in memory has, whatever its task."""


class ModelContainer(LoadedModel, Protocol):
    """A model in memory. Every container passes `tests/backends/container_contract.py`, as it is
    and with bytes between its two ends.

    Texts become tokens, and tokens texts, in the caller's process: by its tokenizer.
    """

    def pieces(self, tokens: Sequence[int]) -> Sequence[bytes]:
        """The bytes of each token, which need not be whole UTF-8. Raises as `detokenize`."""
        ...

    @property
    def slots(self) -> Slots: ...

    def generate(self, job: Generation) -> AbstractAsyncContextManager[Outputs]:
        """Run `job`. When the context has exited the device no longer works for it and its cells
        are free.

        Raises on entry: PromptTooLong, InvalidJob. Raises while iterating: GenerationFailed,
        OutOfMemory; InvalidJob where a constraint and what else the job forbids leave no token.
        """
        ...


@runtime_checkable
class Parkable(Protocol):
    """A container that can give back its device's memory and keep its process, so that it is there
    sooner than by a load.
    """

    async def park(self) -> Mapping[str, int]:
        """Returns the bytes that it still holds, per device. Called as `aclose`. Raises LoadFailed,
        and is to be closed then.
        """
        ...

    async def wake(self) -> None:
        """It can be used again. Raises LoadFailed, and is to be closed then."""
        ...


class Progress(msgspec.Struct, frozen=True):
    """How far a load is: `done` of `total` units of `stage` ("weights": bytes)."""

    stage: str
    done: int
    total: int


Report: TypeAlias = Callable[[Progress], None]  # called on the event loop's thread
