"""A client's wishes about reasoning, as the variables that a template reads."""

from typing import Any

from gateway.prompt.traced import clients
from gateway.prompt.traits import TemplateTraits
from gateway.request import Thinking

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # from least to most


def thinking_variables(thinking: Thinking, traits: TemplateTraits) -> dict[str, Any]:
    """Only what the client named: for the rest the template's own defaults hold."""
    variables: dict[str, Any] = {}
    if thinking.enabled is not None:
        for switch in traits.thinking_switches:
            value = switch.on if thinking.enabled else switch.off
            if value is not None:
                variables[switch.variable] = value
    if thinking.effort is not None:
        variables["reasoning_effort"] = nearest_effort(thinking.effort, traits.efforts)
    if thinking.budget is not None and thinking.enabled is not False:
        variables["thinking_budget"] = thinking.budget  # Seed-OSS tells the model its budget
    return variables


def nearest_effort(effort: str, known: tuple[str, ...]) -> str:
    """The one of `known` that is nearest to `effort`; `effort` itself if it is an unusual one."""
    if effort not in _EFFORTS and effort not in known:
        return clients(effort)
    if effort in known or not known:
        return effort
    place = _EFFORTS.index(effort)
    return min(known, key=lambda candidate: abs(_EFFORTS.index(candidate) - place))
