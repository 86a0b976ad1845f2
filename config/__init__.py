"""The configuration (floor 0): every option with its default and its reason, as frozen structs."""
