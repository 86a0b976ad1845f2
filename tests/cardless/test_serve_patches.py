"""A coding agent's tool on exllamav2 and exllamav3 as `roundhouse serve` runs them: what it writes
is held to its Lark grammar. Without a card and its kernels that takes minutes.
"""

from pathlib import Path

import openai
import pytest

from tests.cardless.test_serve import ENVIRONMENT_OF_SERVERS, NAMES, entry
from tests.patches import assert_patches, patches_of
from tests.served import served

pytestmark = pytest.mark.long

ENOUGH = 4


@pytest.mark.parametrize("name", NAMES[:2])
def test_patches_at_a_high_temperature_all_parse(name: str, tmp_path: Path) -> None:
    config = {"models": [entry(name, context=2_048)]}
    with (
        served(tmp_path, config, environment=ENVIRONMENT_OF_SERVERS) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as api,
    ):
        assert_patches(patches_of(api, ENOUGH, name), ENOUGH)
