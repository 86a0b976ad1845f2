"""Errors below the gateway. Foreign exceptions are translated into these at this border.

BackendError
├── LoadFailed                the model can't be loaded; the message says why
│   ├── OutOfMemory           … because memory ran out (also raised while generating)
│   ├── BackendMissing        … because its library isn't installed or can't run here
│   ├── UnsupportedModel      … because no backend reads this format
│   └── HeaderCutOff          … because of its file not even the header is there
├── InvalidJob                the job can't be run as requested
│   ├── PromptTooLong         … because prompt and completion don't fit the context
│   └── InputTooLong          … because a text to be embedded or ranked doesn't fit it
├── NotAble                   this engine can't do that at all
├── GenerationFailed          the engine failed while the job ran
│   └── EngineLost            … because its process ended, or its machine can't be reached
└── UpstreamError             another server refused, failed or can't be reached
"""

import signal
from contextlib import suppress

CLOSED = "the model has been closed"


class BackendError(Exception):
    """Anything a container or a loader raises on purpose."""


class LoadFailed(BackendError):
    """The model can't be loaded."""


class OutOfMemory(LoadFailed):
    """Memory ran out, while loading or while generating."""


class BackendMissing(LoadFailed):
    """The engine's library isn't installed, or can't run on this machine."""


class UnsupportedModel(LoadFailed):
    """No backend reads these files, or this backend doesn't know the architecture."""


class HeaderCutOff(LoadFailed):
    """A file of it ends before its header does."""


class InvalidJob(BackendError):
    """The job can't be run as requested. `param` names the request field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(InvalidJob):
    """The prompt leaves no room in the context."""

    def __init__(self, prompt_tokens: int, context_length: int) -> None:
        super().__init__(
            f"This model's maximum context length is {context_length} tokens, "
            f"but the prompt has {prompt_tokens}; at least one token must be left for the answer.",
            "prompt",
        )
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length


class InputTooLong(InvalidJob):
    """A text to be embedded or ranked has more tokens than the model reads."""

    def __init__(self, tokens: int, context_length: int, param: str) -> None:
        super().__init__(
            f"This model reads at most {context_length} tokens of a text, but here are {tokens}.",
            param,
        )
        self.prompt_tokens = tokens
        self.context_length = context_length


class NotAble(BackendError):
    """The engine does not support what is requested."""


class GenerationFailed(BackendError):
    """The engine failed while the job ran."""


class EngineLost(GenerationFailed):
    """What computed is gone: a worker crashed, or a node is off."""


class UpstreamError(BackendError):
    """Another server's error, or that it didn't answer. `message` names no address and no key."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 502,
        type: str = "server_error",
        code: str | None = "upstream_failed",
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """`status` and the fields go to the client; `retry_after`: seconds."""
        super().__init__(message)
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.retry_after = retry_after


def process_end(status: int, printed: bytes) -> str:
    """How a process ended, with its last words but for the folder of a source file in them.
    `status`: as `subprocess` counts; `printed`: to its stderr.
    """
    last = printed.decode(errors="replace").strip().rpartition("\n")[2].rpartition("/")[2][:200]
    how = f"exited with status {status}"
    if status < 0:
        how = f"was ended by signal {-status}"
        with suppress(ValueError):
            how = f"was ended by {signal.Signals(-status).name}"
    return f"{how} ({last})" if last else how


def while_generating(error: Exception, who: str, *, full: bool = False) -> BackendError:
    """A foreign error of `who` as ours; a `BackendError` as it is. `full`: memory ran out."""
    if isinstance(error, BackendError):
        return error
    if full:
        return OutOfMemory(f"memory ran out while generating: {error}")
    return GenerationFailed(f"{who} failed: {type(error).__name__}: {error}")
