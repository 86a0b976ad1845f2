"""Models' names in Ollama's words. What its bodies mean: request.jsonl."""

import pytest

from gateway.dialects.ollama import hub_name, read_named, without_latest
from gateway.terms.errors import InvalidRequest


def test_names() -> None:
    assert without_latest("qwen:latest") == "qwen"
    assert without_latest("qwen:8b") == "qwen:8b"
    assert read_named(b'{"name": "old"}').model == "old"
    assert hub_name("hf.co/org/repo:Q4_K_M") == "org/repo:Q4_K_M"
    assert hub_name("org/repo:latest") == "org/repo"
    for name in ("llama3", "a/b/c", "registry.ollama.ai/library/llama3"):
        with pytest.raises(InvalidRequest, match="hub"):
            hub_name(name)
    with pytest.raises(InvalidRequest) as caught:
        read_named(b"{}")
    assert caught.value.param == "model"
