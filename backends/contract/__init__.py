"""The contract between the two ends of a model: its structs, its messages, its bounds."""
