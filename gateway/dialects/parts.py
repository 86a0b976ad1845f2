"""Parts of messages as both of OpenAI's APIs write them."""

from collections.abc import Sequence

import msgspec

from gateway.dialects.fields import Fields
from gateway.terms.request import ImagePart, Part, TextPart

IMAGE_SCHEMES = ("data:", "http:", "https:")
UNREADABLE = {
    "input_audio": "Audio",
    "audio_url": "Audio",
    "video_url": "Video",
    "input_video": "Video",
    "file": "File",
    "input_file": "File",
}


class ImageUrlWire(msgspec.Struct, frozen=True):
    """An image. It is always processed in full; only the detail "low" requests less."""

    url: str
    detail: str | None = None


class PartWire(msgspec.Struct, frozen=True):
    """One part of a message. `type` determines which fields apply."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrlWire | str | None = None


def read_parts(
    fields: Fields, path: str, content: str | Sequence[PartWire] | None
) -> tuple[Part, ...]:
    """What a message, or the output of a tool, says. Raises InvalidRequest."""
    match content:
        case None | "":
            return ()
        case str():
            return (TextPart(content),)
        case parts:
            return tuple(_part(fields, f"{path}[{k}]", part) for k, part in enumerate(parts))


def _part(fields: Fields, path: str, wire: PartWire) -> Part:
    match wire:
        case PartWire(type="text" | "input_text" | "output_text", text=str(text)):
            return TextPart(text)
        case PartWire(type="refusal", refusal=str(text)):
            return TextPart(text)
        case PartWire(type="image_url" | "input_image", image_url=ImageUrlWire(url)):
            return _image(fields, f"{path}.image_url.url", url)
        case PartWire(type="image_url" | "input_image", image_url=str(url)):
            return _image(fields, f"{path}.image_url", url)
        case PartWire(type="text" | "input_text" | "output_text"):
            raise fields.wrong(f"{path}.text", "This field is required.")
        case PartWire(type="refusal"):
            raise fields.wrong(f"{path}.refusal", "This field is required.")
        case PartWire(type="image_url" | "input_image"):
            raise fields.wrong(f"{path}.image_url", "This field is required.")
    if medium := UNREADABLE.get(wire.type):
        raise fields.wrong(f"{path}.type", f"{medium} parts ({wire.type!r}) are not supported.")
    raise fields.wrong(f"{path}.type", f"Parts of type {wire.type!r} are not known.")


def _image(fields: Fields, path: str, url: str) -> ImagePart:
    """A picture by its address."""
    if not url.startswith(IMAGE_SCHEMES):
        names = ", ".join(map(repr, IMAGE_SCHEMES))
        raise fields.wrong(path, f"Expected a URL that starts with {names}.")
    return ImagePart(url, field=f"{fields.prefix}{path}" if fields.prefix else None)
