"""The model list and the error envelope, as the official client reads them."""

import msgspec
import pytest
from openai.types import Model

from gateway.dialects.models import ModelList
from gateway.dialects.openai import ModelCard, envelope
from gateway.terms.errors import GatewayError, InvalidRequest, ModelNotFound, QueueFull


def test_a_card_is_a_model_of_the_official_client() -> None:
    card = ModelCard(id="org/name", created=1_700_000_000, state="loaded", context_length=4096)
    body = msgspec.json.decode(msgspec.json.encode(card))
    model = Model.model_validate(body)
    assert (model.id, model.object, model.owned_by) == ("org/name", "model", "roundhouse")
    assert (body["state"], body["context_length"], body["size_bytes"]) == ("loaded", 4096, None)


def test_the_list_keeps_the_order() -> None:
    cards = [ModelCard(id=name, created=0) for name in ("b", "a")]
    body = msgspec.json.decode(msgspec.json.encode(ModelList(cards)))
    assert body["object"] == "list"
    assert [Model.model_validate(entry).id for entry in body["data"]] == ["b", "a"]


def test_no_models_are_an_empty_list() -> None:
    assert msgspec.json.encode(ModelList([])) == b'{"object":"list","data":[]}'


@pytest.mark.parametrize(
    ("error", "kind", "param", "code"),
    [
        (InvalidRequest("m", param="n"), "invalid_request_error", "n", None),
        (ModelNotFound("m", param="model"), "invalid_request_error", "model", "model_not_found"),
        (QueueFull("m", retry_after=2), "rate_limit_error", None, "queue_full"),
    ],
)
def test_an_error_is_openais_envelope(
    error: GatewayError, kind: str, param: str | None, code: str | None
) -> None:
    assert msgspec.to_builtins(envelope(error)) == {
        "error": {"message": "m", "type": kind, "param": param, "code": code}
    }
