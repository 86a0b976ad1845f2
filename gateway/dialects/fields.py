"""Reads a request body into fields with one name each, and says which of them are not read, also
inside lists and objects. It knows names and JSON, not what a field means.

Clients spell one parameter in many ways, and SillyTavern sends several spellings of it in one body.
`SPELLINGS` and the rows of `backends.contract.samplers` are the whole list. A null means "not
given", for every field of the body.

Before anything is made of a body it is counted. 60 MB may be one long text, or two million
messages: decoding those, and every step behind it, takes a hundred times the time and the memory.
So what costs has a limit: values, names, objects, and what the APIs have lists of; all of it in the
bytes.
"""

import heapq
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from backends.contract.samplers import ROWS
from gateway.terms.errors import InvalidRequest, TooLarge
from gateway.terms.request import Unapplied, all_unapplied


class Sort(msgspec.Struct, frozen=True):
    """Something that a body has many of: each has one of the `marks`."""

    most: int
    marks: tuple[bytes, ...]
    called: str


# A context of a million tokens may be sent as that many ids. Names are the dearest: each is hashed.
SORTS = (
    Sort(1 << 20, (b",",), "values"),
    Sort(1 << 16, (b"{", b"["), "objects and lists"),
    Sort(1 << 17, (b":",), "names"),
)
# The lists of all APIs by their names, and how many objects each may have. A conversation with a
# system prompt, calls and results has a few thousand messages where it fills a long context.
COUNTS: Mapping[str, int] = {
    "messages": 16_384,
    "input": 16_384,  # items; texts and token ids have bounds of their own
    "items": 16_384,
    "tools": 1_024,
    "functions": 1_024,
}
FEW = min(COUNTS.values())
ORDER = 1 << 20  # bytes of a body that is no prompt: an order, a setting

SLICE = 1 << 20  # bytes that are counted at a time: about a millisecond
BACKSLASH = 0x5C


def check_size(body: bytes) -> None:
    """Raises TooLarge for a body of too many values, names or objects, and InvalidRequest for a
    list of too many. Linear; holds the GIL for no longer than a slice, and makes no objects.
    """
    if len(body) <= FEW:
        return
    for sort in SORTS:
        # What stands in texts is counted too, until that is too much.
        if _count(body, sort.marks, sort.most) > sort.most and _exceeds(body, sort):
            raise TooLarge(
                f"The body has more than {sort.most:,} {sort.called}, the limit of this server."
            )
    if _count(body, (b"{",), FEW) > FEW:
        _check_lists(body)


def _check_lists(body: bytes) -> None:
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        for name in COUNTS.keys() & fields.keys():
            given = _elements(fields[name])
            if len(given) > COUNTS[name] and _begins(given[0], b"{"):
                raise _too_many(name, len(given))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # whoever decodes it names the fault


def _elements(value: msgspec.Raw) -> list[msgspec.Raw]:
    return msgspec.json.decode(value, type=list[msgspec.Raw]) if _begins(value, b"[") else []


def _begins(value: msgspec.Raw, mark: bytes) -> bool:
    return bytes(memoryview(value)[:1]) == mark


def _too_many(field: str, count: int) -> InvalidRequest:
    return InvalidRequest.at(field, f"Expected at most {COUNTS[field]:,} of them, got {count:,}.")


def _count(body: bytes, marks: tuple[bytes, ...], enough: int) -> int:
    """How often `marks` occur in `body`; counts until there are more than `enough`."""
    found = 0
    for start in range(0, len(body), SLICE):
        found += sum(body.count(mark, start, start + SLICE) for mark in marks)
        if found > enough:
            break
    return found


def _exceeds(body: bytes, sort: Sort) -> bool:
    """Whether there are too many outside of texts, too."""
    found = 0
    for start, end in _outside_texts(body):
        found += sum(body.count(mark, start, end) for mark in sort.marks)
        if found > sort.most:
            return True
    return False


def _outside_texts(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the JSON is that is no text, from and to. Linear."""
    start = 0
    while (opening := body.find(b'"', start)) >= 0:
        yield start, opening
        closing = body.find(b'"', opening + 1)
        while closing >= 0 and _is_escaped(body, closing):
            closing = body.find(b'"', closing + 1)
        if closing < 0:
            return
        start = closing + 1
    yield start, len(body)


def _is_escaped(body: bytes, place: int) -> bool:
    before = place
    while body[before - 1] == BACKSLASH:  # a quote stands before them
        before -= 1
    return (place - before) % 2 == 1


T = TypeVar("T")

MOST_NAMED = 64  # fields without a meaning that are named

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
    "n": ("n", "n_cmpl"),
    "stop": ("stop", "stop_sequence", "stopping_strings", "stop_strings"),
    "template_variables": ("chat_template_kwargs", "template_vars"),
    "thinking_budget": (
        "thinking_budget",
        "reasoning_budget_tokens",
        "reasoning_budget",
        "thinking_token_budget",
        "thinking_budget_tokens",
    ),
    "add_bos": ("add_bos_token",),
    "speculative": ("speculative.n_max", "speculative"),
    **{name: (name, *row.names) for name, row in ROWS.items() if row.names},
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
# What else it holds and asks for nothing: read another way, or what the tokenizer says too.
CONFIG_HARMLESS = frozenset(
    {"do_sample", "bos_token_id", "eos_token_id", "pad_token_id", "transformers_version"}
)

# Fields that change nothing about an answer here, and why: leaving them out is not reported.
HARMLESS: Mapping[str, str] = {
    "api_server": "where SillyTavern sends the request",
    "api_type": "which server SillyTavern takes this one for",
    "cache_prompt": "prompts are always cached",
    "generation_config": "its fields are named one by one",
    "max_context_length": "as num_ctx",
    "metadata": "the client's own notes",
    "num_ctx": "the context has the size the model was loaded with; a longer prompt is refused",
    "prompt_cache_key": "the cache finds prompts by their tokens",
    "safety_identifier": "user identifiers are not used",
    "quiet": "what KoboldCpp would print",
    "service_tier": "there is one",
    "skip_special_tokens": "what of them is text and what is markup the model's format says",
    "store": "nothing is stored",
    "truncation_length": "as num_ctx",
    "user": "user identifiers are not used",
}

# Neutral values that frontends send for other servers' options; 0 is false, too.
NEUTRAL: Mapping[str, float] = {
    **dict.fromkeys(("decoder_input_details", "early_stopping", "max_tokens_second"), 0),
    **dict.fromkeys(
        ("loop_detect_window", "skip_queue", "token_healing", "n_keep", "n_discard"), 0
    ),
    **dict.fromkeys(("min_keep", "penalty_alpha", "speculative_ngram", "use_authors_note"), 0),
    **dict.fromkeys(("use_beam_search", "use_memory", "use_story", "use_world_info"), 0),
    "best_of": 1,
    "cfg_scale": 1,
    "encoder_repetition_penalty": 1,
    "guidance_scale": 1,
    "length_penalty": 1,
    "num_beams": 1,
    "rep_pen_slope": 1,
}

NOTHING: tuple[Any, ...] = ([], {}, "")
# What frontends mean for themselves or for the server they know, in every request.
FRONTENDS_OWN = frozenset({"api_server", "api_type", "generation_config", "truncation_length"})


Known: TypeAlias = type[msgspec.Struct] | Collection[str]


def names_of(*known: Known) -> frozenset[str]:
    """The names of all fields of structs, and names as they are."""
    names = (one.__struct_fields__ if isinstance(one, type) else one for one in known)
    return frozenset().union(*names)


MAX_DEPTH = 100  # of lists and objects in each other
TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep."
_NAMED_LEVELS = 6  # messages[0].tool_calls[0].function.arguments

_SITE = re.compile(
    r"^(?P<problem>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL
)
_MISSING = re.compile(r"Object missing required field `(?P<name>.+)`")


class Fields(msgspec.Struct, frozen=True):
    """An object of a body under our names. `spelled` has the names that the client wrote instead.

    `prefix` is where the object stands in the body: "" for the body itself, else `options.` or so.
    """

    values: Mapping[str, Any]
    spelled: Mapping[str, str]
    prefix: str = ""

    def read(self, shape: type[T]) -> T:
        """The fields that `shape` has; others are left alone. Raises InvalidRequest.

        Integral floats are taken for integers, as JSON itself has it and as other servers do.
        """
        try:
            return msgspec.convert(self.values, shape)
        except msgspec.ValidationError:
            pass  # nearly no body gets here: only then it is worth walking through all of it
        return self.convert("", _with_integers(self.values), shape)

    def convert(self, path: str, value: Any, kind: type[T]) -> T:
        """`value`, which stands at `path`, as a `kind`. Raises InvalidRequest."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self._translated(str(error), path) from None

    def wrong(self, path: str, message: str) -> InvalidRequest:
        """The error for the field at `path`, by the name that the client knows."""
        return InvalidRequest.at(self._as_written(path), message)

    def meant(self, path: str, word: object, words: Mapping[str, T]) -> T:
        """What `words` say of `word`. Raises InvalidRequest, which names them, for another."""
        if not isinstance(word, str) or word not in words:
            names = ", ".join(map(repr, words))
            raise self.wrong(path, f"Expected one of {names}, got {word!r:.64}.")
        return words[word]

    def meaning(self, field: str, name: str, *, value: Any) -> "Fields":
        """With our `field`, which the client wrote as `name`."""
        return msgspec.structs.replace(
            self, values={**self.values, field: value}, spelled={**self.spelled, field: name}
        )

    def unapplied(self, *known: Known) -> tuple[Unapplied, ...]:
        """Fields that none of the structs reads, or of the names is, also below those that they
        read: the first `MOST_NAMED` of either. Empty values ask for nothing.
        """
        given = self.values.get("generation_config")
        config = given if isinstance(given, dict) else {}  # not all bodies have it read
        read, config_read = names_of(*known, HARMLESS), GENERATION_CONFIG.keys() | CONFIG_HARMLESS
        names = (
            *(self.prefix + self.spelled.get(name, name) for name in _asking(self.values, read)),
            *(f"generation_config.{name}" for name in _asking(config, config_read)),
        )
        shapes = [one for one in known if isinstance(one, type)]
        # not sorted: there may be a million
        top = heapq.nsmallest(MOST_NAMED, names)
        return all_unapplied(*top, *_unapplied_below(self.values, shapes))

    def further(self, *known: Known, sent: Collection[str] = ()) -> Mapping[str, Any]:
        """Fields that are not read here, as written, for an engine that may know them; and those to
        be `sent` all the same.
        """
        names = self.values.keys() - (names_of(*known) - {*sent}) - FRONTENDS_OWN
        return {name: self.values[name] for name in names if self.values[name] not in NOTHING}

    def otherwise(self) -> Mapping[str, str]:
        """Our names of fields that the client called otherwise, and its names."""
        if self.prefix:
            return {name: self.prefix + self.spelled.get(name, name) for name in self.values}
        return {field: name for field, name in self.spelled.items() if field != name}

    def _translated(self, problem: str, path: str = "") -> InvalidRequest:
        """What msgspec said of what stands at `path`."""
        site = _SITE.match(problem)
        assert site is not None, "the pattern matches every text"
        inner = (site["path"] or "").replace("[...]", "")  # msgspec's "some key or value of it"
        path += f".{inner}" if path and inner and not inner.startswith("[") else inner
        if missing := _MISSING.fullmatch(site["problem"]):
            return self.wrong(f"{path}.{missing['name']}".lstrip("."), "This field is required.")
        return self.wrong(path, f"{'Of a key: ' if site['key'] else ''}{site['problem']}.")

    def _as_written(self, path: str) -> str:
        root = re.split(r"[.\[]", path, maxsplit=1)[0]
        return self.prefix + self.spelled.get(root, root) + path[len(root) :]


def read_fields(body: bytes) -> Fields:
    """The fields of a JSON body. Raises InvalidRequest when it isn't a JSON object."""
    return fields_of(json_object(body))


def given_fields(wire: Mapping[str, Any], names: Mapping[str, str] = {}) -> Fields:
    """The fields of an object as they are. `names`: ours of those that one API alone calls so; one
    that stands beside ours is none of them.
    """
    values = {name: value for name, value in wire.items() if value is not None}
    spelled: dict[str, str] = {}
    for name in names.keys() & values.keys():
        if (ours := names[name]) not in values:
            values[ours], spelled[ours] = values.pop(name), name
    return Fields(values, spelled)


def fields_of(wire: Mapping[str, Any], prefix: str = "", names: Mapping[str, str] = {}) -> Fields:
    """The fields of an object that stands in a body behind `prefix`, whoever's names it has them
    by. `names`: as in `given_fields`. Raises InvalidRequest.
    """
    given = given_fields(wire, names)
    values, spelled = dict(given.values), dict(given.spelled)
    for field, spellings in SPELLINGS.items():
        if written := [name for name in spellings if name in values]:
            value = values[written[0]]
            for name in written:
                del values[name]
            values[field] = value
            spelled.setdefault(field, written[0])
    if "generation_config" in values:
        _add_generation_config(values, spelled)
    return Fields(values, spelled, prefix)


def order_object(body: bytes) -> dict[str, Any]:
    """The object in a body that is short, since it is read on the event loop; no body is an empty
    one. Raises InvalidRequest, TooLarge.
    """
    if len(body) > ORDER:
        raise TooLarge(f"The body has {len(body):,} bytes; this route takes {ORDER:,} at most.")
    return json_object(body if body.strip() else b"{}")


def read_given(body: bytes, shape: type[T]) -> T:
    """A short body as a `shape`; a null is no field. Raises as `order_object`."""
    return given_fields(order_object(body)).read(shape)


def _why_no_json(body: bytes, error: Exception) -> str:
    if body.startswith(b"\x1f\x8b"):
        return "is compressed (gzip); send it as it is"
    if body.startswith(b"\xef\xbb\xbf"):
        return "begins with a byte order mark, which JSON doesn't have"
    return f"is not valid JSON: {error}"


def json_object(body: bytes) -> dict[str, Any]:
    """The object in a JSON body. Raises InvalidRequest, TooLarge."""
    check_size(body)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The request body {_why_no_json(body, error)}.") from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    brackets = body.count(b"{") + body.count(b"[")
    if brackets > MAX_DEPTH and (deep := too_deep(value)):
        raise InvalidRequest.at(deep, TOO_DEEP)
    return value


def too_deep(value: Any) -> str | None:
    """Where `value` (JSON) nests more than `MAX_DEPTH` levels: the path, as far as it names
    a field.

    No real request nests deeper, and code that renders, copies and prints JSON recurses.
    """
    level: list[tuple[str, Any]] = [("", value)]
    for depth in range(MAX_DEPTH + 1):
        level = [
            (f"{path}{step}" if depth < _NAMED_LEVELS else path, item)
            for path, outer in level
            for step, item in _steps(outer)
        ]
        if not level:
            return None
    return level[0][0].removeprefix(".")


def nests_deep(text: str) -> bool:
    """Whether the JSON `text` nests more than others can go through. Linear."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    try:
        return too_deep(msgspec.json.decode(text)) is not None
    except msgspec.DecodeError:
        return False  # no JSON: it stays a text
    except RecursionError:
        return True


def _steps(value: Any) -> Iterator[tuple[str, Any]]:
    """The lists and objects in `value`, and how a path names them."""
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, dict | list):
                yield f".{str(key)[:64]}", item
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict | list):
                yield f"[{index}]", item


def _add_generation_config(values: dict[str, Any], spelled: dict[str, str]) -> None:
    """Take from `generation_config`, JSON text of `transformers chat`, what the body leaves out."""
    config = values["generation_config"]
    if isinstance(config, str):
        if nests_deep(config):
            raise InvalidRequest.at("generation_config", TOO_DEEP)
        try:
            config = msgspec.json.decode(config)
        except msgspec.DecodeError as error:
            raise InvalidRequest.at("generation_config", f"Not valid JSON: {error}.") from None
    if not isinstance(config, dict):
        raise InvalidRequest.at("generation_config", "Expected a JSON object, or the text of one.")
    values["generation_config"] = config
    if config.get("do_sample") is False:
        config = {**config, "temperature": 0}
    for name, field in GENERATION_CONFIG.items():
        if field not in values and config.get(name) is not None:
            values[field] = config[name]
            spelled[field] = f"generation_config.{name}"


def _asking(values: Mapping[str, Any], read: Collection[str]) -> Iterator[str]:
    return (
        name
        for name, value in values.items()
        if _asks(value) and name not in read and value != NEUTRAL.get(name)
    )


def _asks(value: Any) -> bool:
    """False and 0 do: they turn off what a server may do by itself."""
    return value is not None and value not in NOTHING


def _with_integers(value: Any) -> Any:
    """`value` with integral floats as ints, which are taken for floats too."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [*map(_with_integers, value)]
        case dict():
            return {name: _with_integers(item) for name, item in value.items()}
    return value


# What clients send back that came in an answer and asks for nothing, and other servers' hints.
NESTED_HARMLESS = frozenset(
    {"id", "index", "type", "object", "cache_control", "annotations", "created"}
)
LONGEST = 200  # characters of a name


def _unapplied_below(
    values: Mapping[str, Any], shapes: Iterable[type[msgspec.Struct]]
) -> Collection[str]:
    """What stands below the fields of `shapes` and isn't read, as `messages[].seen`: each path
    once, `MOST_NAMED` at most. Empty values ask for nothing. Linear in the values.
    """
    paths: dict[str, None] = {}
    for name, kind in chain.from_iterable(map(_fields, shapes)):
        value = values.get(name)
        if not isinstance(value, dict | list):  # nearly all
            continue
        for path in _paths_below(value, kind, name):
            paths[path] = None
            if len(paths) == MOST_NAMED:
                return paths
    return paths


@cache
def _fields(shape: type[msgspec.Struct]) -> tuple[tuple[str, inspect.Type], ...]:
    """Names and kinds. Finding them out takes a millisecond, and shapes are few."""
    fields = msgspec.structs.fields(shape)
    return tuple((field.encode_name, inspect.type_info(field.type)) for field in fields)


def _paths_below(value: Any, kind: inspect.Type, path: str) -> Iterator[str]:
    """As deep as `kind` is, however deep the value."""
    match kind, value:
        case inspect.UnionType(types), _:
            for one in types:
                yield from _paths_below(value, one, path)
        case inspect.StructType(fields=fields), dict():
            kinds = {field.encode_name: field.type for field in fields}
            for name, item in value.items():
                if name in kinds:
                    yield from _paths_below(item, kinds[name], f"{path}.{name}")
                elif _asks(item) and name not in NESTED_HARMLESS:
                    yield f"{path}.{name}"[:LONGEST]
        case inspect.ListType(item_type=item_kind), list():
            for item in value:
                if isinstance(item, dict | list):  # of texts and token ids there may be a million
                    yield from _paths_below(item, item_kind, f"{path}[]")
        case _:
            return
