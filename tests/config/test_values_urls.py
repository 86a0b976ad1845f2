"""A URL is taken only if a request can be sent to it."""

import httpx
from hypothesis import example, given
from hypothesis import strategies as st

from backends.places.upstream.http1 import origin_of
from config.values import LONGEST_URL, requested

ODD = st.sampled_from([*"\u200b\x7f\r\n\t \0[]@:/?#%\\.-", "xn--", "..", "::", "99999", "ß", "。"])
URLS = st.builds(
    lambda scheme, parts: scheme + "".join(parts),
    st.sampled_from(["http://", "https://", "ftp://", "http:/", ""]),
    st.lists(ODD | st.text(max_size=3) | st.sampled_from(["gpu", "127.0.0.1", "v1"]), max_size=8),
)


@given(URLS)
@example("http://" + "a" * 70_000)
@example("http://xn--")
@example("http://gpu\u200b:8000/v1")
def test_what_is_taken_can_be_asked(url: str) -> None:
    try:
        requested(url)
    except ValueError as error:
        assert str(error).startswith(("not a URL", "expected a URL"))  # noqa: PT017 - of either kind
        return
    assert len(url) <= LONGEST_URL
    request = httpx.Request("GET", f"{url}/models")
    _, host, port = origin_of(request.url)
    assert host
    assert 0 <= port <= 65_535
    assert request.url.raw_path.isascii()
    assert not {b"\r", b"\n", b" "} & {bytes([byte]) for byte in request.url.raw_path}
