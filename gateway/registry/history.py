"""The history of earlier loads, kept in a small JSON file, so that the next start is right at once:
the memory and the time that a model took in one placement, how fast it wrote there, and how fast
each device is read.

A model is known by what its files begin with and their sizes, wherever they lie; a placement by the
options that it is loaded with, on cards of these sizes.

A file that can't be read or written is no reason to stop: one that is torn, or another program's or
version's, is begun anew, and the log says so.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import structlog
from msgspec import Meta

from backends.contract.catalog import CPU, Cards, ModelFiles
from backends.contract.protocol import MemoryNeed
from backends.machine.paths import replace_file
from config.engines import EngineOptions
from config.values import user_folder

log = structlog.get_logger(__name__)

VERSION = 2
HEAD = 64 * 1024  # bytes of each file that tell models apart, besides its size
# A token that is computed with less waits mostly for other things than memory.
LEAST_READ = 256 * 1024 * 1024
FASTER, SLOWER = 0.5, 0.1  # parts that a new figure has in what is known: others slow an answer
# What lies outside of these parts of the estimate was measured wrong: whatever else the machine did
# meanwhile must neither lock a model out nor let two of them take the same memory.
LEAST, MOST = 0.5, 1.5
NOTICED = 0.02  # by how much a pace differs before it is noted again
# What a file may say: others' figures are divided by these.
Size: TypeAlias = Annotated[int, Meta(ge=0, le=2**60)]  # bytes
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Pace: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e9)]  # steps a second
Bandwidth: TypeAlias = Annotated[float, Meta(ge=1e3, le=1e18)]  # bytes a second


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One load: bytes it took in all (None: could not be kept apart from others), and seconds.
    `exact`: the bytes are those of a process that has nothing else. `pace`: steps a second of an
    answer that was computed alone; None: there was none yet.
    """

    size: Size | None
    load_seconds: Seconds = 0.0
    devices: Mapping[str, Size] | None = None  # where it lay, if it had processes of its own
    exact: bool = False
    pace: Pace | None = None

    def corrected(self, estimate: MemoryNeed) -> MemoryNeed:
        """`estimate` with this total, within `LEAST` to `MOST` of it unless that is `exact`: what
        isn't weights or cache is the engine's. Snapshots come later. What processes of its own
        hold is all theirs.
        """
        if self.devices:
            return MemoryNeed(weights=0, cache=0, engine=sum(self.devices.values()))
        if (total := self.size) is None:
            return estimate
        if not self.exact:
            total = min(max(total, int(estimate.total * LEAST)), int(estimate.total * MOST))
        weights = min(estimate.weights, total)
        cache = min(estimate.cache, total - weights)
        engine = total - weights - cache
        return msgspec.structs.replace(estimate, weights=weights, cache=cache, engine=engine)


class Learned(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The file. `bandwidths`: bytes a second, by device and cards."""

    version: int
    loads: dict[str, Measurement] = {}
    bandwidths: dict[str, Bandwidth] = {}


class History:
    """Measurements by model, options and cards. `path` None: kept in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._learned = Learned(version=VERSION) if path is None else _read(path)
        self._cards: Cards = {}
        self._digests: dict[Path, tuple[ModelFiles, str]] = {}
        self.is_new = False  # something was learned since it was saved

    def begin(self, cards: Cards) -> None:
        """From now on it is of a machine with these."""
        self._cards = dict(cards)

    def get(self, files: ModelFiles, options: EngineOptions) -> Measurement | None:
        """The last load of this model with these options."""
        return self._learned.loads.get(self._key(files, options))

    def put(self, files: ModelFiles, options: EngineOptions, measurement: Measurement) -> None:
        """Remember it; a size that could not be measured leaves the earlier one."""
        key = self._key(files, options)
        earlier = self._learned.loads.get(key)
        if earlier is not None and measurement.size is None:
            measurement = msgspec.structs.replace(
                measurement, size=earlier.size, devices=earlier.devices, exact=earlier.exact
            )
        if earlier is not None and measurement.pace is None:
            measurement = msgspec.structs.replace(measurement, pace=earlier.pace)
        self._learned.loads[key] = measurement
        self.is_new = True

    def note_pace(self, files: ModelFiles, options: EngineOptions, pace: float) -> float:
        """It wrote so many steps a second; what is known of it now."""
        key = self._key(files, options)
        known = self._learned.loads.get(key, Measurement(size=None))
        mixed = _mixed(known.pace, pace)
        self._learned.loads[key] = msgspec.structs.replace(known, pace=mixed)
        self.is_new = True
        return mixed

    def note_reads(self, reads: Mapping[str, float], pace: float) -> None:
        """A step took `reads` bytes of each device, at so many steps a second: how fast the one of
        them is read of which that isn't known, or the only one.
        """
        if sum(reads.values()) < LEAST_READ:
            return
        known = {device: self.bandwidths.get(device) for device in reads}
        unknown = [device for device in reads if len(reads) == 1 or known[device] is None]
        unknown = unknown or [device for device in reads if device == CPU]
        if len(unknown) != 1:
            return
        (device,) = unknown
        others = sum(size / (known[one] or 1.0) for one, size in reads.items() if one != device)
        seconds = 1 / pace - others
        if seconds > 0.1 / pace:  # else it is lost in what the others take
            key = self._device(device)
            before = self._learned.bandwidths.get(key)
            self._learned.bandwidths[key] = _mixed(before, reads[device] / seconds)
            self.is_new = True

    @property
    def bandwidths(self) -> Mapping[str, float]:
        """Bytes a second that were read, of each device of which that is known."""
        keys = {device: self._device(device) for device in (CPU, *self._cards)}
        learned = self._learned.bandwidths
        return {device: learned[key] for device, key in keys.items() if key in learned}

    def forget_sizes(self, files: ModelFiles) -> bool:
        """What loads of the model took, with whatever options; their seconds stay.

        Whether anything was known.
        """
        digest, loads = self._digest(files), self._learned.loads
        known = [key for key in loads if key.startswith(f"{digest}#")]
        sized = [key for key in known if loads[key].size is not None]
        for key in sized:
            loads[key] = msgspec.structs.replace(loads[key], size=None, devices=None)
        return bool(sized)

    def save(self) -> None:
        """Write the file as a whole or not at all. Blocks; for a worker thread."""
        self.is_new = False
        if self._path is None:
            return
        try:
            replace_file(self._path, msgspec.json.format(msgspec.json.encode(self._learned)))
        except OSError as error:
            log.warning("measurements not saved", path=str(self._path), reason=str(error))

    def _device(self, name: str) -> str:
        return f"{name} {self._cards.get(name, 0)}"

    def _key(self, files: ModelFiles, options: EngineOptions) -> str:
        cards = sorted(self._cards.items())
        facts = msgspec.json.encode((files.size_bytes, options, cards), order="sorted")
        return f"{self._digest(files)}#{hashlib.sha256(facts).hexdigest()[:16]}"

    def _digest(self, files: ModelFiles) -> str:
        """Of what its files begin with; computed once for what was read of them."""
        known = self._digests.get(files.path)
        if known is None or known[0] is not files:
            known = self._digests[files.path] = files, digest(files)
        return known[1]


def digest(files: ModelFiles) -> str:
    """Of the files' sizes and of what they begin with, which says how large their tensors are; of
    the path, where there are none here.
    """
    found = hashlib.sha256(files.backend.encode())
    try:
        for path in sorted(files.parts) or [files.path]:
            with path.open("rb") as file:
                found.update(b"%d:" % path.stat().st_size + file.read(HEAD))
    except OSError:
        found.update(str(files.path).encode())
    return found.hexdigest()[:32]


def paced(pace: float) -> str:
    """What is said behind a sentence about where a model lies."""
    return f" ({pace:.3g} tokens/s were measured)"


def _mixed(known: float | None, new: float) -> float:
    if known is None:
        return new
    return known + (new - known) * (FASTER if new > known else SLOWER)


def default_path() -> Path:
    """The file of measurements for this user."""
    return user_folder() / "measurements.json"


def _read(path: Path) -> Learned:
    try:
        learned = msgspec.json.decode(path.read_bytes(), type=Learned)
        if learned.version == VERSION:
            return learned
        reason = f"it is of version {learned.version}, not {VERSION}"
    except FileNotFoundError:
        return Learned(version=VERSION)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        reason = str(error)
    log.warning("measurements begun anew", path=str(path), reason=reason)
    return Learned(version=VERSION)
