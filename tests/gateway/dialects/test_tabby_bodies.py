"""TabbyAPI's bodies where their JSON alone doesn't say it. The others: request.jsonl."""

from gateway.dialects.fields import read_given as read
from gateway.dialects.tabby import UnloadRequest, read_load


def test_no_body_at_all_is_an_empty_one() -> None:
    assert read(b"", UnloadRequest) == UnloadRequest()
    assert read(b'{"force": true}', UnloadRequest) == UnloadRequest(force=True)


def test_integral_floats_are_integers_in_load_bodies_too() -> None:
    load = read_load(b'{"model_name": "m", "max_seq_len": 4096.0, "rope_scale": 2.0}')
    assert load.asked == {"max_seq_len": 4096, "rope_scale": 2.0}
    assert isinstance(load.asked["max_seq_len"], int)
