"""The sandboxed Jinja environment of chat templates, immutable, with Hugging Face's functions.

A template comes with the model's files, so it is untrusted code: it can reach neither Python nor
the disk, all its work is charged to a meter, and the origin of its texts is kept. Jinja lets an
environment stand between a template and calls, filters, tests, arithmetic and output; where it
doesn't (literals, slices, comparisons, `~`, loops) the syntax tree is rewritten, so that a filter
of ours stands there.

It knows nothing of messages. Source of its functions: the chat template pages of the transformers
documentation (trim_blocks, lstrip_blocks, loop controls, the `generation` tag, tojson without HTML
escapes).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS as DEFAULT_FILTERS
from jinja2.filters import do_batch, do_round, sync_do_slice
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS as DEFAULT_TESTS
from jinja2.utils import Namespace, _PassArg, pass_context
from markupsafe import Markup

from gateway.prompt.metering import (
    FULL,
    MAX_BITS,
    MAX_EXPONENT,
    PIECE,
    TEXT_METHODS,
    LimitExceeded,
    Meter,
    Operation,
    bounded,
    call_method,
    concatenated,
    formatted,
    meter,
    metered,
    percent,
    replaced,
    shown,
    stripped,
    text_join,
    tojson,
)
from gateway.prompt.traced import TracedText, clients, is_traced, joined, made_of, plain
from gateway.terms.tasks import Abandoned

MAX_SLOW = 20_000  # characters for what may take quadratic time


def _text(value: Any) -> str:
    return shown(value) if not isinstance(value, Undefined) else str(value)


def _indent(
    text: Any,
    width: Any = 4,
    first: bool = False,  # noqa: FBT001, FBT002 - the order is Jinja's
    blank: bool = False,  # noqa: FBT001, FBT002
) -> str:
    step = width if isinstance(width, str) else " " * max(0, bounded(width))
    lines = TEXT_METHODS["splitlines"](_text(text) + "\n")
    meter().grow(len(lines) * len(step) * 4)
    kept = [
        joined((step, line)) if (line or blank) and number else line
        for number, line in enumerate(lines)
    ]
    body = joined(kept, "\n")
    return joined((step, body)) if first else body


def _attributes(context: Context, items: Any, attribute: Any) -> Any:
    if attribute is None:
        return items
    named = {"attribute": attribute}
    return context.environment.call_filter("map", items, kwargs=named, context=context)


@pass_context
def _join(context: Context, items: Any, d: Any = "", attribute: Any = None) -> str:
    return text_join(_text(d), map(_text, _attributes(context, items, attribute)))


def _format(form: Any, *args: Any, **named: Any) -> str:
    if args and named:
        raise TypeError("a format takes values by place or by name, not both")
    return percent(_text(form), named or args)


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    return replaced(_text(text), _text(old), _text(new), -1 if count is None else count)


@pass_context
def _sum(context: Context, items: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for item in meter().each(_attributes(context, items, attribute), 1):
        if isinstance(item, str) or isinstance(total, str):
            raise TypeError("texts are joined, not summed")
        if isinstance(total, list | tuple):
            total = meter().joined_lists(total, item)
        else:
            total = meter().made(total + item)
    return total


def _round(value: Any, precision: Any = 0, method: Any = "common") -> Any:
    if abs(int(precision)) > 100:
        raise TemplateError("the template rounds to too many places")
    return do_round(value, int(precision), method)


def _cased(name: str) -> Operation:
    change = TEXT_METHODS[name]

    def changed(text: Any) -> Any:
        return change(_text(text))

    return changed


_OWN: Mapping[str, Operation] = {
    "string": _text,
    "safe": lambda value: value,  # nothing is escaped here: it is a text like others
    "trim": lambda text, chars=None: stripped(left=True, right=True)(_text(text), chars),
    "replace": _replace,
    "join": _join,
    "indent": _indent,
    "format": _format,
    "tojson": tojson,
    "sum": _sum,
    "batch": lambda items, linecount, fill_with=None: do_batch(
        items, bounded(linecount), fill_with
    ),
    "slice": lambda items, slices, fill_with=None: sync_do_slice(items, bounded(slices), fill_with),
    "round": _round,
    "center": lambda text, width=80: TEXT_METHODS["center"](_text(text), width),
    **{name: _cased(name) for name in ("upper", "lower", "capitalize")},
}
# What they give was in what they got, so its origin is known.
_PASSING = frozenset(
    (
        *("abs", "attr", "count", "d", "default", "dictsort", "first", "float", "groupby", "int"),
        *("items", "last", "length", "list", "map", "max", "min", "random", "reject"),
        *("rejectattr", "reverse", "select", "selectattr", "sort", "unique"),
    )
)
_CHEAP = frozenset(
    ("abs", "attr", "count", "d", "default", "first", "float", "int", "items", "last", "length")
)
_LISTING = frozenset(("batch", "list", "slice", "sort", "unique"))
_COMPARING = frozenset(
    (
        *("in", "eq", "==", "equalto", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt"),
        *("greaterthan", ">", "ge", ">="),
    )
)
_SLOW = frozenset(("pprint", "striptags", "urlize", "wordwrap", "xmlattr", "filesizeformat"))


def _metered(name: str, function: Operation) -> Operation:
    """The filter, charged for what it goes through and for what it makes."""
    unplaced = name not in _OWN and name not in _PASSING

    @pass_context
    def run(context: Context, *args: Any, **named: Any) -> Any:
        given = (*args, *named.values())
        _charge(name, given)
        result = meter().made(function(*_passed(function, context), *args, **named))
        if isinstance(result, Markup):
            result = plain(result)
        if unplaced and isinstance(result, str) and any(map(is_traced, given)):
            return clients(result)
        return result

    return run


def _charge(name: str, given: Sequence[Any]) -> None:
    charged = meter()
    charged.step()
    if name not in _CHEAP:
        for value in given:
            charged.walk(value)
    if name in _SLOW and sum(map(charged.weight, given)) > MAX_SLOW:
        raise TemplateError(f"the filter {name} takes {MAX_SLOW} characters at most")
    unplaced = name not in _OWN and name not in _PASSING
    if unplaced or name in _LISTING:  # one piece of each character, at the worst
        charged.grow(PIECE * sum(len(value) for value in given if isinstance(value, str)))


def _passed(function: Operation, context: Context) -> tuple[Any, ...]:
    """What Jinja hands to `function` before its values."""
    match _PassArg.from_obj(function):
        case _PassArg.context:
            return (context,)
        case _PassArg.eval_context:
            return (context.eval_ctx,)
        case _PassArg.environment:
            return (context.environment,)
    return ()


def _metered_test(name: str, function: Operation) -> Operation:
    @pass_context
    def run(context: Context, *args: Any) -> bool:
        meter().step()
        if name in _COMPARING:
            for value in args:
                meter().walk(value)
        return bool(function(*_passed(function, context), *args))

    return run


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


# In errors of Jinja's and Python's, the type of a client's text, which is one to everybody else.
_OURS = re.compile(rf"(?:[\w.]+\.)?{TracedText.__name__}")


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
def _walked(_context: Context, value: Any) -> Any:
    meter().walk(value)
    return value


@pass_context
def _cut(_context: Context, value: Any, start: Any, stop: Any, step: Any) -> Any:
    if isinstance(value, Undefined):
        return value[start:stop:step]  # it says that it is undefined
    return meter().made(value[start:stop:step])


@pass_context
def _printed(_context: Context, value: Any) -> str:
    meter().step()
    return str(value) if isinstance(value, Undefined) else shown(value)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(shown(message))


def _strftime_now(form: str) -> str:
    if len(form) > MAX_FORM:
        raise TemplateError("the form of the date is too long")
    return made_of(datetime.now().astimezone().strftime(form), form)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        finalize=_printed,
    )
    functions, tests = {**DEFAULT_FILTERS, **_OWN}, dict[str, Any](DEFAULT_TESTS)
    environment.filters = {
        **{name: _metered(name, function) for name, function in functions.items()},
        _EACH: pass_context(lambda _, items, steps: meter().each(items, steps)),
        _BUILT: pass_context(lambda _, value: meter().made(value)),
        _WALKED: _walked,
        _CUT: _cut,
        _JOINED: pass_context(lambda _, *items: concatenated(items)),
    }
    environment.tests = {name: _metered_test(name, test) for name, test in tests.items()}
    kept = ("range", "dict", "cycler", "joiner")
    environment.globals = {name: environment.globals[name] for name in kept}
    environment.globals["namespace"] = _Variables
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


ENVIRONMENT = _environment()


class CompiledTemplate:
    """A template's source, compiled. `reads` are the variables that it takes from outside."""

    def __init__(self, source: str) -> None:
        """Raises SyntaxRefused."""
        if len(source) > MAX_SOURCE:
            raise SyntaxRefused(f"it is longer than {MAX_SOURCE} characters")
        try:
            tree = ENVIRONMENT.parse(source)
            self.reads = frozenset(meta.find_undeclared_variables(tree))
            _rewrite_inside(tree)
            code = ENVIRONMENT.compile(tree, filename=_FILENAME)
        except TemplateSyntaxError as error:
            raise SyntaxRefused(error.message or "syntax error", error.lineno) from error
        except (TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as error:
            raise SyntaxRefused(str(error) or type(error).__name__) from error
        self._template = ENVIRONMENT.template_class.from_code(
            ENVIRONMENT, code, ENVIRONMENT.make_globals(None)
        )

    def render(self, variables: Mapping[str, Any], charged: Meter | None = None) -> str:
        """The text, charged to a meter; a `TracedText` where clients' texts are in it.

        Raises TemplateRefused, whatever goes wrong inside the template, LimitExceeded, and
        Abandoned.
        """
        try:
            with metered(charged or Meter(FULL)):
                return ENVIRONMENT.concat(_counted(self._template.generate(dict(variables))))
        except (LimitExceeded, Abandoned):
            raise
        except Exception as error:  # a template can fail in any way that Python code can
            reason = _OURS.sub("str", str(error)) or type(error).__name__
            raise TemplateRefused(reason, _line(error)) from error


def _counted(chunks: Iterator[str]) -> Iterator[str]:
    for chunk in chunks:
        meter().grow(8)
        yield chunk


def _rewritten(node: nodes.Node) -> nodes.Node:
    _rewrite_inside(node)
    match node:
        case nodes.For():
            steps = 1 + sum(1 for part in node.body for _ in part.find_all(nodes.Node))
            assert isinstance(node.iter, nodes.Expr), "Jinja's parser makes nothing else"
            node.iter = _filtered(_EACH, node.iter, nodes.Const(steps))
        case nodes.Compare() | nodes.Operand():
            node.expr = _filtered(_WALKED, node.expr)
        case nodes.Concat():
            return _filtered(_JOINED, *node.nodes).set_lineno(node.lineno)
        case nodes.Getitem(arg=nodes.Slice() as cut):
            places: list[nodes.Expr] = [
                place or nodes.Const(None) for place in (cut.start, cut.stop, cut.step)
            ]
            return _filtered(_CUT, node.node, *places)
        case nodes.List() | nodes.Dict() | nodes.Tuple(ctx="load"):
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
            items = (_rewritten(item) if isinstance(item, nodes.Node) else item for item in value)
            setattr(node, name, list(items))


def _filtered(name: str, value: nodes.Expr, *args: nodes.Expr) -> nodes.Expr:
    if name == _WALKED and isinstance(value, nodes.Const):
        return value  # a number or a short text
    made = nodes.Filter(value, name, list(args), [], None, None)
    made.set_lineno(value.lineno).set_environment(ENVIRONMENT)
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
