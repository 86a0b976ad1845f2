"""What crosses between the two ends of a model: the contract, its messages, its bounds."""
