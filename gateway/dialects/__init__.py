"""One folder per API. Each turns bytes into a request, and events into bytes; none knows HTTP or a model."""
