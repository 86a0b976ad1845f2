"""The pictures of a conversation: references in, decoded pictures out, under limits.

    pictures = Pictures(config.images)
    placed = pictures_in(request.messages)
    async with pictures.fetched(placed) as album:   # as they were sent: before a model is there
        async with album.decoded() as images:       # by URL: when it is

Both raise InvalidRequest, which names the part. Knows no model: whether one can see is asked
before.
"""

from gateway.pictures.pictures import Album, ImageLoader, PlacedImage, images_in, with_data

__all__ = ["Album", "ImageLoader", "PlacedImage", "images_in", "with_data"]
