"""Parameters of an answer that several APIs write alike: sampling as OpenAI, llama.cpp and TabbyAPI
spell it, where the answer stops, whether it must be a call, how long its model stays.

Knows no engine. Bounds are OpenAI's where it has them, TabbyAPI's otherwise, and inside those of
`backends.contract.samplers`. What can't be applied is the engine's to say.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias, Union, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from backends.contract import bounds
from backends.contract.samplers import (
    LETTERS,
    NEUTRAL,
    ORDER,
    ROWS,
    Sampling,
    SentTemperature,
)
from config.values import alike
from gateway.dialects.fields import Fields, Known
from gateway.dialects.shapes import SHAPE_FIELDS, read_shape
from gateway.terms.request import GenerationParams, RequestedSampling, Tool, ToolChoice

Alternatives: TypeAlias = Annotated[int, Meta(ge=0, le=20)]  # with log probabilities, of each token
MAX_BIAS = 100.0
MOST_BIASED = 16_384  # characters of all texts that `logit_bias` names; each is tokenized
# What samplers are called in lists that say their order: our names and those of the parameters
# that switch them on, and llama-server's, text-generation-webui's and SillyTavern's.
SAMPLER_NAMES: Mapping[str, str] = {
    **{name: row.sampler for field, row in ROWS.items() for name in (field, *row.names)},
    **{sampler: sampler for sampler in ORDER},
    **dict.fromkeys(("temp", "dynamic_temperature", "quadratic_sampling"), "temperature"),
    "nucleus": "top_p",
}
_LETTERS = {
    **LETTERS,
    **dict.fromkeys("ai", ""),  # adaptive-p and infill stand where they stand anyway
}


_FIELD_TYPES = get_type_hints(Sampling)
_SAMPLING_DOC = """The fields of `Sampling` as clients send them, and the other fields that give the
    bounds of a dynamic temperature. UNSET: not given.
    """
SamplingWire = msgspec.defstruct(
    "SamplingWire",
    [
        *(
            (name, Union[row.sent or _FIELD_TYPES[name], UnsetType], UNSET)  # noqa: UP007 - at runtime
            for name, row in ROWS.items()
        ),
        ("dynatemp_range", SentTemperature | UnsetType, UNSET),
        ("dynamic_temperature", bool | UnsetType, UNSET),
    ],
    frozen=True,
    kw_only=True,
    module=__name__,
    namespace={"__doc__": _SAMPLING_DOC},
)


def read_sampling(fields: Fields) -> RequestedSampling:
    """The requested parameters in `fields`. Raises InvalidRequest."""
    wire = fields.read(SamplingWire)
    given = {name: value for name, value in asdict(wire).items() if value is not UNSET}
    if not given:
        return RequestedSampling()
    for name, meaning in _MEANINGS.items():
        if name in given:
            try:
                given[name] = meaning(given[name])
            except ValueError as error:
                raise fields.wrong(name, str(error)) from None
    if given.keys() & _DYNAMIC:
        _spread_temperature(given)
    if given.get("min_temp", 0.0) > given.get("max_temp", math.inf):
        raise fields.wrong("min_temp", "Must not be above the maximum temperature.")
    biases = given.get("logit_bias", ())
    texts = tuple((key, bias) for key, bias in biases if isinstance(key, str))
    if texts:
        given["logit_bias"] = tuple(pair for pair in biases if not isinstance(pair[0], str))
        if sum(len(text) for text, _ in texts) > MOST_BIASED:
            raise fields.wrong("logit_bias", f"Texts of at most {MOST_BIASED} characters together.")
    values = msgspec.structs.replace(Sampling(), **given)
    for name, fault in bounds.faults(values):
        raise fields.wrong(name, fault)
    return RequestedSampling(values, frozenset(given), texts)


_DYNAMIC = {"dynamic_temperature", "dynatemp_range"}


def _spread_temperature(given: dict[str, Any]) -> None:
    """llama.cpp's `dynatemp_range` means temperature ± range; explicit ends win over it. Frontends
    send all of it at all times, and a switch.
    """
    if not given.pop("dynamic_temperature", True):
        for name in ("dynatemp_range", "min_temp", "max_temp"):
            given.pop(name, None)
    spread = given.pop("dynatemp_range", 0.0)
    if spread and not given.keys() & {"min_temp", "max_temp"}:
        middle = given.get("temperature", Sampling().temperature)
        given["min_temp"] = max(0.0, middle - spread)
        given["max_temp"] = middle + spread


def _seed(seed: int) -> int | None:
    """-1 is llama.cpp's "any seed": a random one, also where a seed is configured."""
    return None if seed == -1 else seed


def _zero_is_off(number: float) -> float:
    """Negative numbers, llama.cpp's and vLLM's "off", become our own."""
    return max(0, number)


def _zero_is_all(tokens: int) -> int:
    """A penalty over no tokens has no effect; frontends mean the whole context by 0."""
    return tokens or -1


def _one_is_off(target: float) -> float:
    """Below 0 it is llama.cpp's and SillyTavern's "off", and 1 is TabbyAPI's; llama.cpp's 1 would
    draw what is likeliest.
    """
    return target if 0 <= target < 1 else NEUTRAL.adaptive_target


def _samplers(value: str | list[str]) -> tuple[str, ...]:
    """Names of any server, or llama-server's letters. Unknown samplers are left out: a field that
    sets one is reported by its own name.
    """
    letters = isinstance(value, str) and all(letter in _LETTERS for letter in value)
    names = [_LETTERS[letter] for letter in value] if letters else _texts(value)
    known = (SAMPLER_NAMES.get(name.lower().replace("-", "_")) for name in names)
    return tuple(dict.fromkeys(name for name in known if name))


def _texts(value: str | list[str]) -> tuple[str, ...]:
    """A list, a JSON array as text, or quoted strings with commas; a plain text is one string."""
    if isinstance(value, list):
        return tuple(text for text in value if text)
    stripped = value.strip()
    if not stripped.startswith(("[", '"')):
        return (value,) if value else ()
    array = stripped if stripped.startswith("[") else f"[{stripped}]"
    try:
        return tuple(msgspec.json.decode(array, type=list[str]))
    except msgspec.DecodeError:
        raise ValueError("Expected a list of strings, or a JSON array of them as text.") from None


def _token_ids(value: str | list[int]) -> tuple[int, ...]:
    """A list of ids, or ids with commas between ("5,1,2")."""
    ids = value if isinstance(value, list) else _split_ids(value)
    if any(token < 0 for token in ids):
        raise ValueError("Token ids are not negative.")
    return tuple(ids)


def _split_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in re.split(r"[,\s\[\]]+", text) if part]
    except ValueError:
        raise ValueError(f"Expected token ids with commas between, got {text!r}.") from None


def _biases(
    value: dict[str, float] | list[tuple[int | str, float | bool]],
) -> tuple[tuple[int | str, float], ...]:
    """OpenAI's {"id": bias}, or llama.cpp's [[id, bias], [id, false]], where false bans. A text
    stands for each of its tokens, as with llama-server.
    """
    pairs = list(value.items()) if isinstance(value, dict) else value
    return tuple((_token_or_text(token), _bias(bias)) for token, bias in pairs)


def _token_or_text(token: int | str) -> int | str:
    if isinstance(token, str) and not re.fullmatch(r"-?\d{1,18}", token, re.ASCII):
        return token
    if (number := int(token)) < 0:
        raise ValueError("Token ids are not negative.")
    return number


def _bias(bias: float) -> float:
    if isinstance(bias, bool) and not bias:
        return -math.inf
    if isinstance(bias, bool) or not -MAX_BIAS <= bias <= MAX_BIAS:
        raise ValueError(f"Expected a bias from -100 to 100, got {bias}.")
    return float(bias)


_MEANINGS: Mapping[str, Callable[[Any], Any]] = {
    "seed": _seed,
    "top_k": _zero_is_off,
    "top_n_sigma": _zero_is_off,
    "adaptive_target": _one_is_off,
    "samplers": _samplers,
    "penalty_range": _zero_is_all,
    "dry_range": _zero_is_all,
    "dry_sequence_breakers": _texts,
    "banned_strings": _texts,
    "banned_tokens": _token_ids,
    "allowed_tokens": _token_ids,
    "logit_bias": _biases,
}


MAX_STOPS = 128  # OpenAI takes 4; a roleplay frontend sends one for each name in the scene
MAX_STOP_LENGTH = 1_000  # characters; every token's text is compared with each

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|h|m|s)", re.ASCII)
_DURATION = re.compile(rf"[+-]?(?:{_PART.pattern})+", re.ASCII)
_UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_stop(fields: Fields, wire: str | list[str]) -> tuple[str, ...]:
    """Empty strings are dropped: frontends send them for fields left blank. Raises
    InvalidRequest.
    """
    texts = [wire] if isinstance(wire, str) else wire
    if len(texts) > MAX_STOPS:
        raise fields.wrong("stop", f"At most {MAX_STOPS} stop strings, got {len(texts)}.")
    if (longest := max(map(len, texts), default=0)) > MAX_STOP_LENGTH:
        message = f"At most {MAX_STOP_LENGTH} characters in a stop string, got {longest}."
        raise fields.wrong("stop", message)
    return tuple(text for text in texts if text)


class AnswerWire(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request for an answer that several APIs have, by our names."""

    model: str = ""
    stream: bool = False
    stop: str | list[str] = []
    keep_alive: float | str | None = None  # ours


def read_answering(
    fields: Fields, wire: AnswerWire, *known: Known
) -> Callable[..., GenerationParams]:
    """How to generate, as far as it is read alike in these APIs, with what is not applied; a call
    gives the rest, as with `alike`. `known`: what is read of `fields` besides `wire`, sampling and
    shapes. Raises InvalidRequest.
    """
    return partial(
        alike(GenerationParams, wire),
        sampling=read_sampling(fields),
        stop=read_stop(fields, wire.stop),
        keep_alive=read_keep_alive(fields, wire.keep_alive),
        shape=read_shape(fields),
        streamed=wire.stream,
        spelled=fields.otherwise(),
        unapplied=fields.unapplied(type(wire), SamplingWire, SHAPE_FIELDS, *known),
    )


_MODES: Mapping[str, ToolChoice] = {"none": "none", "auto": "auto", "required": "required"}


def read_choice_mode(fields: Fields, path: str, mode: str | None, *, has_tools: bool) -> ToolChoice:
    """A tool choice that names no tool; without one: auto with tools, none without. Raises
    InvalidRequest.
    """
    if mode is None:
        return "auto" if has_tools else "none"
    choice = fields.meant(path, mode, _MODES)
    if choice == "required" and not has_tools:
        raise fields.wrong(path, "A call can't be required without tools.")
    return choice


class FunctionWire(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def tool(self, fields: Fields, path: str) -> Tool:
        """As the model is shown it. Raises InvalidRequest."""
        if not self.name:
            raise fields.wrong(f"{path}.name", "A function needs a name.")
        return alike(Tool, self)()


class StrictFunctionWire(FunctionWire, frozen=True):
    """Whose calls may have to follow its schema."""

    strict: bool | None = None


def require_tool(fields: Fields, path: str, name: str, names: Collection[str]) -> None:
    """Raises InvalidRequest where `name` is none of the tools' `names`."""
    if name not in names:
        raise fields.wrong(path, f"Tool {name!r:.64} not found in tools.")


def read_keep_alive(fields: Fields, wire: float | str | None) -> float | None:
    """Seconds, or Ollama's text form ("5m", "1h30m", "-1"). All negatives mean for good. Raises
    InvalidRequest.
    """
    match wire:
        case None:
            return None
        case str(text) if _NUMBER.fullmatch(text):
            seconds = float(text)
        case str(text) if _DURATION.fullmatch(text):
            seconds = _seconds(text)
        case str(text):
            message = f"Expected seconds, -1 or a duration like '5m', got {text!r:.64}."
            raise fields.wrong("keep_alive", message)
        case number:
            seconds = number
    return seconds if seconds >= 0 else -1.0


def _seconds(duration: str) -> float:
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(duration))
    return -seconds if duration.startswith("-") else seconds
