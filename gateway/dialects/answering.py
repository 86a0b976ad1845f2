"""What several APIs say alike about an answer: where it stops, whether it must be a call, how long
its model stays.
"""

import re
from collections.abc import Sequence

from gateway.dialects.fields import Fields
from gateway.request import Tool, ToolChoice

MAX_STOPS = 128  # OpenAI takes 4; a roleplay frontend sends one for each name in the scene
MAX_STOP_LENGTH = 1_000  # characters; every token's text is compared with each

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)", re.ASCII)
_DURATION = re.compile(rf"-?(?:{_PART.pattern})+", re.ASCII)
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_stop(fields: Fields, wire: str | list[str], field: str = "stop") -> tuple[str, ...]:
    """Empty strings are dropped: frontends send them for fields left blank. Raises
    InvalidRequest.
    """
    texts = [wire] if isinstance(wire, str) else wire
    if len(texts) > MAX_STOPS:
        raise fields.wrong(field, f"At most {MAX_STOPS} stop strings, got {len(texts)}.")
    if (longest := max(map(len, texts), default=0)) > MAX_STOP_LENGTH:
        message = f"At most {MAX_STOP_LENGTH} characters in a stop string, got {longest}."
        raise fields.wrong(field, message)
    return tuple(text for text in texts if text)


def read_choice_mode(fields: Fields, path: str, mode: str, tools: Sequence[Tool]) -> ToolChoice:
    """A tool choice that names no tool. Raises InvalidRequest."""
    match mode:
        case "none":
            return "none"
        case "auto":
            return "auto"
        case "required" if tools:
            return "required"
        case "required":
            raise fields.wrong(path, "A call can't be required without tools.")
    raise fields.wrong(path, f"Expected 'none', 'auto' or 'required', got {mode!r:.64}.")


def require_tool(fields: Fields, path: str, name: str, tools: Sequence[Tool]) -> None:
    """Raises InvalidRequest where none of `tools` has the name."""
    if all(tool.name != name for tool in tools):
        raise fields.wrong(path, f"There is no tool named {name!r:.64} in tools.")


def read_keep_alive(fields: Fields, wire: float | str | None) -> float | None:
    """Seconds, or Ollama's text form ("5m", "1h30m", "-1"). All negatives mean for good. Raises
    InvalidRequest.
    """
    match wire:
        case None:
            return None
        case str(text) if _NUMBER.fullmatch(text):
            seconds = float(text)
        case str(text) if _DURATION.fullmatch(text):
            seconds = _seconds(text)
        case str(text):
            message = f"Expected seconds, -1 or a duration like '5m', got {text!r:.64}."
            raise fields.wrong("keep_alive", message)
        case number:
            seconds = number
    return seconds if seconds >= 0 else -1.0


def _seconds(duration: str) -> float:
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(duration))
    return -seconds if duration.startswith("-") else seconds
