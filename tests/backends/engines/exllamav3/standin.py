"""Stands in for exllamav3 where there is no CUDA: one machine, and the library on it.

The classes have the names, parameters and defaults of exllamav3 1.6.5 (`test_standin_signatures.py`
compares them with the package's source) and the behaviour our adapter leans on.
"""

from collections.abc import Mapping

from backends.engines.exllamav3.container import ExLlamaV3Library
from tests.backends.engines.exllama import machine
from tests.backends.engines.exllamav3 import standin_sampler
from tests.backends.engines.exllamav3.standin_generator import Generator, Job
from tests.backends.engines.exllamav3.standin_models import (
    Cache,
    CacheLayer_quant,
    Config,
    LoRA,
    Model,
    Qwen3VLVisionModel,
    Tokenizer,
)

__all__ = ["Qwen3VLVisionModel"]


class Machine(machine.Machine):
    """A machine with exllamav3."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        super().__init__(answers)
        self.limited = False  # the process may not use all memory of its cards
        self.limits: list[bool] = []  # the same, while each module was loaded
        self.unknown = False  # the architecture
        self.adapters_fit = True
        self.fail_job: Exception | None = None  # one, in a step that goes well for others

    def library(self) -> ExLlamaV3Library:
        """The stand-in's classes, all of this machine."""
        return ExLlamaV3Library(
            config=self.of("Config", Config),
            model=self.of("Model", Model),
            cache=self.of("Cache", Cache),
            quantized=CacheLayer_quant,
            tokenizer=Tokenizer,
            lora=self.of("LoRA", LoRA),
            generator=self.of("Generator", Generator),
            job=self.of("Job", Job),
            steps=standin_sampler,
            unset_memory_fraction=self.unset_memory_fraction,
            devices=2,
        )

    def unset_memory_fraction(self, active_devices: list[int]) -> None:
        assert active_devices == [0, 1]
        self.limited = False
