"""The console's backend: its files, and its event stream."""
