"""Options of each engine, under the names this project uses.

Sizes are bytes, lengths are tokens. None means: as the model says, or as this machine allows.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from config.shape import represented
from config.upstreams import Capability, ServerKind
from config.values import (
    DRAFT_MODEL,
    HIDDEN,
    RUNS_CODE,
    Budget,
    Counted,
    Hidden,
    IdleSeconds,
    Name,
    PathText,
    Port,
    PositiveSeconds,
    Seconds,
    Threads,
)

# tokens; arrays of so many rows are taken at once
Batch: TypeAlias = Annotated[int, Meta(ge=1, le=2**20)]
CacheType: TypeAlias = Literal["f16", "bf16", "f32", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"]
# fp16, or quantized with so many bits: q6, or those of keys and of values: 8,4
QuantizedCache: TypeAlias = Annotated[str, Meta(pattern="^(fp16|q[2-8]|[2-8],[2-8])$")]
ExLlamaV2Cache: TypeAlias = Literal["fp16", "q8", "q6", "q4"]
Scaling: TypeAlias = Annotated[float, Meta(ge=-1000, le=1000)]
# In the gateway's process, in one of its own, as is best; or a name of `nodes`, in a process there
Host: TypeAlias = Annotated[str, Meta(pattern="^(process|worker|auto|[^\\s/:]+)$")]
# Megabytes of main memory
Megabytes: TypeAlias = Annotated[int, Meta(ge=0, le=2**24)]
# What exllamav3 divides among cards: attention, feed-forwards, experts, the output
Divided: TypeAlias = Literal["attn", "mlp", "moe", "linear", "linear_attn"]


# Of a command's server: a path, and perhaps a query
ServerPath: TypeAlias = Annotated[str, Meta(pattern="^/", extra={"runs_code": True})]


# Of a request at a time, at most
DraftedTokens: TypeAlias = Annotated[int, Meta(ge=1, le=32)] | Literal["auto"]


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every engine has. A typo is an error, so unknown fields are refused."""

    __repr__ = represented

    context_length: Counted | None = (
        None  # tokens per request; None: what the model was trained for
    )
    max_concurrent: Counted = 16  # requests computed together; more wait in line
    ttl: IdleSeconds | None = None  # idle seconds until a model is unloaded; None: as `swap.ttl`
    host: Host | None = None  # where it runs; None: as `engines.host`


class SpeculationOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drafts of what comes next, verified in one step; see backends/engines/speculation."""

    mode: Literal["auto", "ngram", "model", "off"] = "auto"
    tokens: DraftedTokens = "auto"  # drafted for a request at a time, at most


class DraftOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A small model that drafts for this one; see backends/engines/draft_model."""

    # its name, or where it lies; loaded and unloaded with this one
    model: Annotated[str, DRAFT_MODEL] | None = None
    tokens: DraftedTokens = "auto"  # as above, of those it drafts


class IkOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ik_llama.cpp alone has, as its command line calls it."""

    # where the tensors lie whose names match a pattern: by the first one that does; from the
    # configuration alone, because a pattern can keep a regular expression in C++ busy for ever
    override_tensor: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^\0=]+=[^\0=]+$", max_length=256)], ...],
        Meta(max_length=64),
        RUNS_CODE,
    ] = ()
    mla: Annotated[int, Meta(ge=0, le=3)] = 3
    fmoe: bool = True
    rtr: bool = False
    amb: Annotated[int, Meta(ge=0, le=2**20)] = 0  # MiB; 0: as much as it takes


class ExLlamaV3SpeculationOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """The same, of an engine that has drafts of its own; `mtp`: by the model's own heads."""

    mode: Literal["auto", "ngram", "model", "mtp", "off"] = "auto"
    tokens: DraftedTokens = "auto"


class LlamaCppOptions(EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """llama.cpp: a GGUF file in the process."""

    # llama.cpp takes no more sequences than 256 (llama-cparams.h, LLAMA_MAX_SEQ)
    max_concurrent: Annotated[int, Meta(ge=1, le=256)] = 16
    cache_tokens: Counted | None = (
        None  # KV cells for all requests; None: see backends/engines/llamacpp
    )
    # layers on cards; -1: all; auto: as many as fit, see backends/contract/placement
    gpu_layers: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | Literal["auto"] = "auto"
    # layers on cards whose experts lie in main memory, the last ones; auto: as few as `gpu_layers`
    cpu_experts: Annotated[int, Meta(ge=0, le=2**31 - 1)] | Literal["auto"] = "auto"
    context_floor: Counted = 8192  # the shortest context that auto may take, if none is set
    cache_floor: CacheType | None = None  # the smallest cache type that auto may take
    # None: on the fewest cards that have room. At most 2**7: as many as a machine may have.
    main_gpu: Annotated[int, Meta(ge=0, le=127)] | None = None
    tensor_split: tuple[float, ...] = ()
    threads: Threads | None = "auto"  # for single tokens; all: every processor; None: auto
    threads_batch: Threads | None = None  # for more at once; None: as threads
    batch_size: Batch = 2048  # tokens in one llama_decode
    micro_batch_size: Batch = 512  # tokens in one pass over the graph
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    # main memory for snapshots of sequences that can't be cut; None: see backends/engines/snapshots
    snapshot_memory: Annotated[int, Meta(ge=0)] | None = None
    speculation: SpeculationOptions = SpeculationOptions()
    draft: DraftOptions = DraftOptions()
    flash_attention: Literal["auto", "on", "off"] = "auto"
    mmap: bool = True
    mlock: bool = False
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    vision: bool = True  # load the multimodal projector, where there is one
    mmproj: PathText | None = None  # the projector's file; None: the one beside the model
    adapters: dict[str, PathText] = {}  # LoRA adapters: name to file
    adapter_scaling: dict[str, Scaling] = {}  # of adapters, by name; of the others: 1
    # what computes it; see backends/engines/llamacpp/libraries
    library: Literal["auto", "llama.cpp", "ik"] = "auto"
    ik: IkOptions = IkOptions()
    trial: Literal["auto", "always", "never"] = "auto"  # load it in a child process first
    # it embeds texts, and writes none; None: as the file says
    pooling: Literal["mean", "cls", "last"] | None = None


class TransformersOptions(EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """transformers: a Hugging Face folder."""

    ttl: IdleSeconds | None = 300.0  # as `transformers serve` does
    device: str = "auto"  # auto, cpu, cuda:0
    # layers on the card, the last ones, the others in main memory; -1: all; auto: as many as fit
    gpu_layers: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | Literal["auto"] = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    attn_implementation: Annotated[str | None, RUNS_CODE] = None  # also a kernel of the hub
    quantization: Literal["bnb-4bit", "bnb-8bit"] | None = None
    compile: bool = False
    threads: Threads = "auto"  # on the CPU; all: every processor
    trust_remote_code: Annotated[bool, RUNS_CODE] = False
    cache_tokens: Counted | None = None
    # main memory for snapshots of sequences that can't be cut; None: see backends/engines/snapshots
    snapshot_memory: Annotated[int, Meta(ge=0)] | None = None
    speculation: SpeculationOptions = SpeculationOptions()
    draft: DraftOptions = DraftOptions()
    adapters: dict[str, PathText] = {}  # LoRA adapters: name to folder


class ExLlamaOptions(EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What exllamav2 and exllamav3 have in common; both run on CUDA."""

    cache_tokens: Counted | None = None
    gpu_split: tuple[float, ...] = ()  # GB per GPU; empty: automatic
    chunk_size: Counted = 2048  # prompt tokens in one pass
    draft: DraftOptions = DraftOptions()
    draft_gpu_split: tuple[float, ...] = ()  # as gpu_split, of the draft model; empty: as gpu_split
    ngram_speculation: bool = False  # as `speculation.mode: ngram`
    vision: bool = True  # load the image encoder, where there is one
    adapters: dict[str, PathText] = {}
    adapter_scaling: dict[str, Scaling] = {}  # of adapters, by name; of the others: 1


class ExLlamaV2Options(ExLlamaOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """exllamav2: an EXL2 or safetensors folder."""

    speculation: SpeculationOptions = SpeculationOptions()
    cache_type: ExLlamaV2Cache = "fp16"
    draft_cache_type: ExLlamaV2Cache | None = None  # None: as cache_type
    autosplit_reserve: tuple[float, ...] = (96.0,)  # MB kept free per GPU
    rope_scale: float | None = None
    rope_alpha: float | None = None


class ExLlamaV3Options(ExLlamaOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """exllamav3: an EXL3 or safetensors folder."""

    speculation: ExLlamaV3SpeculationOptions = ExLlamaV3SpeculationOptions()
    cache_type: QuantizedCache = "fp16"
    draft_cache_type: QuantizedCache | None = None  # None: as cache_type
    autosplit_reserve: tuple[float, ...] = (512.0,)  # MB kept free per GPU
    tensor_parallel: bool = False
    tensor_parallel_backend: Literal["native", "nccl"] = "native"
    tensor_parallel_limits: dict[Divided, Counted] = {}  # most cards for a layer of each kind
    prefill_cooldown: Annotated[int, Meta(ge=0, le=10_000)] = 4  # steps between others' chunks
    mtp: bool = False  # as `speculation.mode: mtp`
    dynamic_draft_tokens: bool = False  # fewer drafted tokens where they are seldom taken
    ngram_match_min: Counted = 3  # tokens that must be repeated before n-gram speculation drafts
    cpu_cache_size: Megabytes = 0  # for evicted pages
    disk_cache_dir: PathText | None = None  # where these are kept beyond a restart
    disk_cache_size: Counted = 50  # GB, of all models together
    recurrent_cache_size: Megabytes = 4096  # for states of recurrent layers
    moe_cpu_offload: Annotated[int, Meta(ge=0, le=4096)] = 0  # layers whose experts CPUs compute
    moe_cpu_split: Annotated[int, Meta(ge=0, le=2**16)] = 0  # of every layer, how many experts
    moe_cpu_threads: Annotated[int, Meta(ge=1, le=512)] | None = None
    warmup: bool = True


class ScriptedOptions(EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scripted engine: says what its script says, token by token."""

    tokens_per_second: float = 0.0  # 0: as fast as it can
    load_seconds: float = 0.0


class CommandOptions(EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that a command starts, and its API, which is asked as an upstream's is."""

    command: Annotated[str, RUNS_CODE, HIDDEN] = ""  # the model's own `command` stands here
    shell: Annotated[bool, RUNS_CODE] = False  # /bin/sh runs it
    env: Annotated[dict[Name, Hidden], RUNS_CODE] = {}  # besides the server's own environment
    cwd: PathText | None = None  # None: the server's
    port: Annotated[Port, RUNS_CODE] = 0  # 0: a free one
    health: Annotated[str, Meta(pattern="^(/.*|none)$", extra={"runs_code": True})] = "/health"
    load_timeout: PositiveSeconds = 600.0  # until `health` answers
    stop_timeout: Seconds = 10.0  # between SIGTERM and SIGKILL
    memory: Budget | dict[str, Budget] = {}  # bytes, or those per device, until they are measured
    # POSTed to park it and to wake it, in place of a stop and a start for another model's sake
    sleep: ServerPath | None = None
    wake: ServerPath | None = None
    parked_memory: Budget = 0  # bytes of main memory meanwhile; 0: as much as it holds awake
    log_output: Annotated[bool, RUNS_CODE] = True
    served_name: Annotated[Name | None, RUNS_CODE] = (
        None  # what its API calls the model; None: by its list, else ours
    )
    server: ServerKind | None = None  # as of an upstream, and so are the rest
    capabilities: tuple[Capability, ...] | None = None
    fallbacks: tuple[Name, ...] = ()
    fetch_images: bool = False
    split: Literal["there", "here"] = "there"
    rename: dict[Name, Name] = {}
    drop: tuple[Name, ...] = ()
    set: Annotated[dict[Name, Any], HIDDEN] = {}
    first_byte_timeout: PositiveSeconds = 300.0
    stall_timeout: PositiveSeconds = 60.0
    total_timeout: PositiveSeconds = 3600.0
