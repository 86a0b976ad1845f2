"""The other direction: calls written as each family's template writes them."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Arguments: TypeAlias = dict[str, Any]
Calls: TypeAlias = Sequence[tuple[str, Arguments]]
Renderer: TypeAlias = Callable[[Calls], str]


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def bare(value: Any) -> str:
    """A value as XML-like syntaxes write it: strings as they are, all else as JSON."""
    return value if isinstance(value, str) else dumped(value)


def objects(name_key: str, arguments_key: str, calls: Calls) -> list[str]:
    return [dumped({name_key: name, arguments_key: arguments}) for name, arguments in calls]


def tagged(opener: str, closer: str, arguments_key: str = "arguments") -> Renderer:
    return lambda calls: "\n".join(
        f"{opener}{text}{closer}" for text in objects("name", arguments_key, calls)
    )


def array(opener: str, closer: str, name: str = "name", arguments: str = "arguments") -> Renderer:
    return lambda calls: f"{opener}[{', '.join(objects(name, arguments, calls))}]{closer}"


def named(begin: str, before: str, between: str, after: str, end: str = "") -> Renderer:
    return lambda calls: (
        begin
        + "".join(f"{before}{name}{between}{dumped(arguments)}{after}" for name, arguments in calls)
        + end
    )


def elements(outer: str, call: str, parameter: str, begin: str = "", end: str = "") -> Renderer:
    """`outer`, `call` and `parameter` hold the places {name}, {key}, {value} and {inner}."""

    def render(calls: Calls) -> str:
        written = []
        for name, arguments in calls:
            inner = "".join(
                parameter.format(
                    key=key,
                    value=bare(value),
                    string="true" if isinstance(value, str) else "false",
                    type=json_type(value),
                )
                for key, value in arguments.items()
            )
            written.append(outer.format(inner=call.format(name=name, inner=inner)))
        return begin + "\n".join(written) + end

    return render


def json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def python(begin: str, separator: str, end: str) -> Renderer:
    def render(calls: Calls) -> str:
        return begin + separator.join(python_call(*call) for call in calls) + end

    def python_call(name: str, arguments: Arguments) -> str:
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"

    return render


def bare_dict(opener: str, quote: str, closer: str) -> Renderer:
    def write(value: Any) -> str:
        match value:
            case str():
                return f"{quote}{value}{quote}"
            case dict():
                return "{" + ",".join(f"{key}:{write(inner)}" for key, inner in value.items()) + "}"
            case list():
                return f"[{','.join(map(write, value))}]"
            case _:
                return dumped(value)

    return lambda calls: "".join(
        f"{opener}call:{name}{write(arguments)}{closer}" for name, arguments in calls
    )


def minimax_m3(calls: Calls) -> str:
    prefix = "]<]minimax[>["

    def write(key: str, value: Any) -> str:
        match value:
            case dict():
                inner = "".join(write(name, each) for name, each in value.items())
            case list():
                inner = "".join(write("item", each) for each in value)
            case _:
                inner = bare(value)
        return f"{prefix}<{key}>{inner}{prefix}</{key}>"

    written = "".join(
        f'{prefix}<invoke name="{name}">'
        + "".join(write(key, value) for key, value in arguments.items())
        + f"{prefix}</invoke>\n"
        for name, arguments in calls
    )
    return f"{prefix}<tool_call>\n{written}{prefix}</tool_call>"


def kimi_k2(calls: Calls) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>"
        f"{dumped(arguments)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def apertus(calls: Calls) -> str:
    inner = ", ".join(dumped({name: arguments}) for name, arguments in calls)
    return f"<|tools_prefix|>[{inner}]<|tools_suffix|>"


_DSML = elements(
    "{inner}",
    '<｜DSML｜invoke name="{name}">\n{inner}</｜DSML｜invoke>',
    '<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>\n',
    "<｜DSML｜function_calls>\n",
    "\n</｜DSML｜function_calls>",
)
_GLM = "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"

RENDERERS: dict[str, Renderer] = {
    "hermes_json": tagged("<tool_call>\n", "\n</tool_call>"),
    "longcat_json": tagged("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
    "ernie45": tagged("<tool_call>\n", "\n</tool_call>\n"),
    "internlm2": tagged("<|action_start|><|plugin|>\n", "<|action_end|>", "parameters"),
    "granite_20b_fc": tagged("<function_call> ", ""),
    "gigachat31": tagged("<|function_call|>", ""),
    "llama3_json": lambda calls: "; ".join(objects("name", "parameters", calls)),
    "minimax_m1": lambda calls: "\n".join(
        ["<tool_calls>", *objects("name", "arguments", calls), "</tool_calls>"]
    ),
    "mistral_v3": array("[TOOL_CALLS]", ""),
    "jamba": array("<tool_calls>", "</tool_calls>"),
    "nemotron_v2": array("<TOOLCALL>", "</TOOLCALL>"),
    "apriel": array("<tool_calls>", "</tool_calls>"),
    "hunyuan_a13b": array("<tool_calls>", "</tool_calls>"),
    "granite_array": array("<|tool_call|> ", ""),
    "phi4_mini": array("functools", ""),
    "xlam_array": array("", ""),
    "cohere_cmd3": array("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters"),
    "cohere_action_json": array("Action:\n```json\n", "```", "tool_name", "parameters"),
    "apertus": apertus,
    "mistral_v11": named("", "[TOOL_CALLS]", "[ARGS]", ""),
    "deepseek_v3": named(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        "\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": named(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "kimi_k2": kimi_k2,
    "solar_open": named(
        "<|tool_calls|>",
        "<|tool_call:begin|>id<|tool_call:name|>",
        "<|tool_call:args|>",
        "<|tool_call:end|>",
        "<|calls|>",
    ),
    "functionary_v3_1": named("", "<function=", ">", "</function>"),
    "functionary_v3_2": lambda calls: named("", ">>>", "\n", "")(calls).removeprefix(">>>"),
    "harmony": named(
        "",
        "<|start|>assistant<|channel|>commentary to=functions.",
        " <|constrain|>json<|message|>",
        "<|call|>",
    ),
    "qwen3_coder_xml": elements(
        "<tool_call>\n{inner}\n</tool_call>",
        "<function={name}>\n{inner}</function>",
        "<parameter={key}>\n{value}\n</parameter>\n",
    ),
    "seed_oss_xml": elements(
        "<seed:tool_call>\n{inner}\n</seed:tool_call>",
        "<function={name}>\n{inner}</function>",
        "<parameter={key}>{value}</parameter>\n",
    ),
    "minimax_m2": elements(
        "{inner}",
        '<invoke name="{name}">\n{inner}</invoke>',
        '<parameter name="{key}">{value}</parameter>\n',
        "<minimax:tool_call>\n",
        "\n</minimax:tool_call>",
    ),
    "step3_steptml": elements(
        "<｜tool_call_begin｜>function<｜tool_sep｜>{inner}<｜tool_call_end｜>",
        '<steptml:invoke name="{name}">{inner}</steptml:invoke>',
        '<steptml:parameter name="{key}">{value}</steptml:parameter>',
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
    ),
    "minicpm5_xml": elements(
        "{inner}",
        '<function name="{name}">{inner}</function>',
        '<param name="{key}"><![CDATA[{value}]]></param>',
    ),
    "glm45": elements("{inner}", "<tool_call>{name}\n{inner}</tool_call>", _GLM),
    "hy3": elements(
        "{inner}",
        "<tool_call>{name}<tool_sep>\n{inner}</tool_call>",
        _GLM,
        "<tool_calls>\n",
        "\n</tool_calls>",
    ),
    "deepseek_v32_dsml": _DSML,
    "deepseek_v4_dsml": lambda calls: _DSML(calls).replace("function_calls", "tool_calls"),
    "kimi_k3_xtml": elements(
        "{inner}",
        '<|open|>call tool="{name}" index="1"<|sep|>{inner}<|close|>call<|sep|>',
        '<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|><|close|>message<|sep|>",
    ),
    "minimax_m3": minimax_m3,
    "gemma4": bare_dict("<|tool_call>", '<|"|>', "<tool_call|>"),
    "functiongemma": bare_dict("<start_function_call>", "<escape>", "<end_function_call>"),
    "pythonic": python("[", ", ", "]"),
    "olmo3_pythonic": python("<function_calls>", "\n", "</function_calls>"),
    "lfm2_pythonic": python("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
}

# What ends a text in some families' calls, and may stand in one.
MARKERS = {
    "qwen3_coder_xml": "</parameter>",
    "seed_oss_xml": "</parameter>",
    "glm45": "</arg_value>",
    "minimax_m2": "</parameter>",
    "deepseek_v4_dsml": "</｜DSML｜parameter>",
    "gemma4": '<|"|>',
    "functiongemma": "<escape>",
}
