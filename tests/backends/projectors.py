"""Projectors (`mmproj`) that say what they are and hold nothing: for tests that load none."""

from pathlib import Path

import gguf

from training import gguf_file


def write_projector(path: Path, *, sees: bool = True) -> Path:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder" if sees else "clip.has_audio_encoder", True)
    gguf_file.finish(writer)
    return path
