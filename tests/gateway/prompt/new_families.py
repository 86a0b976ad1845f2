"""Templates of families that the table doesn't know, written after what public parsers read."""

from collections.abc import Mapping

_FRAME = """\
{%%- if tools %%}%(system)sTools: {{ tools | tojson }}%(end)s{%% endif %%}
{%%- for m in messages %%}
{%%- if m.role == 'tool' %%}%(result)s{{ m.content }}%(end)s
{%%- elif m.role == 'assistant' %%}%(model)s
{%%- if m.reasoning_content %%}%(think)s{{ m.reasoning_content }}%(thought)s{%% endif %%}
{%%- if m.content %%}%(text)s{{ m.content }}{%% endif %%}
{%%- if m.tool_calls %%}%(calls)s{%% endif %%}%(end)s
{%%- else %%}%(user)s{{ m.content }}%(end)s{%% endif %%}
{%%- endfor %%}
{%%- if add_generation_prompt %%}%(model)s%(opened)s{%% endif %%}"""

_EACH = "{% for c in m.tool_calls %}{% set f = c.function %}"
_PAIRS = "{% for k, v in f.arguments.items() %}"
_BARE = "{{ v if v is string else v | tojson }}"


def _calls(begin: str, head: str, pair: str, close: str, end: str) -> str:
    return f"{begin}{_EACH}{head}{_PAIRS}{pair}{{% endfor %}}{close}{{% endfor %}}{end}"


def _keyed(call: str, key: str, value: str, *, sep: str = "") -> tuple[str, str, str]:
    pair = f"<{key}>{{{{ k }}}}</{key}><{value}>{_BARE}</{value}>"
    return f"<{call}>{{{{ f.name }}}}{sep}", pair, f"</{call}>"


def _invoked(prefix: str, attribute: str = "") -> tuple[str, str, str]:
    pair = f'<{prefix}parameter name="{{{{ k }}}}"{attribute}>{_BARE}</{prefix}parameter>\n'
    return f'<{prefix}invoke name="{{{{ f.name }}}}">\n', pair, f"</{prefix}invoke>\n"


def _template(calls: str, **named: str) -> str:
    frame = {
        "system": "<|im_start|>system\n",
        "user": "<|im_start|>user\n",
        "model": "<|im_start|>assistant\n",
        "result": "<|im_start|>tool\n",
        "end": "<|im_end|>\n",
        "think": "<think>",
        "thought": "</think>",
        "text": "",
        "opened": "",
        "calls": calls,
    }
    return _FRAME % (frame | named)


_STRING = """ string="{{ 'true' if v is string else 'false' }}\""""
_PLAMO_NAME = "<|plamo:begin_tool_name:plamo|>{{ f.name }}<|plamo:end_tool_name:plamo|>"
_PLAMO_ARGUMENTS = (
    "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
    "{{ f.arguments | tojson }}<|plamo:end_tool_arguments:plamo|>"
)

TEMPLATES: Mapping[str, str] = {
    "GigaChat 3.5": _template(
        _calls("<｜GCML｜tool_calls>\n", *_invoked("｜GCML｜", _STRING), "</｜GCML｜tool_calls>"),
        system="system<|role_sep|>\n",
        user="user<|role_sep|>\n",
        model="assistant<|role_sep|>\n",
        result="function result<|role_sep|>\n",
        end="<|message_sep|>\n\n",
        opened="<think>",
    ),
    "IQuest Q1": _template(
        _calls("", *_keyed("iquest_tool_call", "arg_key", "arg_value"), ""),
        user="<|iquest_user|>",
        model="<|iquest_assistant|>",
        result="<|iquest_tool|>",
        end="",
        opened="<think>",
    ),
    "dots": _template(
        _calls("<dots_function_call>\n", *_invoked(""), "</dots_function_call>"),
        end="<|endofturn|>",
    ),
    "Hunyuan 4": _template(
        _calls(
            "<tool_calls:hy4>\n",
            *_keyed("tool_call:hy4", "arg_key:hy4", "arg_value:hy4", sep="\n"),
            "</tool_calls:hy4>",
        ),
        model="<｜hy_Assistant:hy4｜>",
        think="<think:hy4>",
        thought="</think:hy4>",
        end="<｜hy_eos:hy4｜>",
    ),
    "K2 Horizon": _template(
        _calls(
            "<ifm|tool_calls>",
            *_keyed("ifm|tool_call", "ifm|arg_key", "ifm|arg_value"),
            "</ifm|tool_calls>",
        ),
        model="<|ifm|im_start|>assistant\n",
        think="<ifm|think>",
        thought="</ifm|think>",
        end="<|ifm|im_end|>",
        opened="<ifm|think>",
    ),
    "PLaMo 3": _template(
        "<|plamo:begin_tool_requests:plamo|>" + _EACH + "<|plamo:begin_tool_request:plamo|>"
        + _PLAMO_NAME + _PLAMO_ARGUMENTS
        + "<|plamo:end_tool_request:plamo|>{% endfor %}<|plamo:end_tool_requests:plamo|>",
        model="<|plamo:op|>assistant<|plamo:msg|>",
        user="<|plamo:op|>user<|plamo:msg|>",
        think="<|plamo:begin_think:plamo|>",
        thought="<|plamo:end_think:plamo|>",
        end="<|plamo:tag|>",
    ),
    "Beam": _template(
        _calls(
            "",
            "<|start|>assistant to={{ f.name }}<|channel|>analysis <|constrain|>xml<|message|>",
            '<rfl:parameter name="{{ k }}">' + _BARE + "</rfl:parameter>",
            "<|call|>",
            "",
        ),
        system="<|start|>system<|message|>",
        user="<|start|>user<|message|>",
        model="<|start|>assistant",
        result="<|start|>functions to=assistant<|channel|>commentary<|message|>",
        think="<|channel|>analysis<|message|>",
        thought="<|end|>",
        text="<|channel|>final<|message|>",
        end="<|end|>",
    ),
    "Inkling": _template(
        _EACH
        + "<|message_model|>{{ f.name }}<|content_invoke_tool_json|>"
        + '{"args": {{ f.arguments | tojson }}, "name": "{{ f.name }}"}<|end_message|>{% endfor %}',
        system="<|message_system|>",
        user="<|message_user|>",
        model="",
        result="<|message_tool|><|content_text|>",
        think="<|message_model|><|content_thinking|>",
        thought="<|end_message|>",
        text="<|message_model|><|content_text|>",
        end="<|content_model_end_sampling|>",
    ),
}  # fmt: skip

# Its calls can't be told from their template: values stand before their names.
UNREAD = (
    "{{ tools | tojson if tools }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls %}<zap:call>{{ c.function.name }} "
    "{% for k, v in c.function.arguments.items() %}{{ v }} IS {{ k }};{% endfor %}</zap:call>"
    "{% endfor %}{% endfor %}{{ '<|assistant|>' if add_generation_prompt }}"
)
