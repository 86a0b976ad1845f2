"""What models can do is read from their templates, before they are loaded."""

from pathlib import Path

import msgspec
import pytest

import bundled
from backends.contract.remote import RemoteTarget
from config.settings import Config, ModelConfig
from gateway.answers.interpreter import Capabilities, Templates
from gateway.registry import History, ModelLibrary, ModelStatus, Registry

pytestmark = pytest.mark.anyio

THINKS = (Path(__file__).parent.parent / "prompt" / "templates" / "qwen3.jinja").read_text()
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def script(folder: Path, name: str, **fields: object) -> ModelConfig:
    path = folder / f"{name}.script.json"
    path.write_bytes(msgspec.json.encode({"lines": [{"say": "x"}], **fields}))
    return ModelConfig(name=name, path=str(path))


async def statuses(config: Config, folder: Path) -> dict[str, ModelStatus]:
    registry = Registry(ModelLibrary(config), config, history=History(folder / "h.json"))
    async with registry:
        return {one.id: one for one in registry.statuses()}


async def test_templates_tell_what_a_model_can_do(tmp_path: Path) -> None:
    models = (
        ModelConfig(name="tiny", path=str(bundled.GGUF)),
        script(tmp_path, "seeing", chat_template=PLAIN, modalities=["text", "image"]),
        script(tmp_path, "broken", chat_template="{% for %}"),
        ModelConfig(name="gone", path=str(tmp_path / "gone.gguf")),
    )
    known = Capabilities(Templates(None))
    found = await statuses(Config(models=models), tmp_path)
    await known.learn(tuple(found.values()))
    by_id = await known.of_all(tuple(found.values()))
    assert by_id.keys() == {"tiny", "seeing", "broken"}
    assert set(by_id["tiny"].capabilities or ()) == {"tools", "reasoning"}
    assert "template" in by_id["tiny"].recognised.why
    assert "vision" in (by_id["seeing"].capabilities or ())
    assert "reasoning" not in (by_id["seeing"].capabilities or ())
    assert by_id["broken"].capabilities == ()
    assert "template fails" in by_id["broken"].recognised.why
    assert await known.of(found["gone"]) is None


async def test_a_chosen_template_and_a_named_format_count(tmp_path: Path) -> None:
    named = msgspec.structs.replace(script(tmp_path, "named"), format="plain")
    switched = script(tmp_path, "switched")
    (tmp_path / "thinks.jinja").write_text(THINKS)
    templates = Templates(tmp_path)
    known = Capabilities(templates)
    found = await statuses(Config(models=(named, switched)), tmp_path)
    before = await known.of(found["switched"])
    templates.switch("switched", templates.read("thinks", "template"))
    after = await known.of(found["switched"])
    assert before is not None
    assert after is not None
    assert "reasoning" in (after.capabilities or ())
    assert before.template != after.template == THINKS
    plain = await known.of(found["named"])
    assert plain is not None
    assert plain.recognised.format.id == "plain"
    assert plain.recognised.why == "named in the configuration"


async def test_what_another_server_reports_later_is_known_then(tmp_path: Path) -> None:
    """Its first list may not know yet what a model can do."""
    found = await statuses(Config(models=(script(tmp_path, "far"),)), tmp_path)
    known, there = Capabilities(Templates(None)), RemoteTarget(upstream="there", model="far")
    for can in (None, ("tools",)):
        status = elsewhere(found["far"], msgspec.structs.replace(there, capabilities=can))
        later = await known.of(status)
        assert later is not None
        assert later.capabilities == can
        assert (await known.of_all([status]))["far"] == later


def elsewhere(status: ModelStatus, target: RemoteTarget) -> ModelStatus:
    """The same model, run by another server."""
    assert status.entry is not None
    files = msgspec.structs.replace(status.entry.files, remote=target, chat_template=None)
    entry = msgspec.structs.replace(status.entry, files=files)
    return msgspec.structs.replace(status, entry=entry)
