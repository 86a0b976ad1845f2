"""The configuration: every option with its default and its reason, as frozen structs."""
