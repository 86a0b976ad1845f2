"""The sandboxed Jinja environment of chat templates, immutable, with Hugging Face's functions.

A template comes with the model's files, so it is untrusted code: it can reach neither Python nor
the disk, and all its work is charged to a meter. Jinja lets an environment stand between a template
and calls, filters, tests, arithmetic and output; where it doesn't (literals, slices, comparisons,
`~`, loops) the syntax tree is rewritten, so that a filter of ours stands there.

Knows nothing of messages. Source of its functions: the chat template pages of the transformers
documentation (trim_blocks, lstrip_blocks, loop controls, the `generation` tag, tojson without HTML
escapes).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

from gateway.prompt.filters import metered_filters, metered_tests
from gateway.prompt.metering import (
    FULL,
    MAX_BITS,
    MAX_EXPONENT,
    LimitExceeded,
    Meter,
    meter,
    metered,
)
from gateway.prompt.operations import (
    TEXT_METHODS,
    call_method,
    concatenated,
    formatted,
    percent,
    shown,
)
from gateway.prompt.traced import joined
from gateway.tasks import Abandoned

MAX_SOURCE = 256 << 10  # characters; real templates have up to thirty thousand

MAX_FORM = 1_000  # characters of a date's format

_FILENAME = "<chat template>"
# Filters with names that no template can write, so none can call or replace them.
_EACH, _BUILT, _WALKED, _CUT, _JOINED = (
    f"metered {what}" for what in ("loop", "literal", "comparison", "slice", "concatenation")
)

# What may be reached on the values that a client sends and a template makes.
_ATTRIBUTES: Mapping[type, frozenset[str]] = {
    str: frozenset((*TEXT_METHODS, "format", "format_map")),
    list: frozenset(("count", "index", "copy")),
    tuple: frozenset(("count", "index", "grouper", "list")),
    dict: frozenset(("get", "items", "keys", "values", "copy")),
    int: frozenset(),
    float: frozenset(),
    bytes: frozenset(),
    type: frozenset(),
    set: frozenset(),
    frozenset: frozenset(),
}


class TemplateRefused(Exception):
    """A rendering failed: the template raised, or is faulty. `line` counts from 1; 0 is unknown."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


class SyntaxRefused(TemplateRefused):
    """The source is no valid template."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks words for training; here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(
            parser.parse_statements(("name:endgeneration",), drop_needle=True)
        ).set_lineno(line)


class _Variables(Namespace):
    """Jinja's `namespace`. Printed as its name: its content may hold itself, in many ways."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """The output of a macro or a block becomes a text."""
        texts = list(pieces)
        meter().grow(8 * len(texts) + sum(map(len, texts)))
        return joined(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        charged = meter()
        charged.step()
        for number in (left, right):
            if isinstance(number, int) and number.bit_length() > MAX_BITS:
                raise TemplateError("the template computes with too large a number")
        match operator:
            case "%" if isinstance(left, str):
                return charged.made(percent(left, right))
            case "*":
                for items, times in ((left, right), (right, left)):
                    if isinstance(items, Sized) and isinstance(times, int):
                        return _repeated(items, times)
            case "**" if isinstance(right, int | float) and abs(right) > MAX_EXPONENT:
                raise TemplateError(f"the template raises to a power over {MAX_EXPONENT}")
            case "+" if isinstance(left, list | tuple) and type(left) is type(right):
                return charged.joined_lists(left, right)
        return charged.made(super().call_binop(context, operator, left, right))

    def call(  # Jinja's own names: a macro's arguments may have any other
        __self,  # noqa: N805
        __context: Context,  # noqa: PYI063
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        charged = meter()
        charged.step(1 + len(args) + len(kwargs))
        receiver = getattr(__obj, "__self__", None)
        if isinstance(receiver, str):
            named = {name: value for name, value in kwargs.items() if name not in _FRAME}
            for value in (*args, *named.values()):
                charged.walk(value)
            return charged.made(call_method(receiver, __obj.__name__, args, named))
        if isinstance(receiver, list | tuple):
            charged.walk(receiver)
        if isinstance(__obj, LoopContext) and args:  # a recursive loop begins again
            args = (charged.each(args[0], _RECURSIVE_TURN), *args[1:])
        return charged.made(super().call(__context, __obj, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            meter().walk(argument)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in _ATTRIBUTES.items():
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        name, text = getattr(value, "__name__", None), getattr(value, "__self__", None)
        if not isinstance(text, str) or name not in {"format", "format_map"}:
            return None
        if name == "format_map":
            return lambda named: formatted(self, text, (), named)
        return lambda *args, **named: formatted(self, text, args, named)


_FRAME = frozenset(("_loop_vars", "_block_vars"))  # Jinja passes them to whatever is called
_RECURSIVE_TURN = 256  # steps of a turn in a loop that calls itself


def _repeated(items: Any, times: int) -> Any:
    size = len(items) * max(0, times)
    meter().grow(size * (4 if isinstance(items, str) else 8))
    if isinstance(items, str):
        return joined([items] * times)
    return meter().made(items * times)


@pass_context
def _each(_context: Context, items: Any, steps: int) -> Iterable[Any]:
    return meter().each(items, steps)


@pass_context
def _built(_context: Context, value: Any) -> Any:
    return meter().made(value)


@pass_context
def _walked(_context: Context, value: Any) -> Any:
    meter().walk(value)
    return value


@pass_context
def _cut(_context: Context, value: Any, start: Any, stop: Any, step: Any) -> Any:
    if isinstance(value, Undefined):
        return value[start:stop:step]  # it says that it is undefined
    return meter().made(value[start:stop:step])


@pass_context
def _joined(_context: Context, *items: Any) -> str:
    return concatenated(items)


@pass_context
def _printed(_context: Context, value: Any) -> str:
    meter().step()
    return str(value) if isinstance(value, Undefined) else shown(value)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(shown(message))


def _strftime_now(form: str) -> str:
    if len(form) > MAX_FORM:
        raise TemplateError("the form of the date is too long")
    return datetime.now().astimezone().strftime(form)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        finalize=_printed,
    )
    filters: dict[str, Any] = {
        **metered_filters(),
        _EACH: _each,
        _BUILT: _built,
        _WALKED: _walked,
        _CUT: _cut,
        _JOINED: _joined,
    }
    environment.filters = filters
    tests: dict[str, Any] = metered_tests()
    environment.tests = tests
    environment.globals = {
        name: environment.globals[name] for name in ("range", "dict", "cycler", "joiner")
    }
    environment.globals["namespace"] = _Variables
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


_ENVIRONMENT = _environment()


class CompiledTemplate:
    """A template's source, compiled. `reads` are the variables that it takes from outside."""

    def __init__(self, source: str) -> None:
        """Raises SyntaxRefused."""
        if len(source) > MAX_SOURCE:
            raise SyntaxRefused(f"it is longer than {MAX_SOURCE} characters")
        try:
            tree = _ENVIRONMENT.parse(source)
            self.reads = frozenset(meta.find_undeclared_variables(tree))
            code = _ENVIRONMENT.compile(_metered_tree(tree), filename=_FILENAME)
        except TemplateSyntaxError as error:
            raise SyntaxRefused(error.message or "syntax error", error.lineno) from error
        except (TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as error:
            raise SyntaxRefused(str(error) or type(error).__name__) from error
        self._template = _ENVIRONMENT.template_class.from_code(
            _ENVIRONMENT, code, _ENVIRONMENT.make_globals(None)
        )

    def render(self, variables: Mapping[str, Any], charged: Meter | None = None) -> str:
        """The text, charged to a meter; a `TracedText` where clients' texts are in it.

        Raises Refused, whatever goes wrong inside the template, LimitExceeded, and Abandoned.
        """
        try:
            with metered(charged or Meter(FULL)):
                return _ENVIRONMENT.concat(_counted(self._template.generate(dict(variables))))
        except (LimitExceeded, Abandoned):
            raise
        except Exception as error:  # a template can fail in any way that Python code can
            raise TemplateRefused(str(error) or type(error).__name__, _line(error)) from error


def _counted(chunks: Iterator[str]) -> Iterator[str]:
    for chunk in chunks:
        meter().grow(8)
        yield chunk


# ---------------------------------------------------------------------------------- the syntax tree


def _metered_tree(tree: nodes.Template) -> nodes.Template:
    _rewrite_inside(tree)
    return tree


def _rewritten(node: nodes.Node) -> nodes.Node:
    _rewrite_inside(node)
    match node:
        case nodes.For():
            steps = 1 + sum(1 for part in node.body for _ in part.find_all(nodes.Node))
            assert isinstance(node.iter, nodes.Expr), "Jinja's parser makes nothing else"
            node.iter = _filtered(_EACH, node.iter, nodes.Const(steps))
        case nodes.Compare():
            node.expr = _filtered(_WALKED, node.expr)
        case nodes.Operand():
            node.expr = _filtered(_WALKED, node.expr)
        case nodes.Concat():
            return _filtered(_JOINED, *node.nodes).set_lineno(node.lineno)
        case nodes.Getitem(arg=nodes.Slice() as cut):
            places: list[nodes.Expr] = [
                place or nodes.Const(None) for place in (cut.start, cut.stop, cut.step)
            ]
            return _filtered(_CUT, node.node, *places)
        case nodes.List() | nodes.Dict():
            return _filtered(_BUILT, node)
        case nodes.Tuple(ctx="load"):
            return _filtered(_BUILT, node)
        case (
            nodes.Call(dyn_args=nodes.Expr() as spread)
            | nodes.Filter(dyn_args=nodes.Expr() as spread)
        ):
            node.dyn_args = _filtered(_EACH, spread, nodes.Const(1))
        case nodes.EvalContextModifier():
            raise TemplateError("autoescape isn't available in a chat template")
    return node


def _rewrite_inside(node: nodes.Node) -> None:
    for name, value in list(node.iter_fields()):
        if isinstance(value, nodes.Node):
            setattr(node, name, _rewritten(value))
        elif isinstance(value, list):
            setattr(
                node,
                name,
                [_rewritten(item) if isinstance(item, nodes.Node) else item for item in value],
            )


def _filtered(name: str, value: nodes.Expr, *args: nodes.Expr) -> nodes.Expr:
    if name == _WALKED and isinstance(value, nodes.Const):
        return value  # a number or a short text
    made = nodes.Filter(value, name, list(args), [], None, None)
    made.set_lineno(value.lineno).set_environment(_ENVIRONMENT)
    return made


def _line(error: Exception) -> int:
    """The innermost line of the template that the failure passed through."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILENAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
