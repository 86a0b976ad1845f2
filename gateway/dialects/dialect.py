"""The record of one API: what the server needs to know to answer in its form. Each module of an API
here has its own, `DIALECT`; it is switched by its module's name in `apis` of the configuration.
"""

from collections.abc import Callable

import msgspec

from gateway.errors import GatewayError


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """`error_body` writes the body of a failed request, of type `error`; None: OpenAI's."""

    name: str  # that the components of the API's documents begin with
    tag: str  # its heading in the documents
    error_body: Callable[[GatewayError], bytes] | None = None
    error: type[msgspec.Struct] | None = None
    id_headers: tuple[str, ...] = ()  # of an answer, with the request's id, besides the server's
    read_headers: tuple[str, ...] = ()  # of a request, which pages of allowed origins may send
