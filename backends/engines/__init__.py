"""What runs where a model lies: in this process, in a worker, on another machine."""
