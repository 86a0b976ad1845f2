"""The engines (floor 1): one container per engine behind one contract (`backends.protocol`)."""
