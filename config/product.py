"""What is installed is called this, and has this version: pyproject.toml reads both here."""

DISTRIBUTION = "roundhouse-llm"  # on PyPI `roundhouse` is another project
VERSION = "0.3.0"
