"""What takes the space in a prompt that is too long, as an error message.

Frontends bring tools by the dozen with a "Hello!", and the error is all that their user sees.
Shares are of characters: to render and tokenize each part would cost what the refusal saves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

import msgspec

from gateway.errors import ContextLengthExceeded
from gateway.request import ChatRequest, ImagePart

WORTH_TELLING = 10  # percent of the prompt


@contextmanager
def length_explained(request: ChatRequest) -> Iterator[None]:
    """Adds to the error of a too long prompt which parts of `request` are long, and what to do."""
    try:
        yield
    except ContextLengthExceeded as error:
        copied = copy(error)
        copied.message = f"{error.message} {' '.join(_advice(request))}"
        raise copied from error


def _advice(request: ChatRequest) -> Iterator[str]:
    tools = len(msgspec.json.encode(request.tools))
    texts = [(message.role, len(message.text)) for message in request.messages]
    system = sum(size for role, size in texts if role == "system")
    whole = tools + sum(size for _, size in texts) or 1
    if (share := 100 * tools // whole) >= WORTH_TELLING:
        yield (
            f"About {share} % of it are the request's tools ({len(request.tools)}): switch off "
            "what isn't needed (Open WebUI: the model's capability 'Builtin Tools')."
        )
    if (share := 100 * system // whole) >= WORTH_TELLING:
        yield f"About {share} % of it are system messages."
    if pictures := _pictures(request):
        yield f"It has {pictures} pictures, which take tokens too."
    yield "Send less, or load the model with a larger context_length."


def _pictures(request: ChatRequest) -> int:
    parts = (part for message in request.messages for part in message.parts)
    return sum(isinstance(part, ImagePart) for part in parts)
