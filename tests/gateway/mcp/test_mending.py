"""What is bounded of answers before they are mended, on the event loop."""

from typing import Any

from gateway.mcp.mending import LEFT_OUT, MOST, mended


def test_a_page_of_endless_tools_is_cut_and_that_is_said() -> None:
    tools: list[Any] = [{"name": f"t{number}"} for number in range(MOST + 50_000)]
    found = mended("tools/list", {"tools": tools})["tools"]
    assert [tool["name"] for tool in found] == [*(f"t{n}" for n in range(MOST)), "(others)"]
    assert found[-1]["_meta"][LEFT_OUT] == "a page has more than 2,000 tools"


def test_a_list_that_is_none_is_left_to_the_library() -> None:
    assert mended("tools/list", {"tools": "none"}) == {"tools": "none"}
