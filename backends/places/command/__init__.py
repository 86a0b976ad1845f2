"""A model that a command serves: a process of its own, whose API is asked on a loopback port."""
