"""From a request body to fields with one name each. Knows names and JSON, not what a field means.

Clients spell one wish in many ways, and SillyTavern sends several spellings of it in one body.
`SPELLINGS` is the whole list. A null means "not given", for every field of the body.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gateway.errors import InvalidRequest

T = TypeVar("T")

# Field: what clients call it. The first one given wins, so OpenAI's own name comes first.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "max_tokens": (
        "max_completion_tokens",
        "max_tokens",
        "max_new_tokens",
        "n_predict",
        "num_predict",
        "max_length",
    ),
    "min_tokens": ("min_tokens", "min_new_tokens", "min_length"),
    "stop": ("stop", "stop_sequence", "stopping_strings", "stop_strings"),
    "seed": ("seed", "sampler_seed"),
    "template_variables": ("chat_template_kwargs", "template_vars"),
    "thinking_budget": (
        "thinking_budget",
        "reasoning_budget_tokens",
        "reasoning_budget",
        "thinking_token_budget",
        "thinking_budget_tokens",
    ),
    "typical_p": ("typical_p", "typical", "typ_p"),
    "tfs": ("tfs", "tfs_z"),
    "top_n_sigma": ("top_n_sigma", "nsigma"),
    "repetition_penalty": ("repetition_penalty", "rep_pen", "repeat_penalty"),
    "penalty_range": (
        "penalty_range",
        "repetition_range",
        "repetition_penalty_range",
        "rep_pen_range",
        "repeat_last_n",
    ),
    "dry_range": ("dry_range", "dry_penalty_last_n"),
    "mirostat_mode": ("mirostat_mode", "mirostat"),
    "min_temp": ("min_temp", "dynatemp_low"),
    "max_temp": ("max_temp", "dynatemp_high"),
    "temp_exponent": ("temp_exponent", "dynatemp_exponent"),
    "banned_tokens": ("banned_tokens", "custom_token_bans"),
    "allowed_tokens": ("allowed_tokens", "allowed_token_ids"),
    "ban_eos": ("ban_eos_token", "ignore_eos"),
    "add_bos": ("add_bos_token",),
}

# What a transformers GenerationConfig may say: its name, and our field. The rest is the engine's.
GENERATION_CONFIG: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repetition_penalty",
}

# Fields that change nothing about an answer here, so that leaving them out is no news to anyone.
INDIFFERENT = frozenset(
    {
        "api_server",
        "api_type",
        "cache_prompt",
        "generation_config",
        "metadata",
        "num_ctx",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "skip_special_tokens",
        "store",
        "truncation_length",
        "user",
    }
)

_SITE = re.compile(r"^(?P<said>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.+)`")


class Fields(msgspec.Struct, frozen=True):
    """The body under our names. `spelled` has the names that the client wrote instead."""

    values: Mapping[str, Any]
    spelled: Mapping[str, str]

    def read(self, shape: type[T]) -> T:
        """The fields that `shape` has; others are left alone. Raises InvalidRequest."""
        try:
            return msgspec.convert(self.values, shape)
        except msgspec.ValidationError as error:
            raise self._translated(str(error)) from None

    def wrong(self, path: str, message: str) -> InvalidRequest:
        """The error for the field at `path`, by the name that the client knows."""
        param = self._as_written(path)
        return InvalidRequest(f"{param}: {message}", param=param)

    def beyond(self, known: frozenset[str]) -> tuple[str, ...]:
        """The names, as written, of what nobody here reads. Empty values wish for nothing."""
        strange = self.values.keys() - known - INDIFFERENT
        return tuple(sorted(self._as_written(name) for name in strange if self.values[name]))

    def _translated(self, said: str) -> InvalidRequest:
        site = _SITE.match(said)
        assert site is not None, "the pattern matches every text"
        path = (site["path"] or "").replace("[...]", "")  # msgspec's "some key or value of it"
        if missing := _MISSING.fullmatch(site["said"]):
            return self.wrong(f"{path}.{missing['name']}".lstrip("."), "This field is required.")
        return self.wrong(path, f"{site['said']}.")

    def _as_written(self, path: str) -> str:
        root = re.split(r"[.\[]", path, maxsplit=1)[0]
        return self.spelled.get(root, root) + path[len(root) :]


def read_fields(body: bytes) -> Fields:
    """The fields of a JSON body. Raises InvalidRequest when it isn't a JSON object."""
    values = {name: value for name, value in json_object(body).items() if value is not None}
    spelled: dict[str, str] = {}
    for field, spellings in SPELLINGS.items():
        if given := [name for name in spellings if name in values]:
            value = values[given[0]]
            for name in given:
                del values[name]
            values[field] = value
            spelled[field] = given[0]
    if "generation_config" in values:
        _add_generation_config(values, spelled)
    return Fields(values, spelled)


def json_object(body: bytes) -> dict[str, Any]:
    """The object in a JSON body. Raises InvalidRequest."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return value


def _add_generation_config(values: dict[str, Any], spelled: dict[str, str]) -> None:
    """Take from `generation_config`, JSON text of `transformers chat`, what the body leaves out."""
    config = values["generation_config"]
    if isinstance(config, str):
        try:
            config = msgspec.json.decode(config)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _bad_config(f"Not valid JSON: {error}.") from None
    if not isinstance(config, dict):
        raise _bad_config("Expected a JSON object, or the text of one.")
    if config.get("do_sample") is False:
        config = {**config, "temperature": 0}
    for name, field in GENERATION_CONFIG.items():
        if field not in values and config.get(name) is not None:
            values[field] = config[name]
            spelled[field] = f"generation_config.{name}"


def _bad_config(message: str) -> InvalidRequest:
    return InvalidRequest(f"generation_config: {message}", param="generation_config")
