"""Measurements of earlier loads: real memory and load time per model, kept in a small JSON file.

A file that can't be read or written is no reason to stop: it is begun anew, and the log says so.
"""

import hashlib
import tempfile
from pathlib import Path

import msgspec
import structlog

from backends.catalog import ModelFiles
from config.engines import EngineOptions
from config.folders import user_folder

log = structlog.get_logger(__name__)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One load: bytes it took in all (None: could not be kept apart from others), and seconds."""

    size: int | None
    load_seconds: float


class History:
    """Measurements by model and options. `path` None: kept in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Measurement] = _read(path) if path is not None else {}

    def get(self, files: ModelFiles, options: EngineOptions) -> Measurement | None:
        """The last load of this model with these options."""
        return self._known.get(_key(files, options))

    def put(self, files: ModelFiles, options: EngineOptions, measurement: Measurement) -> None:
        """Remember it; a size that could not be measured leaves the earlier one."""
        key = _key(files, options)
        if measurement.size is None and (earlier := self._known.get(key)) is not None:
            measurement = msgspec.structs.replace(measurement, size=earlier.size)
        self._known[key] = measurement

    def forget_sizes(self, path: Path) -> bool:
        """What loads of the model at `path` took, with whatever options; their seconds stay.

        Whether anything was known.
        """
        sized = {
            key: one
            for key, one in self._known.items()
            if one.size is not None and key.startswith(f"{path}#")
        }
        for key, one in sized.items():
            self._known[key] = msgspec.structs.replace(one, size=None)
        return bool(sized)

    def save(self) -> None:
        """Write the file as a whole or not at all. Blocks; for a worker thread."""
        if self._path is None:
            return
        try:
            _replace(self._path, msgspec.json.format(msgspec.json.encode(dict(self._known))))
        except OSError as error:
            log.warning("measurements not saved", path=str(self._path), reason=str(error))


def default_path() -> Path:
    """The file of measurements for this user."""
    return user_folder() / "measurements.json"


def _key(files: ModelFiles, options: EngineOptions) -> str:
    facts = msgspec.json.encode((files.size_bytes, options), order="sorted")
    return f"{files.path}#{hashlib.sha256(facts).hexdigest()[:16]}"


def _read(path: Path) -> dict[str, Measurement]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Measurement])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.warning("measurements begun anew", path=str(path), reason=str(error))
        return {}


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)
