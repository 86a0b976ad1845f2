"""As `test_gpu`, where flash-attn is missing."""

from collections.abc import Mapping

from tests.cardless.test_gpu import *  # noqa: F403 - all of it
from tests.cardless.test_gpu import pytestmark  # noqa: F401

ENVIRONMENT: Mapping[str, str] = {"EXLLAMA_NO_FLASH_ATTN": "1"}
