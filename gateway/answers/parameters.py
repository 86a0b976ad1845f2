"""The report on a request's parameters: applied, changed, ignored, and why; by an engine here or by
another server. Pure.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from backends.protocol import NEUTRAL, SAMPLERS, Generation, ModelInfo, Sampling
from backends.remote import RemoteChanges, RemoteRequest
from backends.sampling.order import order_of, penalties_first, without_effect
from gateway.errors import InvalidRequest
from gateway.events import ChangedParameter, Parameters
from gateway.request import GenerationParams

_LENGTHS = ("max_tokens", "min_tokens", "stop")
UNREAD = "this API has no such field"


def ignored_by(info: ModelInfo, sampling: Sampling) -> Mapping[str, str]:
    """The fields of `sampling` with a value that this engine does not support, by our names: why.

    What has no effect because of the request's other fields is among them.
    """
    missing = dict(lacking(info, sampling.requested()))
    if info.penalties_first and not penalties_first(order_of(sampling)):
        missing["samplers"] = f"on {info.backend} penalties and DRY come first; the rest is applied"
    return {**without_effect(sampling), **missing}


def lacking(info: ModelInfo, names: Iterable[str]) -> Mapping[str, str]:
    """Those of `names` that this engine doesn't have, by our names: why."""
    return dict.fromkeys(
        (name for name in names if name not in info.samplers), f"{info.backend} does not have it"
    )


def refuse_unread(answering: GenerationParams, handed_on: Collection[str] = ()) -> None:
    """Raises InvalidRequest where nothing may be ignored and a field has no meaning here.
    `handed_on`: fields that the server which answers is sent.
    """
    unread = [name for name in answering.unread if name not in handed_on]
    if answering.strict and unread:
        message = f"No field of this API, and strict_parameters is set: {', '.join(unread)}."
        raise InvalidRequest(message, param=unread[0])


def parameters(
    answering: GenerationParams, job: Generation, ignored: Mapping[str, str]
) -> Parameters:
    """For an answer to `answering` by `job`, which is as the engine sees it, within its bounds.
    `ignored` as `ignored_by` says it.
    """
    spelled = answering.spelled
    applied = {
        spelled.get(name, name): value
        for name, value in _used(answering, job).items()
        if name not in ignored
    }
    unread = dict.fromkeys(answering.unread, UNREAD)
    not_applied = {spelled.get(name, name): why for name, why in ignored.items()}
    return Parameters(applied, _changed(answering, job, ignored), {**unread, **not_applied})


def _used(answering: GenerationParams, job: Generation) -> Mapping[str, Any]:
    """What was named, and what else is not neutral."""
    values = {name: getattr(job.sampling, name) for name in SAMPLERS}
    used = {
        name: value
        for name, value in values.items()
        if name in answering.sampling.named or value != getattr(NEUTRAL, name)
    }
    lengths = {name: getattr(job, name) for name in _LENGTHS if getattr(job, name)}
    return {**used, **lengths, **({"stop": answering.stop} if answering.stop else {})}


def _changed(
    answering: GenerationParams, job: Generation, ignored: Mapping[str, str]
) -> Mapping[str, ChangedParameter]:
    asked = {name: getattr(answering.sampling.values, name) for name in answering.sampling.named}
    asked |= {"max_tokens": answering.max_tokens} if answering.max_tokens else {}
    found: dict[str, ChangedParameter] = {}
    for name, value in asked.items():
        used = job.max_tokens if name == "max_tokens" else getattr(job.sampling, name)
        if used != value and name not in ignored:
            why = "as far as this model goes, or by a preset of the server's administrator"
            found[answering.spelled.get(name, name)] = ChangedParameter(value, used, why)
    return found


SET = "the configuration of the upstream sets it"
_OURS = {"ignore_eos": "ban_eos"}  # names that are handed on, where ours is another


def ignored_by_remote(changes: RemoteChanges, asked: GenerationParams) -> tuple[str, ...]:
    """What is not handed on, by the names that the client used."""
    return tuple(_as_asked(name, asked) for name in sorted(_left_out(changes, asked)))


def refuse_ignored(changes: RemoteChanges, named: GenerationParams) -> None:
    """Raises InvalidRequest where something that the client named is not handed on. `named`: the
    request's own, without presets.
    """
    refuse_unread(named, named.further)
    refused = sorted(name for name in _left_out(changes, named) if _is_named(name, named))
    if refused:
        reasons = "; ".join(
            f"{_as_asked(name, named)}: {changes.left_out[name]}" for name in refused
        )
        raise InvalidRequest(f"{reasons}.", param=_as_asked(refused[0], named))


def parameters_sent(
    request: RemoteRequest, changes: RemoteChanges, asked: GenerationParams
) -> Parameters:
    """The same for a request sent to another server; whether that one applies them is not known
    here.
    """
    given, replaced = request.parameters, changes.replaced
    sent = {name: value for name, value in given.items() if name not in changes.left_out}
    applied = {_as_asked(name, asked): replaced.get(name, value) for name, value in sent.items()}
    changed = {
        _as_asked(name, asked): ChangedParameter(value, replaced[name], SET)
        for name, value in sent.items()
        if name in replaced and replaced[name] != value
    }
    left_out = {_as_asked(name, asked): why for name, why in _left_out(changes, asked).items()}
    unread = (name for name in asked.unread if name not in asked.further)
    return Parameters(applied, changed, {**dict.fromkeys(unread, UNREAD), **left_out})


def _left_out(changes: RemoteChanges, asked: GenerationParams) -> Mapping[str, str]:
    """Without the fields that change no answer (`store`), which are not missed."""
    harmless = asked.further.keys() - set(asked.unread)
    return {name: why for name, why in changes.left_out.items() if name not in harmless}


def _is_named(name: str, named: GenerationParams) -> bool:
    """Presets and models name samplers too; all else comes from the client."""
    ours = _OURS.get(name, name)
    return ours in named.sampling.named or ours not in SAMPLERS


def _as_asked(name: str, asked: GenerationParams) -> str:
    return asked.spelled.get(_OURS.get(name, name), name)
