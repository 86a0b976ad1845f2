"""What a command ends with when it can't do what was asked."""


class CommandFailed(Exception):
    """The message is for the user; exit status 1."""
