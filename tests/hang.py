"""When a test that waits is taken to hang. No promise of time: it passes beside any load."""

HANG = 180.0  # seconds
