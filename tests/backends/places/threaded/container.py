"""The toy engine, but that its library begins a thread when it is imported."""

import threading

from tests.backends.engines.toy.container import load, tokenizer

__all__ = ["load", "preload", "tokenizer"]


def preload() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
