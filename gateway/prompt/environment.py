"""The world a chat template runs in: Jinja's immutable sandbox, furnished as Hugging Face does.

A template comes with the model's files, so it is somebody else's code: it can reach neither Python
nor the disk, and what it does is counted. The counting is cheap and meant against accidents (a loop
that never gets done, a string that grows for ever); it is no defence against a model that was made
to harm.

Knows nothing of messages. Source of the furniture: the chat template pages of the transformers
documentation (trim_blocks, lstrip_blocks, loop controls, the `generation` tag, tojson without HTML
escapes).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context

# Turns of loops in one rendering: a thousand messages that all look at all others, twice.
MAX_STEPS = 2_000_000
MAX_CHARACTERS = 64_000_000  # of one rendering, or of one repeated string
MAX_EXPONENT = 64

_FILENAME = "<chat template>"
_METER = "metered rendering"  # a name that no template can write, so none can read or hide it


class Refused(Exception):
    """A rendering failed: the template raised, or it broke. `line` counts from 1; 0 is unknown."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


class SyntaxRefused(Refused):
    """The source is no valid template."""


class _Meter:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS

    def charge(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TemplateError(f"the template loops more than {MAX_STEPS} times")

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.charge(1)
            yield item


@pass_context
def _metered(context: Context, items: Iterable[Any]) -> Iterable[Any]:
    """Stands around what a loop runs over. What has a length is charged at once and handed on."""
    meter: _Meter = context[_METER]
    if isinstance(items, Sized):
        meter.charge(len(items))
        return items
    return meter.each(items)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks words for training; here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(
            parser.parse_statements(("name:endgeneration",), drop_needle=True)
        ).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiplication and power, bounded: they make something huge out of little."""
        if operator == "**" and isinstance(right, int | float) and right > MAX_EXPONENT:
            raise TemplateError(f"the template raises to a power over {MAX_EXPONENT}")
        if operator == "*":
            for items, times in ((left, right), (right, left)):
                if isinstance(items, Sized) and isinstance(times, int):
                    _refuse_repetition(items, times)
        return super().call_binop(context, operator, left, right)


def _refuse_repetition(items: Sized, times: int) -> None:
    if len(items) * times > MAX_CHARACTERS:
        raise TemplateError("the template repeats a text too often")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the order is Hugging Face's
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON as models were trained on it. Jinja's own filter escapes `<` and `&` for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.filters[_METER] = _metered
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


_ENVIRONMENT = _environment()


class CompiledTemplate:
    """A template's source, compiled. `reads` are the variables that it looks up from outside."""

    def __init__(self, source: str) -> None:
        """Raises SyntaxRefused."""
        try:
            tree = _ENVIRONMENT.parse(source)
            self.reads = frozenset(meta.find_undeclared_variables(tree))
            _meter_loops(tree)
            code = _ENVIRONMENT.compile(tree, filename=_FILENAME)
        except TemplateSyntaxError as error:
            raise SyntaxRefused(error.message or "syntax error", error.lineno) from error
        except (TemplateError, RecursionError, SyntaxError) as error:
            raise SyntaxRefused(str(error)) from error
        self._template = _ENVIRONMENT.template_class.from_code(
            _ENVIRONMENT, code, _ENVIRONMENT.make_globals(None)
        )

    def render(self, variables: Mapping[str, Any]) -> str:
        """Raises Refused, whatever goes wrong inside the template."""
        chunks = self._template.generate({**variables, _METER: _Meter()})
        try:
            return _bounded(chunks)
        except Exception as error:  # a template can fail in any way that Python code can
            raise Refused(str(error) or type(error).__name__, _line(error)) from error


def _bounded(chunks: Iterator[str]) -> str:
    kept: list[str] = []
    length = 0
    for chunk in chunks:
        length += len(chunk)
        if length > MAX_CHARACTERS:
            raise TemplateError(f"the text is longer than {MAX_CHARACTERS} characters")
        kept.append(chunk)
    return "".join(kept)


def _meter_loops(tree: nodes.Template) -> None:
    for loop in list(tree.find_all(nodes.For)):
        metered = nodes.Filter(loop.iter, _METER, [], [], None, None)
        loop.iter = metered.set_lineno(loop.lineno).set_environment(_ENVIRONMENT)


def _line(error: Exception) -> int:
    """The innermost line of the template that the failure passed through."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILENAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
