"""Each server of a test has the same two hundred routes. Half of the time that building one takes,
Litestar reads their signatures; here that is done once in a process.
"""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from litestar._signature.model import SignatureModel
from litestar.routes import HTTPRoute
from litestar.utils.signature import ParsedSignature

ALIKE = HTTPRoute.create_options_handler  # makes a function for each path


def read_once() -> None:
    """From now on, for each function; a model of one for each set of names that are injected."""
    parse: Callable[..., ParsedSignature] = ParsedSignature.from_fn.__func__  # type: ignore[attr-defined]
    model: Callable[..., type[SignatureModel]] = SignatureModel.create.__func__  # type: ignore[attr-defined]
    parsed: WeakKeyDictionary[Any, ParsedSignature] = WeakKeyDictionary()
    models: WeakKeyDictionary[Any, dict[frozenset[str], type[SignatureModel]]] = WeakKeyDictionary()

    def known(fn: Any) -> Any:
        """By what it is known."""
        name = getattr(fn, "__qualname__", "")
        return ALIKE if name.startswith(f"{ALIKE.__qualname__}.") else fn

    def from_fn(cls: Any, /, fn: Any, namespace: Mapping[str, Any]) -> ParsedSignature:
        if known(fn) not in parsed:
            parsed[known(fn)] = parse(cls, fn, namespace)
        return parsed[known(fn)]

    def create(cls: Any, /, dependency_name_set: set[str], fn: Any, **more: Any) -> Any:
        of_fn = models.setdefault(known(fn), {})
        names = frozenset(dependency_name_set)
        if names not in of_fn:
            of_fn[names] = model(cls, dependency_name_set, fn, **more)
        return of_fn[names]

    ParsedSignature.from_fn = classmethod(from_fn)  # type: ignore[method-assign,assignment]
    SignatureModel.create = classmethod(create)  # type: ignore[method-assign,assignment]
