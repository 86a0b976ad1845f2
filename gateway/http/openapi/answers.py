"""The routes that answer: chats, texts, responses, in each API's own form."""

from collections.abc import Mapping
from typing import Any

from gateway.dialects.anthropic import reply as anthropic_models
from gateway.dialects.anthropic import reply as anthropic_reply
from gateway.dialects.anthropic import request as anthropic
from gateway.dialects.cohere import request as cohere
from gateway.dialects.kobold import request as kobold
from gateway.dialects.llamaserver import request as llama
from gateway.dialects.llamaserver import request as llama_request
from gateway.dialects.llamaserver.completion import Completion
from gateway.dialects.ollama import reply as ollama_reply
from gateway.dialects.ollama import request as ollama
from gateway.dialects.openai import chat_reply, messages, models, request, text_reply
from gateway.dialects.parameters import SamplingWire
from gateway.dialects.responses import items as responses
from gateway.dialects.responses import reply as responses_reply
from gateway.dialects.responses import stored
from gateway.dialects.tgi import request as tgi
from gateway.http.openapi.models import DEFAULT, REF, Body, Described, Schema
from gateway.http.routes import anthropic as anthropic_routes
from gateway.http.routes import cohere as cohere_routes
from gateway.http.routes import conversations as conversation_routes
from gateway.http.routes import kobold as kobold_routes
from gateway.http.routes import ollama as ollama_routes
from gateway.http.routes import openai as openai_routes
from gateway.http.routes import responses as responses_routes
from gateway.http.routes import tgi as tgi_routes
from gateway.http.routes.llamaserver import completions as completion_routes
from gateway.http.routes.llamaserver import completions as text_routes

USER = [{"role": "user", "content": "Say hello."}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather of a city", "parameters": WEATHER}
TOOL = {"type": "function", "function": FUNCTION}

_OBJECT, _STRING = {"type": "object"}, {"type": "string"}
_SCHEMA = {"anyOf": [_OBJECT, _STRING, {"type": "boolean"}]}
SHAPES: Mapping[str, Schema] = {
    "response_format": {**_OBJECT, "description": "OpenAI's, or another server's, object."},
    "structured_outputs": {**_OBJECT, "description": "vLLM's object."},
    "json_schema": {**_SCHEMA, "description": "A JSON schema, or the text of one."},
    "guided_json": {**_SCHEMA, "description": "vLLM's name of `json_schema`."},
    "regex_pattern": {**_STRING, "description": "What matches the whole answer."},
    "regex": {**_STRING, "description": "SGLang's name of `regex_pattern`."},
    "ebnf": {**_STRING, "description": "SGLang's name of `grammar`."},
    "guided_regex": {**_STRING, "description": "vLLM's name of `regex_pattern`."},
    "grammar": {"anyOf": [_STRING, _OBJECT], "description": "GBNF or Lark; or TGI's object."},
    "grammar_string": {**_STRING, "description": "TabbyAPI's name of `grammar`."},
    "guided_grammar": {**_STRING, "description": "vLLM's name of `grammar`."},
    "guided_choice": {"type": "array", "items": _STRING, "description": "One of these texts."},
    "structural_tag": {"anyOf": [_OBJECT, _STRING], "description": "Shapes behind markers."},
}

CHAT = Body(
    name="OpenAIChatRequest",
    about="A conversation to be continued. A null means that the field is not given.",
    shapes=(
        request.AnsweringWire,
        messages.ConversationWire,
        request.ChatWire,
        request.ThinkingWire,
        SamplingWire,
    ),
    further=SHAPES,
)
TEXT = Body(
    name="OpenAITextRequest",
    about="One or more texts to go on from. A null means that the field is not given.",
    shapes=(request.AnsweringWire, request.TextWire, SamplingWire),
    further=SHAPES,
)
COMPLETION = Body(
    name="LlamaServerCompletionRequest",
    about="One or more texts to go on from, in llama-server's form.",
    shapes=(llama_request.CompletionWire, request.AnsweringWire, request.TextWire, SamplingWire),
    further={
        **SHAPES,
        "prompt": {
            "description": "A text, a list of texts and token ids, an object with prompt_string, "
            "or a list of those."
        },
    },
)
INFILL = Body(
    name="LlamaServerInfillRequest",
    about="The texts before and behind a gap that is to be filled in.",
    shapes=(
        llama_request.InfillWire,
        llama_request.CompletionWire,
        request.AnsweringWire,
        SamplingWire,
    ),
    further=SHAPES,
)
MESSAGES = Body(
    name="AnthropicMessagesRequest",
    about="A conversation to be continued, in Anthropic's form.",
    shapes=(anthropic.AnsweringWire, anthropic.ConversationWire, SamplingWire),
    names={"max_tokens": ("max_tokens",)},
)
OPTIONS = Body(
    name="OllamaOptions",
    about="Sampling parameters and limits, by Ollama's names and by all others.",
    shapes=(ollama.OptionsWire, SamplingWire),
    names={
        "max_tokens": ("num_predict",),
        "repetition_penalty": ("repeat_penalty",),
        "penalty_range": ("repeat_last_n",),
    },
)
_OPTIONS = {"options": {"$ref": f"{REF}{OPTIONS.name}"}}
OLLAMA_CHAT = Body(
    name="OllamaChatRequest",
    about="A conversation to be continued; without messages its model is loaded, or unloaded.",
    shapes=(ollama.AnsweringWire, ollama.ChatWire),
    further=_OPTIONS,
    needs=(OPTIONS,),
)
OLLAMA_GENERATE = Body(
    name="OllamaGenerateRequest",
    about="A prompt to be answered; without one its model is loaded, or unloaded.",
    shapes=(ollama.AnsweringWire, ollama.GenerateWire),
    further=_OPTIONS,
    needs=(OPTIONS,),
)
COHERE = Body(
    name="CohereChatRequest",
    about="A conversation to be continued, in Cohere's form.",
    shapes=(cohere.ChatWire, SamplingWire),
    names={"stop": ("stop_sequences",), "top_p": ("p",), "top_k": ("k",)},
)
_TGI_EXAMPLE = {
    "A text": {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 8, "details": True}}
}
KOBOLD = Body(
    name="KoboldGenerateRequest",
    about="A text to go on from, in KoboldAI's form.",
    shapes=(kobold.GenerateWire, SamplingWire),
    further={
        "banned_tokens": {"type": "array", "items": _STRING, "description": "Texts, not ids."},
        "custom_token_bans": {**_STRING, "description": "Ids of tokens, with commas between."},
    },
    names={
        "max_tokens": ("max_length",),
        "min_tokens": ("min_length",),
        "stop": ("stop_sequence",),
        "seed": ("sampler_seed",),
        "repetition_penalty": ("rep_pen",),
        "penalty_range": ("rep_pen_range",),
        "typical_p": ("typical",),
        "mirostat_mode": ("mirostat",),
    },
)
RESPONSE = Body(
    name="ResponsesRequest",
    about="Items to be answered, and what they go on from.",
    shapes=(responses.CreateWire, SamplingWire),
)

_KOBOLD_EXAMPLE = {
    "A text": {"prompt": "Once upon a time", "max_length": 8, "stop_sequence": ["\n\n"]}
}
_RESPONSE_EVENTS = (
    responses_reply.Lifecycle,
    responses_reply.ItemEvent,
    responses_reply.PartEvent,
    responses_reply.GrownEvent,
    responses_reply.WholeEvent,
)
_ANTHROPIC_EVENTS = (
    anthropic_reply.MessageStart,
    anthropic_reply.BlockStart,
    anthropic_reply.BlockDelta,
    anthropic_reply.BlockStop,
    anthropic_reply.MessageDelta,
    anthropic_reply.MessageStop,
    anthropic_reply.Ping,
)
_METADATA = {"Metadata": {"metadata": {"topic": "weather"}}}
_ITEMS = {"A message": {"items": [{"type": "message", "role": "user", "content": "Hello!"}]}}

ANSWERS: Mapping[Any, Described] = {
    openai_routes.chat_completions: Described(
        takes=CHAT,
        gives=(chat_reply.ChatCompletion,),
        events=(chat_reply.ChatChunk,),
        examples={
            "A conversation": {"model": DEFAULT, "messages": USER, "max_tokens": 8},
            "A stream with its usage": {
                "model": DEFAULT,
                "messages": USER,
                "max_tokens": 8,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
            "A tool": {"model": DEFAULT, "messages": USER, "tools": [TOOL], "max_tokens": 8},
            "A choice": {"model": DEFAULT, "messages": USER, "guided_choice": ["yes", "no"]},
        },
    ),
    openai_routes.completions: Described(
        takes=TEXT,
        gives=(text_reply.TextCompletion,),
        events=(text_reply.TextCompletion,),
        examples={"A text": {"model": DEFAULT, "prompt": "Once upon a time", "max_tokens": 8}},
    ),
    openai_routes.models: Described(gives=(models.ModelList, anthropic_models.ModelPage)),
    openai_routes.model: Described(gives=(models.ModelCard, anthropic_models.ModelWire)),
    openai_routes.health: Described(gives=(dict[str, str],)),
    openai_routes.metrics: Described(text="text/plain"),
    anthropic_routes.messages: Described(
        takes=MESSAGES,
        gives=(anthropic_reply.MessageWhole,),
        events=_ANTHROPIC_EVENTS,
        examples={
            "A conversation": {
                "model": DEFAULT,
                "max_tokens": 8,
                "system": "Be brief.",
                "messages": USER,
            },
        },
    ),
    anthropic_routes.count_tokens: Described(
        takes=MESSAGES,
        gives=(anthropic_reply.Count,),
        examples={"A conversation": {"model": DEFAULT, "messages": USER}},
    ),
    ollama_routes.chat: Described(
        takes=OLLAMA_CHAT,
        gives=(ollama_reply.ChunkWire,),
        events=(ollama_reply.ChunkWire,),
        lines=True,
        examples={
            "A conversation": {
                "model": DEFAULT,
                "messages": USER,
                "stream": False,
                "options": {"num_predict": 8},
            },
            "A stream": {"model": DEFAULT, "messages": USER, "options": {"num_predict": 8}},
            "A load": {"model": DEFAULT, "keep_alive": "5m"},
        },
    ),
    ollama_routes.generate: Described(
        takes=OLLAMA_GENERATE,
        gives=(ollama_reply.ChunkWire,),
        events=(ollama_reply.ChunkWire,),
        lines=True,
        examples={
            "A prompt": {
                "model": DEFAULT,
                "prompt": "Say hello.",
                "stream": False,
                "options": {"num_predict": 8},
            }
        },
    ),
    cohere_routes.chat: Described(
        takes=COHERE,
        gives=(cohere.ChatAnswer,),
        events=(
            cohere.MessageStart,
            cohere.ContentStart,
            cohere.ContentDelta,
            cohere.ContentEnd,
            cohere.CallStart,
            cohere.CallDelta,
            cohere.CallEnd,
            cohere.MessageEnd,
        ),
        examples={
            "A question": {"messages": USER, "max_tokens": 8},
            "A tool": {"messages": USER, "tools": [TOOL], "max_tokens": 8},
        },
    ),
    tgi_routes.generate: Described(
        takes=tgi.GenerateWire, gives=(tgi.Generated,), examples=_TGI_EXAMPLE
    ),
    tgi_routes.generate_stream: Described(
        takes=tgi.GenerateWire, events=(tgi.StreamStep,), examples=_TGI_EXAMPLE
    ),
    tgi_routes.either: Described(
        takes=tgi.GenerateWire,
        gives=(list[tgi.Generated], list[list[float]]),
        events=(tgi.StreamStep,),
        examples=_TGI_EXAMPLE,
    ),
    kobold_routes.generate: Described(
        takes=KOBOLD, gives=(kobold.Results,), examples=_KOBOLD_EXAMPLE
    ),
    kobold_routes.generate_stream: Described(
        takes=KOBOLD, events=(kobold.TokenStep,), examples=_KOBOLD_EXAMPLE
    ),
    responses_routes.create: Described(
        takes=RESPONSE,
        gives=(responses_reply.ResponseWire,),
        events=_RESPONSE_EVENTS,
        examples={
            "A question": {"model": DEFAULT, "input": "Say hello.", "max_output_tokens": 8},
            "A stream": {
                "model": DEFAULT,
                "input": "Say hello.",
                "max_output_tokens": 8,
                "stream": True,
            },
        },
    ),
    responses_routes.input_tokens: Described(
        takes=RESPONSE,
        gives=(stored.InputTokens,),
        examples={"A question": {"model": DEFAULT, "input": "Say hello."}},
    ),
    responses_routes.cancel: Described(gives=(responses_reply.ResponseWire,)),
    responses_routes.retrieve: Described(
        gives=(responses_reply.ResponseWire,), events=_RESPONSE_EVENTS
    ),
    responses_routes.remove: Described(gives=(stored.Deleted,)),
    responses_routes.input_items: Described(gives=(stored.Page,), query=stored.PageQuery),
    conversation_routes.create: Described(
        takes=stored.ConversationWire, gives=(stored.ConversationBody,), examples=_ITEMS
    ),
    conversation_routes.retrieve: Described(gives=(stored.ConversationBody,)),
    conversation_routes.describe: Described(
        takes=stored.ConversationWire, gives=(stored.ConversationBody,), examples=_METADATA
    ),
    conversation_routes.remove: Described(gives=(stored.Deleted,)),
    conversation_routes.append: Described(
        takes=stored.ConversationWire, gives=(stored.Page,), examples=_ITEMS
    ),
    conversation_routes.list_items: Described(gives=(stored.Page,), query=stored.PageQuery),
    conversation_routes.item: Described(gives=(responses.Item,)),
    conversation_routes.drop: Described(gives=(stored.ConversationBody,)),
    completion_routes.completion: Described(
        takes=COMPLETION,
        gives=(Completion, list[Completion]),
        events=(Completion,),
        examples={"A text": {"model": DEFAULT, "prompt": "Once upon a time", "n_predict": 8}},
    ),
    completion_routes.infill: Described(
        takes=INFILL, gives=(Completion, list[Completion]), events=(Completion,)
    ),
    text_routes.apply_template: Described(
        takes=CHAT,
        gives=(llama.Rendered,),
        examples={"A conversation": {"model": DEFAULT, "messages": USER}},
    ),
    text_routes.input_tokens: Described(
        takes=CHAT,
        gives=(llama.InputTokens,),
        examples={"A conversation": {"model": DEFAULT, "messages": USER}},
    ),
}
