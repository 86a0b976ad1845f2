"""Why a picture can't be used. This room's own: `Pictures` adds whose picture it is."""


class ImageRefused(Exception):
    """The message completes "The image …". A client reads it: it tells nothing of our network."""
