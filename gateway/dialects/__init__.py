"""One module or folder per API: bytes to a request, events to bytes. None knows HTTP or a model."""
