"""The state of a running request, and the report of one that is over: all that others read."""

from typing import Literal, TypeAlias

import msgspec

from gateway.keys.access import ADMIN, Access
from gateway.terms.events import Usage

Api: TypeAlias = str  # "chat", "text", …
Standing: TypeAlias = Literal["queued", "loading", "prompt", "answering", "done"]


class RequestStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A running or finished request. Times are in seconds, `began_at` is Unix time."""

    number: int  # of this server, from 1
    request: str  # the client's x-request-id, or ours
    key: str | None  # the label of the key that sent it; None where there are none
    api: Api
    model: str  # "" where it named none that exists
    state: Standing
    place: int | None  # in the model's line, from 1, while it waits
    percent: int | None  # of the load it waits for, where the engine reports it
    began_at: float
    seconds: float
    queued_seconds: float
    load_seconds: float
    ttft: float | None  # until the first delta; None: there was none yet
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    drafted_tokens: int
    accepted_tokens: int  # of the drafted ones, those that came
    tokens_per_second: float | None  # of the answer since its first delta
    outcome: str | None  # "ok", "left", "send_timeout", or the code of an error; when done
    prompt: str | None  # how it ends, where prompts are shown
    parted: str | None = None  # where it parts from the turn before, if it does


class RequestReport(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request."""

    standing: RequestStanding  # its last
    access: Access = ADMIN  # of the key that sent it
    usage: Usage | None = None  # None: it never came to an answer
    is_fault: bool = False  # of this server, or of another one behind it; not of the client
