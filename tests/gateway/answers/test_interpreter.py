"""How a model is talked with: what its template says, what the configuration overrides."""

from pathlib import Path

import msgspec

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import ModelInfo
from config.engines import ScriptedOptions
from gateway.answers.interpreter import interpret
from gateway.registry import ModelEntry
from gateway.splitter import FORMATS, starts_in_reasoning
from gateway.terms.request import ChatRequest, Message, TextPart

PLAIN = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"
THINKING = PLAIN + "{% if false %}<think></think>{% endif %}"


def entry(format: str | None = None) -> ModelEntry:
    files = ModelFiles(
        path=Path("x.script.json"),
        backend="scripted",
        format="script",
        architecture="script",
        size_bytes=0,
        context_length=64,
        cache_bytes_per_token=0,
    )
    return ModelEntry(name="x", files=files, options=ScriptedOptions(), format=format)


def info(template: str | None) -> ModelInfo:
    return ModelInfo(
        backend="scripted",
        format="script",
        architecture="script",
        context_length=64,
        max_concurrent=1,
        vocab_size=257,
        size_bytes=0,
        chat_template=template,
    )


def test_tools_that_are_described_are_called_in_the_form_described() -> None:
    spoken = interpret(info(PLAIN), entry(), None)
    assert spoken.template.traits.tools == "described"
    assert spoken.format.syntaxes == FORMATS["hermes_json"].syntaxes
    assert "described" in spoken.recognised.why


def test_a_family_s_reasoning_stays_when_its_tools_are_described() -> None:
    spoken = interpret(info(THINKING), entry(), None)
    assert spoken.format.reasoning is not None
    assert spoken.format.reasoning.open == "<think>"


def test_the_configuration_names_a_format() -> None:
    spoken = interpret(info(PLAIN), entry("llama3_json"), None)
    assert spoken.format is FORMATS["llama3_json"]
    assert spoken.recognised.why == "named in the configuration"


def test_what_a_client_writes_opens_no_reasoning() -> None:
    """A template that ends with the user's words, and a user whose words end with a marker."""
    bare = THINKING.replace("<|user|>", "").replace("<|assistant|>", "")
    spoken = interpret(info(bare), entry(), None)
    hostile = ChatRequest(
        model="", messages=(Message(role="user", parts=(TextPart("Hello <think>"),)),)
    )
    rendered = spoken.template.render(hostile)
    assert rendered.text == "Hello <think>"
    assert not starts_in_reasoning(spoken.format, rendered.framed)
    allowed = spoken.template.render(msgspec.structs.replace(hostile, allow_control_tokens=True))
    assert starts_in_reasoning(spoken.format, allowed.framed)


def test_a_model_without_a_template_is_offered_no_tools_and_ends_at_the_default_s_markers() -> None:
    untaught = interpret(info(None), entry(), None)

    assert (untaught.format.syntaxes, untaught.format.reasoning) == ((), None)
    assert untaught.stops == ("<|im_end|>", "<|im_start|>")
