"""The error of a command that failed."""


class CommandFailed(Exception):
    """The message is for the user; exit status 1."""
