"""One machine for the stand-ins of exllamav2 and exllamav3: what is loaded on it, what shall be
said, and what shall go wrong.
"""

import threading
from collections.abc import Mapping
from typing import Any

GREETING = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
STORY = "<|im_start|>user\nA story.<|im_end|>\n<|im_start|>assistant\n<think>"
STORY_TEXT = "Once there was a little engine that could pull more than anybody thought, " * 3

MARKERS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")  # around a picture


def answers() -> dict[str, str]:
    return {GREETING: "Hello! How can I help?", STORY: STORY_TEXT}


class Machine:
    """It keeps a list of what holds memory, so that what stays behind is seen."""

    def __init__(self, said: Mapping[str, str]) -> None:
        self.answers = dict(said)
        self.loaded: list[str] = []  # what holds device memory now
        self.generators: list[Any] = []
        self.jobs: list[Any] = []  # all that were enqueued
        self.fail_iterate: Exception | None = None
        self.steps: threading.Semaphore | None = None  # so many steps are made; None: all
        self.refused_token: int | None = None  # no job is enqueued whose sequence holds it
        self.fail_load: Exception | None = None

    def of(self, name: str, *bases: type) -> Any:
        """A stand-in's class in this machine."""
        return type(name, bases, {"machine": self})
