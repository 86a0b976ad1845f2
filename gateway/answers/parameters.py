"""The parameters of a request that are not applied, and why: decided here, once, by what its
dialect parsed and by what the model that answers can do, be it an engine here or another server.
Pure.

It is what the headers and the report on a request's parameters say, and what a strict client is
refused for.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from backends.contract.protocol import Generation, ModelInfo
from backends.contract.remote import RemoteChanges, RemoteChat, RemoteRequest
from backends.contract.samplers import (
    NEUTRAL,
    SAMPLERS,
    Sampling,
    order_of,
    penalties_first,
    without_effect,
)
from gateway.terms.errors import InvalidRequest
from gateway.terms.events import ChangedParameter, Parameters
from gateway.terms.request import GenerationParams, Unapplied

_LENGTHS = ("max_tokens", "min_tokens", "stop")


def unsupported(info: ModelInfo, names: Iterable[str]) -> Mapping[str, str]:
    """Those of the fields `names` of `Sampling` that this engine doesn't have: why."""
    return {name: _no_such(info) for name in names if name not in info.samplers}


def unapplied_sampling(info: ModelInfo, sampling: Sampling) -> Mapping[str, str]:
    """The fields of `sampling` with a value that this engine does not apply, by our names: why.

    What has no effect because of the request's other fields is among them.
    """
    reasons = {**without_effect(sampling), **unsupported(info, sampling.requested())}
    if info.penalties_first and not penalties_first(order_of(sampling)):
        reasons["samplers"] = f"on {info.backend} penalties and DRY come first; the rest is applied"
    return reasons


def unapplied_here(
    params: GenerationParams, used: Sampling, info: ModelInfo
) -> tuple[Unapplied, ...]:
    """What an engine here does not apply of `params`, which has the presets. `used`: its sampling
    with the model's own defaults, which ask for nothing.
    """
    named = params.sampling.named
    found = unapplied_sampling(info, used) if named else {}
    reasons = {name: reason for name, reason in found.items() if name in named}
    if params.slot is not None and not info.keeps_slots:
        reasons["id_slot"] = _no_such(info)
    if params.adapters is not None and not info.chooses_adapters:
        reasons["lora"] = _no_such(info)
    if params.reports_progress and not info.reports_progress:
        reasons["return_progress"] = _no_such(info)
    if params.drafts and (reason := undrafted(info)):
        reasons["speculative"] = reason
    written = {_written(name, params): reason for name, reason in reasons.items()}
    return (*(Unapplied(name, written[name]) for name in sorted(written)), *params.unapplied)


def undrafted(info: ModelInfo) -> str | None:
    """Why a request can't choose how much is drafted; None: it can."""
    usual = f"{info.backend} drafts no tokens for this model"
    return None if info.drafts else info.undrafted or usual


def _no_such(info: ModelInfo) -> str:
    return f"{info.backend} does not have it"


def refuse_unparsed(params: GenerationParams) -> None:
    """Raises InvalidRequest where the client is strict and a field has no meaning here."""
    _refuse_fields(params, [field.name for field in params.unapplied])


def refuse_unapplied_here(named: GenerationParams, info: ModelInfo) -> None:
    """Raises InvalidRequest where the engine doesn't apply sampling that the client named. `named`:
    the request's own, without presets.
    """
    _refuse(unapplied_sampling(info, named.sampling.values), named)


def _refuse(reasons: Mapping[str, str], named: GenerationParams) -> None:
    if reasons:
        written = {_written(name, named): reasons[name] for name in sorted(reasons)}
        text = "; ".join(f"{name}: {reason}" for name, reason in written.items())
        raise InvalidRequest(f"{text}.", param=next(iter(written)))


def _refuse_fields(params: GenerationParams, names: list[str]) -> None:
    if params.strict and names:
        message = f"Unknown fields, and strict_parameters is set: {', '.join(names)}."
        raise InvalidRequest(message, param=names[0])


def parameters(
    params: GenerationParams, job: Generation, unapplied: tuple[Unapplied, ...]
) -> Parameters:
    """The report for an answer to `params`, the client's own, by `job`, which is as the engine sees
    it, within its bounds.
    """
    reasons = _reasons(unapplied)
    used = {params.spelled.get(name, name): value for name, value in _used(params, job).items()}
    applied = {name: value for name, value in used.items() if name not in reasons}
    return Parameters(applied, _changed(params, job, reasons), reasons)


def _reasons(unapplied: tuple[Unapplied, ...]) -> dict[str, str]:
    return {field.name: field.reason for field in unapplied if not field.partly}


def _used(params: GenerationParams, job: Generation) -> Mapping[str, Any]:
    """What was named, and what else is not neutral."""
    values = {name: getattr(job.sampling, name) for name in SAMPLERS}
    used = {
        name: value
        for name, value in values.items()
        if name in params.sampling.named or value != getattr(NEUTRAL, name)
    }
    lengths = {name: getattr(job, name) for name in _LENGTHS if getattr(job, name)}
    return {**used, **lengths, **({"stop": params.stop} if params.stop else {})}


def _changed(
    params: GenerationParams, job: Generation, unapplied: Mapping[str, str]
) -> Mapping[str, ChangedParameter]:
    values = {name: getattr(params.sampling.values, name) for name in params.sampling.named}
    values |= {"max_tokens": params.max_tokens} if params.max_tokens else {}
    changed: dict[str, ChangedParameter] = {}
    for name, value in values.items():
        used = job.max_tokens if name == "max_tokens" else getattr(job.sampling, name)
        written = params.spelled.get(name, name)
        if used != value and written not in unapplied:
            why = "as far as this model goes, or by a preset of the server's administrator"
            changed[written] = ChangedParameter(value, used, why)
    return changed


SET = "the configuration of the upstream sets it"
NO_FIELD = "the API of the server that runs the model doesn't support it"
UNCONSTRAINED = "the server that runs the model doesn't support it; the answer is validated"
_OURS = {"ignore_eos": "ban_eos"}  # names that are handed on, where ours is another


def unapplied_there(
    request: RemoteRequest, changes: RemoteChanges, params: GenerationParams
) -> tuple[Unapplied, ...]:
    """What is not handed on to another server, which may know fields that we don't."""
    dropped = _dropped(changes, params)
    known = {
        *params.further,
        *({"tools[].function.strict"} if isinstance(request, RemoteChat) else ()),
    }
    known -= changes.unapplied.keys()
    return (
        *(Unapplied(_written(name, params), dropped[name]) for name in sorted(dropped)),
        *_without_field(params),
        *(field for field in params.unapplied if field.name not in known),
        *_loosened(request, changes),
    )


def _loosened(request: RemoteRequest, changes: RemoteChanges) -> Iterator[Unapplied]:
    if request.shape is not None and not changes.holds_shape:
        yield Unapplied(request.shape.field, UNCONSTRAINED, partly=True)


def _without_field(params: GenerationParams) -> Iterator[Unapplied]:
    features = (
        ("return_progress", params.reports_progress),
        ("speculative", bool(params.drafts)),
        ("logprobs_of", params.logprobs_of != "content"),
        ("return_tokens", params.returns_tokens and not params.streamed),
    )
    return (Unapplied(name, NO_FIELD) for name, is_asked in features if is_asked)


def refuse_unapplied_there(changes: RemoteChanges, named: GenerationParams) -> None:
    """Raises InvalidRequest where something that the client named is not handed on. `named`: the
    request's own, without presets.
    """
    _refuse_fields(
        named, [field.name for field in named.unapplied if field.name not in named.further]
    )
    dropped = _dropped(changes, named).items()
    _refuse({name: why for name, why in dropped if _is_named(name, named)}, named)


def parameters_sent(
    request: RemoteRequest,
    changes: RemoteChanges,
    params: GenerationParams,
    unapplied: tuple[Unapplied, ...],
) -> Parameters:
    """The report for a request sent to another server; whether that one applies them is not known
    here.
    """
    given, replaced = request.parameters, changes.replaced
    sent = {name: value for name, value in given.items() if name not in changes.unapplied}
    applied = {_written(name, params): replaced.get(name, value) for name, value in sent.items()}
    changed = {
        _written(name, params): ChangedParameter(value, replaced[name], SET)
        for name, value in sent.items()
        if name in replaced and replaced[name] != value
    }
    return Parameters(applied, changed, _reasons(unapplied))


def _dropped(changes: RemoteChanges, params: GenerationParams) -> Mapping[str, str]:
    """Without the fields that change no answer (`store`), which are not missed."""
    harmless = params.further.keys() - {field.name for field in params.unapplied}
    return {name: why for name, why in changes.unapplied.items() if name not in harmless}


def _is_named(name: str, named: GenerationParams) -> bool:
    """Presets and models name samplers too; all else comes from the client."""
    ours = _OURS.get(name, name)
    return ours in named.sampling.named or ours not in SAMPLERS


def _written(name: str, params: GenerationParams) -> str:
    """`name` as the client wrote it."""
    return params.spelled.get(_OURS.get(name, name), name)
