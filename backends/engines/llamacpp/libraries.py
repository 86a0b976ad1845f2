"""Which library computes a GGUF model, and why: llama.cpp's or ik_llama.cpp's. Imports neither."""

from collections.abc import Mapping

from msgspec.structs import asdict

from backends.contract.catalog import Library, ModelFiles
from backends.contract.errors import BackendMissing, LoadFailed
from backends.engines.llamacpp import speeds
from backends.machine import ggml, ik
from config.engines import IkOptions, LlamaCppOptions

IK, LLAMA_CPP = "ik_llama.cpp", "llama.cpp"
FIRST_OF_IK = 97  # the first ggml_type that llama.cpp doesn't know
# In passes of 32 rows and more ik_llama.cpp (0.1.5, AVX2) answers wrongly with Q4_1 and Q5_1, whose
# sums of products overflow 16 bits there.
WRONG, RIGHT_ROWS = frozenset({3, 7}), 31
# What it was compared with llama.cpp on: types up to BF16, and architectures.
TYPES = frozenset({0, 1, 2, 6, 8, 10, 11, 12, 13, 14, 20, 23, 30})
ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
UNKNOWN = f"{IK}'s speed here isn't known"
# Times as fast. A server on two cores, whose threads hold up the engine's, lost that much of it.
WORTH = 1.5
_PLAIN = asdict(IkOptions())


def uses_ik(files: ModelFiles, options: LlamaCppOptions) -> bool:
    """Whether ik_llama.cpp computes it."""
    return chosen(files, options).may_end


def choice(files: ModelFiles, options: LlamaCppOptions) -> Library | None:
    """See `Installation.library`."""
    found = chosen(files, options)
    return found if has_several(found) else None


def has_several(found: Library) -> bool:
    """Whether there was a choice."""
    return found.may_end or not ik.missing()


def chosen(files: ModelFiles, options: LlamaCppOptions) -> Library:
    """By the file, the options, and what is installed."""
    if files.task != "generate" or options.pooling is not None:
        return Library(LLAMA_CPP, "it makes vectors")
    if any(kind >= FIRST_OF_IK for kind in files.types):
        return _ik("no other library reads its quantization")
    if options.library != "auto":
        reason = "the options say so"
        return _ik(reason) if options.library == "ik" else Library(LLAMA_CPP, reason)
    if reason := _decided(files, options):
        return Library(LLAMA_CPP, reason)
    times = speeds.remembered(files, options)
    if times is None:
        return Library(LLAMA_CPP, UNKNOWN)
    if times < WORTH:
        slow, ended = f"{IK} was {times:.1f} times as fast here", f"{IK} ended its process"
        return Library(LLAMA_CPP, slow if times else ended)
    return _ik(f"it was {times:.1f} times as fast here")


def is_open(files: ModelFiles, options: LlamaCppOptions) -> bool:
    """Whether their speed decides, isn't known, can be measured, and that was never tried."""
    return (
        files.size_bytes <= speeds.LARGEST
        and chosen(files, options).reason == UNKNOWN
        and not speeds.noted(files, options).exists()
    )


def _decided(files: ModelFiles, options: LlamaCppOptions) -> str:
    """Why llama.cpp computes it, however fast the other would be."""
    lacking = _lacking(files, options)
    return (f"{IK} lacks {lacking}" if lacking else "") or ik.missing() or _untried(files)


def _ik(reason: str) -> Library:
    return Library(IK, reason, may_end=True)


def check(files: ModelFiles, options: LlamaCppOptions) -> None:
    """Raises BackendMissing or LoadFailed where ik_llama.cpp is chosen and can't be used, or isn't,
    and is wanted for an option.
    """
    found = chosen(files, options)
    if not found.may_end:
        given = (name for name, value in asdict(options.ik).items() if value != _PLAIN[name])
        if (name := next(given, None)) is not None:
            raise LoadFailed(
                f"ik.{name} is {IK}'s alone, and {LLAMA_CPP} computes {files.path.name}: "
                f"{found.reason}. Leave it out, or set library: ik"
            )
        return
    if reason := ik.missing():
        raise BackendMissing(f"{files.path.name} needs {IK}: {reason}")
    if reason := _lacking(files, options):
        raise LoadFailed(f"{files.path.name} can't be loaded with {IK}, which lacks {reason}")


def on_cpu(options: LlamaCppOptions) -> bool:
    """Whether all layers stay in main memory."""
    return options.gpu_layers == 0 or not ggml.offloads()


def _lacking(files: ModelFiles, options: LlamaCppOptions) -> str:
    """What ik_llama.cpp can't do, or isn't asked to."""
    return _first(
        {
            "cards (gpu_layers: 0 leaves them out; with a build for cards: library: ik)": (
                options.library != "ik" and not on_cpu(options)
            ),
            "images (vision)": options.vision and bool(files.projector or options.mmproj),
            "adapters": bool(options.adapters),
            "a draft model": options.draft.model is not None,
            "layers that are recurrent or see a window": bool(
                files.recurrent_layers or files.window
            ),
            "flash_attention off": options.flash_attention == "off",
            "caches other than f16": {options.cache_type_k, options.cache_type_v} != {"f16"},
        }
    )


def _untried(files: ModelFiles) -> str:
    """What it was never compared on."""
    return _first(
        {
            "its quantization": not TYPES.issuperset(files.types),
            f"architecture {files.architecture}": files.architecture not in ARCHITECTURES,
        }
    )


def _first(reasons: Mapping[str, bool]) -> str:
    return next((reason for reason, holds in reasons.items() if holds), "")
