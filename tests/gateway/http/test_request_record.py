"""What is known of a request while it runs."""

from gateway.http.request_record import Stage, waited


def test_waiting_is_distinguished_from_loading() -> None:
    stages: list[tuple[Stage, float]] = [("queued", 1.0), ("queued", 2.0), ("loading", 4.0)]
    assert waited([*stages, ("loading", 5.0)], 9.0) == (3.0, 5.0)
    assert waited([], 9.0) == (0.0, 0.0)
