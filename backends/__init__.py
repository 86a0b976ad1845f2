"""The engines: one container per engine behind one contract (`backends.contract.protocol`)."""
