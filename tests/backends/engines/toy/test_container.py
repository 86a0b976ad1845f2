"""A new backend is a folder and one line: this folder, registered here, keeps the contract and is
served like those that come with Roundhouse.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from string import ascii_letters

import msgspec
import pytest

from backends.contract.catalog import BACKENDS, Backend, Catalog
from backends.contract.samplers import Sampling
from config.errors import ConfigError
from config.loader import load_config
from config.settings import Config, EnginesConfig
from tests.backends.container_contract import PROMISES, Subject, job, run, text_of
from tests.backends.engines.toy.files import ToyOptions
from tests.backends.loopback import over_bytes
from tests.gateway.http.serving import HELLO, Running, serving

pytestmark = pytest.mark.anyio


class Engines(EnginesConfig, frozen=True):
    toy: ToyOptions = ToyOptions()  # the one line


class ToyConfig(Config, frozen=True):
    engines: Engines = Engines()


TOY = Backend("toy", ToyOptions, package="tests.backends.engines.toy")
CATALOG = Catalog((*BACKENDS.values(), TOY))


def write(folder: Path) -> Path:
    """The alphabet, letter after letter; after other texts it begins anew."""
    after = {one: {two: 9.0, "z": 1.0} for one, two in pairwise(ascii_letters)}
    table = {
        "after": {**after, ">": {"a": 1.0}, ":": {"a": 1.0}},
        "chat_template": "{% for m in messages %}{{ m.content }}\n{% endfor %}answer:",
    }
    path = folder / "alphabet.toy.json"
    path.write_bytes(msgspec.json.encode(table))
    return path


def settings(folder: Path, options: str = "{}", engine: str = "{}") -> Config:
    path = folder / "roundhouse.yaml"
    path.write_text(
        f"server: {{port: 0}}\nengines: {{toy: {engine}}}\n"
        f"models: [{{name: alphabet, path: {write(folder)}, options: {options}}}]\n"
    )
    return load_config(path, {"ROUNDHOUSE_ENGINES_TOY_MAX_CONCURRENT": "3"}, kind=ToyConfig)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(promise: Callable[[Subject], Awaitable[None]], tmp_path: Path) -> None:
    files = CATALOG.recognise(write(tmp_path))
    container = await CATALOG["toy"].container.load(
        files, ToyOptions(max_concurrent=4), lambda _: None
    )
    try:
        await promise(Subject(container, prompt="S", long="answer:"))
    finally:
        await container.aclose()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract_over_bytes(
    promise: Callable[[Subject], Awaitable[None]], tmp_path: Path
) -> None:
    loaded = await CATALOG["toy"].container.load(
        CATALOG.recognise(write(tmp_path)), ToyOptions(max_concurrent=4), lambda _: None
    )
    container = over_bytes(loaded, CATALOG)
    try:
        await promise(Subject(container, prompt="S", long="answer:"))
    finally:
        await container.aclose()


async def test_the_table_decides_what_is_drawn(tmp_path: Path) -> None:
    container = await CATALOG["toy"].container.load(
        CATALOG.recognise(write(tmp_path)), ToyOptions(), lambda _: None
    )
    subject = Subject(container, prompt="S", long="answer:")

    async def drawn(sampling: Sampling) -> str:
        return text_of((await run(container, job(subject, subject.long, sampling=sampling)))[0])

    assert await drawn(Sampling(temperature=0)) == ascii_letters
    texts = {await drawn(Sampling(temperature=1, seed=seed)) for seed in range(20)}
    assert len(texts) > 5
    assert await drawn(Sampling(seed=7)) == await drawn(Sampling(seed=7))
    await container.aclose()


@pytest.mark.parametrize(
    ("options", "engine", "path"),
    [
        ("{rwo_bytes: 1}", "{}", r"\$\.models\[0\]\.options\.rwo_bytes.*row_bytes"),
        ("{row_bytes: 0}", "{}", r"\$\.models\[0\]\.options\.row_bytes"),
        ("{}", "{row_bytes: much}", r"\$\.engines\.toy\.row_bytes"),
    ],
)
def test_its_options_are_checked(options: str, engine: str, path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=path):
        settings(tmp_path, options, engine)


def test_its_paths_start_at_the_configuration(tmp_path: Path) -> None:
    [model] = settings(tmp_path, "{table: other.json}").models
    assert model.options["table"] == str(tmp_path / "other.json")


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    config = settings(tmp_path, engine="{row_bytes: 32}")
    async with serving(config, tmp_path, CATALOG) as server:
        yield server


async def test_it_is_loaded_listed_and_answers(running: Running) -> None:
    body = {"model_name": "alphabet", "cache_size": 128}
    loaded = await running.client.post("/v1/model/load", json=body)
    assert '"status":"finished"' in loaded.text
    [card] = (await running.client.get("/v1/models")).json()["data"]
    assert (card["id"], card["backend"], card["format"]) == ("alphabet", "toy", "table")
    parameters = (await running.client.get("/v1/model")).json()["parameters"]
    assert (parameters["cache_size"], parameters["max_batch_size"]) == (128, 3)
    answer = await running.client.post(
        "/v1/chat/completions",
        json={"model": "alphabet", "messages": HELLO, "temperature": 0, "top_k": 3},
    )
    assert answer.json()["choices"][0]["message"]["content"] == ascii_letters
    assert "top_k" in answer.headers["x-roundhouse-ignored"]


@pytest.mark.parametrize(
    ("option", "value"), [("table", "/etc/passwd"), ("cache_mode", "Q8"), ("row_bytes", 0)]
)
async def test_what_it_lacks_and_what_names_files_is_refused(
    option: str, value: object, running: Running
) -> None:
    body = {"model_name": "alphabet", option: value}
    refused = await running.client.post("/v1/model/load", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == option
