"""The pictures of a conversation: references in, decoded pictures out, under limits.

    pictures = Pictures(config.images)
    placed = pictures_in(request.messages)
    images = await pictures.of(placed)      # by URL; raises InvalidRequest, which names the part

Knows no model: whether one can see is asked before.
"""

from gateway.pictures.pictures import Pictures, Placed, pictures_in

__all__ = ["Pictures", "Placed", "pictures_in"]
