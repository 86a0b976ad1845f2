"""Stands in for exllamav2 where there is no CUDA: one machine, and the library on it.

The classes have the names, parameters and defaults of exllamav2 0.3.2 (`test_signatures.py`
compares them with the package's source) and the behaviour our adapter leans on.
"""

from collections.abc import Mapping
from typing import Any

from backends.exllamav2.library import ExLlamaV2Library
from tests.backends.exllama import machine
from tests.backends.exllamav2.standin_generator import (
    ExLlamaV2DynamicGenerator,
    ExLlamaV2DynamicJob,
    Settings,
)
from tests.backends.exllamav2.standin_models import (
    ExLlamaV2,
    ExLlamaV2Cache,
    ExLlamaV2Cache_Q4,
    ExLlamaV2Cache_Q6,
    ExLlamaV2Cache_Q8,
    ExLlamaV2Config,
    ExLlamaV2Lora,
    ExLlamaV2Tokenizer,
    ExLlamaV2VisionTower,
)


class Machine(machine.Machine):
    """A machine with exllamav2."""

    def __init__(self, answers: Mapping[str, str], *, paged: bool = True) -> None:
        super().__init__(answers)
        self.paged = paged
        self.loras: list[Any] = []
        self.arch_string: str | None = None  # the fallback for unknown architectures

    def library(self) -> ExLlamaV2Library:
        """The stand-in's classes, all of this machine."""
        of = self.of
        return ExLlamaV2Library(
            config=of("Config", ExLlamaV2Config),
            model=of("Model", ExLlamaV2),
            caches={
                "fp16": of("Cache", ExLlamaV2Cache),
                "q8": of("Cache_Q8", ExLlamaV2Cache_Q8),
                "q6": of("Cache_Q6", ExLlamaV2Cache_Q6),
                "q4": of("Cache_Q4", ExLlamaV2Cache_Q4),
            },
            tokenizer=ExLlamaV2Tokenizer,
            lora=of("Lora", ExLlamaV2Lora),
            vision=of("Vision", ExLlamaV2VisionTower),
            generator=of("Generator", ExLlamaV2DynamicGenerator),
            job=of("Job", ExLlamaV2DynamicJob),
            settings=Settings,
            assert_paged=self.assert_paged_attn,
            devices=2,
        )

    def assert_paged_attn(self) -> None:
        assert self.paged, "Paged attention required Flash Attention 2.5.7 or later"
