"""The parts of bodies and examples that several APIs' documents have."""

from collections.abc import Mapping

from gateway.dialects.openai import messages, request
from gateway.dialects.parameters import SamplingWire
from gateway.http.openapi.models import DEFAULT, Body, Schema

NAMED = {"A model": {"model": DEFAULT}}
USER = [{"role": "user", "content": "Say hello."}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather of a city", "parameters": WEATHER}
TOOL = {"type": "function", "function": FUNCTION}

OBJECT: Schema = {"type": "object"}
STRING: Schema = {"type": "string"}
SCHEMA: Schema = {"anyOf": [OBJECT, STRING, {"type": "boolean"}]}
SHAPES: Mapping[str, Schema] = {
    "response_format": {**OBJECT, "description": "OpenAI's, or another server's, object."},
    "structured_outputs": {**OBJECT, "description": "vLLM's object."},
    "json_schema": {**SCHEMA, "description": "A JSON schema, or the text of one."},
    "guided_json": {**SCHEMA, "description": "vLLM's name of `json_schema`."},
    "regex_pattern": {**STRING, "description": "What matches the whole answer."},
    "regex": {**STRING, "description": "SGLang's name of `regex_pattern`."},
    "ebnf": {**STRING, "description": "SGLang's name of `grammar`."},
    "guided_regex": {**STRING, "description": "vLLM's name of `regex_pattern`."},
    "grammar": {"anyOf": [STRING, OBJECT], "description": "GBNF or Lark; or TGI's object."},
    "grammar_string": {**STRING, "description": "TabbyAPI's name of `grammar`."},
    "guided_grammar": {**STRING, "description": "vLLM's name of `grammar`."},
    "guided_choice": {"type": "array", "items": STRING, "description": "One of these texts."},
    "structural_tag": {"anyOf": [OBJECT, STRING], "description": "Shapes behind markers."},
}

CHAT = Body(
    name="OpenAIChatRequest",
    about="A conversation to continue. Null fields are treated as not given.",
    shapes=(
        request.AnsweringWire,
        messages.ConversationWire,
        request.ChatWire,
        request.ThinkingWire,
        SamplingWire,
    ),
    further=SHAPES,
)
