"""The bundled model behind each engine's own API: a prompt in, the greedy text out.

Not Roundhouse's containers: these tests ask about the files, not about the gateway.
"""

from importlib import import_module
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from backends.engines.llamacpp.library import api
from bundled import GGUF, SAFETENSORS

CONTEXT = 2048
MOST_NEW_TOKENS = 300


class TransformersExaminee:
    """safetensors, computed in single precision."""

    def __init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(SAFETENSORS)
        self._model = AutoModelForCausalLM.from_pretrained(SAFETENSORS, dtype=torch.float32)

    def prompt(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        thinking: bool = True,
    ) -> str:
        """The conversation as the chat template writes it, ready for an answer."""
        rendered = self.tokenizer.apply_chat_template(
            messages,
            tools=tools,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        assert isinstance(rendered, str)
        return rendered

    def tokens(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def complete(self, prompt: str) -> str:
        inputs = self.tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        with torch.inference_mode():
            output = self._model.generate(**inputs, max_new_tokens=MOST_NEW_TOKENS, do_sample=False)
        new = output[0, inputs["input_ids"].shape[1] :]
        return str(self.tokenizer.decode(new, skip_special_tokens=True))


class LlamaCppExaminee:
    """GGUF."""

    def __init__(self) -> None:
        assert api is not None  # the library, compiled or prebuilt, is loaded with it
        self._model = import_module("llama_cpp").Llama(str(GGUF), n_ctx=CONTEXT, verbose=False)

    def close(self) -> None:
        self._model.close()

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self._model.metadata)

    def tokens(self, text: str) -> list[int]:
        tokens: list[int] = self._model.tokenize(text.encode(), add_bos=False, special=True)
        return tokens

    def complete(self, prompt: str) -> str:
        """The text up to the end of the turn; an answer without an end is a failure."""
        reply: Any = self._model.create_completion(
            self.tokens(prompt), max_tokens=MOST_NEW_TOKENS, temperature=0.0
        )
        assert reply["choices"][0]["finish_reason"] == "stop"
        return str(reply["choices"][0]["text"])
