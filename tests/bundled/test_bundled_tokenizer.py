"""Both engines see the same tokens, whatever the text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundled import SAFETENSORS
from tests.bundled.examinees import LlamaCppExaminee, TransformersExaminee

TEXTS = (
    "Hello, world!",
    "It's 12.5 °C; we'll see I'VE 'd",
    "  two  spaces\n\n\nthree lines\r\n\ttab ",
    "😀 👩‍👩‍👧 naïve Жизнь 漢字かな ٣٤ ½ Ⅷ",
    "no\u00a0break, ideographic\u3000space, zero\u200bwidth",
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
    "<think>\nx\n</think>\n\n<tool_call>\n{}\n</tool_call><|im_end|>",
    "<tool_response>\n21\n</tool_response> <think <|im_start",
)


@pytest.mark.parametrize("text", TEXTS)
def test_chosen_texts_become_the_same_tokens(
    llama_cpp_model: LlamaCppExaminee, transformers_model: TransformersExaminee, text: str
) -> None:
    assert llama_cpp_model.tokens(text) == transformers_model.tokens(text)


@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
@settings(max_examples=300)
def test_any_text_becomes_the_same_tokens(
    llama_cpp_model: LlamaCppExaminee, transformers_model: TransformersExaminee, text: str
) -> None:
    assert llama_cpp_model.tokens(text) == transformers_model.tokens(text)


@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
@settings(max_examples=100)
def test_tokens_become_the_same_text_again(
    transformers_model: TransformersExaminee, text: str
) -> None:
    assert transformers_model.tokenizer.decode(transformers_model.tokens(text)) == text


def test_each_marker_is_one_token(llama_cpp_model: LlamaCppExaminee) -> None:
    markers = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
    assert [len(llama_cpp_model.tokens(marker)) for marker in markers] == [1] * len(markers)


def test_both_forms_hold_the_same_chat_template(llama_cpp_model: LlamaCppExaminee) -> None:
    settings_file = SAFETENSORS / "tokenizer_config.json"
    template = json.loads(settings_file.read_text(encoding="utf-8"))["chat_template"]
    assert llama_cpp_model.metadata["tokenizer.chat_template"] == template
