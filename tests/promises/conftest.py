"""What is promised holds without torch, but for what is marked slow."""

from tests.gateway.conftest import without_torch

__all__ = ["without_torch"]
