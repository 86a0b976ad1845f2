"""What a client learns of its parameters where another server answers. Pure."""

from collections.abc import Mapping

from backends.protocol import SAMPLERS
from backends.remote import RemoteChanges, RemoteRequest
from gateway.answers.parameters import UNREAD, refuse_unread
from gateway.errors import InvalidRequest
from gateway.events import ChangedParameter, Parameters
from gateway.request import GenerationParams

SET = "the configuration of the upstream sets it"
_OURS = {"ignore_eos": "ban_eos"}  # names that are handed on, where ours is another


def ignored_there(changes: RemoteChanges, asked: GenerationParams) -> tuple[str, ...]:
    """What is not handed on, by the names that the client used."""
    return tuple(_as_asked(name, asked) for name in sorted(_left_out(changes, asked)))


def refuse_ignored(changes: RemoteChanges, named: GenerationParams) -> None:
    """Raises InvalidRequest where something that the client named is not handed on. `named`: the
    request's own, without presets.
    """
    refuse_unread(named, named.further)
    refused = sorted(name for name in _left_out(changes, named) if _is_named(name, named))
    if refused:
        told = "; ".join(f"{_as_asked(name, named)}: {changes.left_out[name]}" for name in refused)
        raise InvalidRequest(f"{told}.", param=_as_asked(refused[0], named))


def parameters_there(
    request: RemoteRequest, changes: RemoteChanges, asked: GenerationParams
) -> Parameters:
    """What became of each parameter on the way to the other server; what that one makes of them is
    for it to say.
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
