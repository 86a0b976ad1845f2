"""What a pipeline hands to a dialect's reply, whichever API the client speaks. Knows no wire."""

import msgspec

from backends.protocol import TokenLogprob
from gateway.events import Event


class Delta(msgspec.Struct, frozen=True):
    """Some more of one choice: what was said, and the log probabilities of the tokens that said it.

    `choice` counts the choices of the whole answer: with several prompts it is prompt * n + i.
    `events` may be empty while text is held back; `logprobs` may then not be.
    """

    choice: int
    events: tuple[Event, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    # Of the prompt's next tokens, where it is echoed with its log probabilities.
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer cost, all choices together.

    Each prompt of the request counts once, not once for each choice. `reasoning_tokens` are part of
    `completion_tokens`, `cached_tokens` of `prompt_tokens`.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    queue_seconds: float = 0.0  # waiting for a slot
