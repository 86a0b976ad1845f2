"""A request's parameters for another server: OpenAI's names, else vLLM's.

What the client named is handed on, and nothing else: the other server has defaults of its own.
"""

import math
from typing import Any, TypeAlias

from backends.protocol import Sampling
from backends.remote import Caller, RemoteEmbedding, RemoteRerank, RemoteThinking
from gateway.errors import InvalidRequest
from gateway.registry import Lease
from gateway.request import (
    ChatRequest,
    EmbeddingRequest,
    GenerationParams,
    RerankRequest,
    TextRequest,
)

Body: TypeAlias = dict[str, Any]  # JSON, on its way to a body

_MAX_TOKENS = ("max_tokens", "max_completion_tokens")  # OpenAI's older and newer name
_BUDGETS = "thinking_budget"
_SPELLED = {"ban_eos": "ignore_eos"}  # ours that no other server has: vLLM's name
_BAN = -100.0  # OpenAI's strongest bias; JSON has no infinity


def chat_parameters(request: ChatRequest, asked: GenerationParams, lease: Lease) -> Body:
    """Everything of a chat but messages, tools, the shape and n. `asked`: with the presets."""
    found = _shared(asked, lease)
    if asked.logprobs is not None:
        found["logprobs"] = True
        found["top_logprobs"] = asked.logprobs
    if asked.stop_in_reasoning:
        found["stop_in_reasoning"] = True
    if request.allow_control_tokens:
        found["allow_control_tokens"] = True
    if request.continue_final:
        found |= {"continue_final_message": True, "add_generation_prompt": False}
    elif [one.tool_calls for one in request.messages[-1:] if one.role == "assistant"] == [()]:
        # Some servers would go on from the last message without being asked.
        found |= {"continue_final_message": False, "add_generation_prompt": True}
    return found | _thinking(request)


def text_parameters(request: TextRequest, asked: GenerationParams, lease: Lease) -> Body:
    """Everything of a text completion but prompts, the shape and n."""
    found = _shared(asked, lease)
    if asked.logprobs is not None:
        found["logprobs"] = asked.logprobs
    if request.suffix is not None:
        found["suffix"] = request.suffix
    if request.add_bos is not None:
        found["add_bos_token"] = request.add_bos
    return found


def unmet_by_remote(asked: GenerationParams) -> tuple[str, ...]:
    """Requested features that another server's API has no field for, by the clients' names."""
    features = (
        ("return_progress", asked.reports_progress),
        ("logprobs_of", asked.logprobs_of != "content"),
        ("return_tokens", asked.returns_tokens and not asked.streamed),
    )
    return tuple(name for name, is_asked in features if is_asked)


def _refuse_local_only(asked: GenerationParams) -> None:
    """Raises InvalidRequest for what takes the model's own vocabulary or samplers."""
    where = "the model runs on another server"
    if asked.sampling.text_biases:
        text = f"logit_bias: Send token ids, because {where}."
        raise InvalidRequest(text, param="logit_bias")
    if asked.after_samplers:
        text = f"post_sampling_probs: Not available, because {where}."
        raise InvalidRequest(text, param="post_sampling_probs")


def _shared(asked: GenerationParams, lease: Lease) -> Body:
    _refuse_local_only(asked)
    found: Body = dict(asked.further)
    if asked.slot is not None:
        found["id_slot"] = asked.slot
    sampling = asked.sampling.over(lease.entry.sampling.over(Sampling()))
    for name in sorted(asked.sampling.named | lease.entry.sampling.named):
        found[_SPELLED.get(name, name)] = _plain(name, getattr(sampling, name))
    if asked.max_tokens is not None:
        spelled = asked.spelled.get("max_tokens", "max_tokens")
        found[spelled if spelled in _MAX_TOKENS else "max_tokens"] = asked.max_tokens
    if asked.min_tokens:
        found["min_tokens"] = asked.min_tokens
    if asked.stop:
        found["stop"] = list(asked.stop)
    remote = lease.entry.files.remote
    if asked.keep_alive is not None and remote is not None and remote.roundhouse:
        found["keep_alive"] = asked.keep_alive
    return found


def _plain(name: str, value: Any) -> Any:
    if name != "logit_bias":
        return value
    return {str(token): _BAN if bias == -math.inf else bias for token, bias in value}


def _thinking(request: ChatRequest) -> Body:
    thinking, found = request.thinking, Body()
    variables = dict(request.template_variables)
    if "verbosity" in variables:
        found["verbosity"] = variables.pop("verbosity")
    if thinking.effort is not None:
        found["reasoning_effort"] = thinking.effort
    if thinking.enabled is not None and not (thinking.effort == "none" and not thinking.enabled):
        variables.setdefault("enable_thinking", thinking.enabled)
    if thinking.budget is not None:
        found[_budget_name(request)] = thinking.budget
        if thinking.closing:
            found["reasoning_budget_message"] = thinking.closing
    if variables:
        found["chat_template_kwargs"] = variables
    return found


def _budget_name(request: ChatRequest) -> str:
    return request.answering.spelled.get(_BUDGETS, _BUDGETS)


def thinking_of(request: ChatRequest) -> RemoteThinking:
    """The same for servers that name it differently."""
    thinking = request.thinking
    return RemoteThinking(
        enabled=thinking.enabled,
        effort=thinking.effort,
        budget=thinking.budget,
        budget_name=_budget_name(request),
    )


def embedding_parameters(request: EmbeddingRequest, caller: Caller) -> RemoteEmbedding:
    """Everything of a request for vectors. Fields that only some servers know go over where the
    client sent them.
    """
    found: Body = dict(request.further)
    if request.dimensions is not None:
        found["dimensions"] = request.dimensions
    return RemoteEmbedding(inputs=request.inputs, parameters=found, caller=caller)


def rerank_parameters(request: RerankRequest, caller: Caller) -> RemoteRerank:
    """Everything of a request for scores."""
    return RemoteRerank(
        query=request.query,
        documents=request.documents,
        parameters=request.further,
        caller=caller,
    )
