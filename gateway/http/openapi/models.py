"""JSON schemas of bodies and answers, each model with a name of its own and a description.

A body is often read by several structs, each of which takes its part, and a field of ours may have
several names: `Body` puts together what a client may write.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from litestar.handlers import HTTPRouteHandler
from msgspec import inspect

from gateway.dialects.fields import SPELLINGS

Schema = dict[str, Any]
REF = "#/components/schemas/"
OWN = "Roundhouse"


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A body that several structs read. `further`: fields that none of them names, with their
    schemas; `names`: what clients of this API call fields that have other names elsewhere;
    `needs`: bodies that `further` refers to.
    """

    name: str
    about: str
    shapes: tuple[type[msgspec.Struct], ...]
    further: Mapping[str, Schema] = {}
    names: Mapping[str, tuple[str, ...]] = {}
    needs: "tuple[Body, ...]" = ()

    def called(self, field: str) -> tuple[str, ...]:
        """What clients write for one of our fields, the usual name first."""
        return self.names.get(field) or SPELLINGS.get(field, (field,))


class SchemaModels:
    """The components of one document. Knows no routes."""

    def __init__(self, kinds: Sequence[Any], apis: Mapping[str, str]) -> None:
        """`kinds`: types and `Body`s, all that will be referred to. `apis`: what components of an
        API begin with, by its module in `gateway.dialects`; those of all others with `OWN`.
        """
        bodies = [kind for kind in kinds if isinstance(kind, Body)]
        bodies += [needed for one in bodies for needed in one.needs]
        shown = [kind for kind in kinds if not isinstance(kind, Body)]
        types = list(dict.fromkeys([*shown, *(shape for one in bodies for shape in one.shapes)]))
        refs, known = msgspec.json.schema_components(types, ref_template=f"{REF}{{name}}")
        names = _names(types, apis)
        found = {names[name]: _renamed(one, names) for name, one in known.items()}
        self._refs = {kind: _renamed(ref, names) for kind, ref in zip(types, refs, strict=True)}
        whole = {one.name: self._merged(one, found) for one in bodies}
        reached = _reached([*whole.values(), *(self._refs[kind] for kind in shown)], found)
        described = {name: _described(name, found[name]) for name in reached}
        self.schemas: Schema = dict(sorted({**described, **whole}.items()))

    def ref(self, kind: Any) -> Schema:
        """How a document refers to `kind`, which was named at the beginning."""
        return {"$ref": f"{REF}{kind.name}"} if isinstance(kind, Body) else self._refs[kind]

    def _merged(self, body: Body, found: Mapping[str, Schema]) -> Schema:
        """One object of all that the body's structs read."""
        properties: Schema = {}
        required: dict[str, None] = {}
        for shape in body.shapes:
            schema = found[self._refs[shape]["$ref"].removeprefix(REF)]
            for field, kind in schema["properties"].items():
                properties |= _spelled(body.called(field), kind)
            required |= dict.fromkeys(body.called(field)[0] for field in schema.get("required", ()))
        needed = {"required": list(required)} if required else {}
        return {
            "title": body.name,
            "description": body.about,
            "type": "object",
            "properties": {**properties, **body.further},
            **needed,
        }


def _spelled(names: Sequence[str], kind: Schema) -> Schema:
    """A field under each name that a client may write."""
    first, *others = names
    about = {"description": f"Another name of `{first}`."}
    return {first: kind, **{name: {**kind, **about} for name in others}}


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with all that it refers to under our names."""
    if isinstance(value, dict):
        return {key: _renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if isinstance(value, str) and value.startswith(REF):
        return f"{REF}{names[value.removeprefix(REF)]}"
    return value


def _names(types: Sequence[Any], apis: Mapping[str, str]) -> dict[str, str]:
    """The names of components as msgspec has them, and ours: `OpenAIMessage` of
    `openai.messages.MessageWire`; where an API has one in its requests and one in its answers, the
    other is `…AnswerMessage`.
    """
    seen: set[type] = set()
    structs = [kind for one in inspect.multi_type_info(types) for kind in _structs(one, seen)]
    short = Counter(struct.__name__ for struct in structs)
    ours = Counter(_name(struct, apis) for struct in structs)
    return {
        struct.__name__
        if short[struct.__name__] == 1
        else f"{struct.__module__}.{struct.__qualname__}": _name(
            struct, apis, in_answers=ours[_name(struct, apis)] > 1 and "reply" in struct.__module__
        )
        for struct in structs
    }


def _name(struct: type, apis: Mapping[str, str], *, in_answers: bool = False) -> str:
    _, _, below = struct.__module__.partition("dialects.")
    api = apis.get(below.partition(".")[0], OWN)
    base = struct.__name__.removesuffix("Wire").removeprefix("Llama").removeprefix(api)
    return f"{api}{'Answer' if in_answers else ''}{base}"


def _structs(kind: inspect.Type, seen: set[type]) -> Iterator[type]:
    """The structs in `kind` and below."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            if cls in seen:
                return
            seen.add(cls)
            yield cls
            for field in fields:
                yield from _structs(field.type, seen)
        case inspect.UnionType(types):
            for one in types:
                yield from _structs(one, seen)
        case inspect.TupleType(item_types=types):
            for one in types:
                yield from _structs(one, seen)
        case inspect.DictType(value_type=one):
            yield from _structs(one, seen)
        case inspect.Type() if (item := getattr(kind, "item_type", None)) is not None:
            yield from _structs(item, seen)


def _reached(schemas: Sequence[Schema], found: Mapping[str, Schema]) -> set[str]:
    """The components that `schemas` refer to, and those that these refer to."""
    waiting, reached = list(schemas), set[str]()
    while waiting:
        for name in _refs(waiting.pop()) - reached:
            reached.add(name)
            waiting.append(found[name])
    return reached


def _refs(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {name for item in value.values() for name in _refs(item)}
    if isinstance(value, list):
        return {name for item in value for name in _refs(item)}
    is_ref = isinstance(value, str) and value.startswith(REF)
    return {value.removeprefix(REF)} if is_ref else set()


def _described(name: str, schema: Schema) -> Schema:
    """With its own name, and its docstring in one line each paragraph."""
    about = re.sub(r"\s*\n\s+", " ", schema.get("description", ""))
    return {**schema, "title": name, "description": about}


DEFAULT = "default"  # the configured default model, by the name that it always has


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """`takes`: its JSON body, a type or a `models.Body`, or with `takes_file` a file as it is;
    `gives`: its JSON answer, any of these; `events`: the types in a stream of it, as server-sent
    events or, with `lines`, as lines of JSON; `query`: a struct of parameters that Litestar doesn't
    know of; `examples`: bodies by what they show, each of which a server with a default model, one
    that embeds and one that ranks answers with `status`; `text`: the type of an answer that is no
    JSON.
    """

    takes: Any = None
    takes_file: bool = False
    gives: tuple[Any, ...] = ()
    events: tuple[Any, ...] = ()
    lines: bool = False
    query: type[msgspec.Struct] | None = None
    text: str | None = None
    status: int = 200
    examples: Mapping[str, Mapping[str, Any]] = {}

    def kinds(self) -> tuple[Any, ...]:
        """All models that it refers to."""
        taken = () if self.takes is None else (self.takes,)
        return (*taken, *self.gives, *self.events)


Routes: TypeAlias = Mapping[HTTPRouteHandler, Described]  # and what each takes and gives
