"""llama-server's slots: what each does, and its prompt cache saved, restored and erased.

Files lie in the configured folder alone. Orders are for administrators: they write files, and drop
what others have cached.
"""

import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import get_args

import anyio
from litestar import get, post
from litestar.types import ASGIApp

from backends.errors import BackendError
from backends.protocol import Slots, SlotState
from gateway.access import Access
from gateway.dialects.frames import body
from gateway.dialects.llamaserver import completion as wires
from gateway.dialects.llamaserver import request as wire
from gateway.errors import InvalidRequest, ModelUnavailable, NotFound, NotSupported, translated
from gateway.http.auth import AnyRequest
from gateway.http.openapi.models import Described, Routes
from gateway.http.request_record import audit
from gateway.http.services import Services, card
from gateway.http.sse import Plain, WholeErrand
from gateway.paths import within
from gateway.registry import ModelStatus


@get("/slots", access="user")
async def slots(
    request: AnyRequest, services: Services, model: str = "", fail_on_no_slot: str = ""
) -> ASGIApp:
    """List the slots of a model and their states: of the named model, otherwise the one in use,
    otherwise the default.
    """
    if not services.config.llamaserver.slots:
        raise NotSupported("The slots are not listed here (llamaserver.slots).")
    status = await _meant(services, model, request.auth)
    states = await _states(status)
    if fail_on_no_slot == "1" and all(one.task is not None for one in states):
        raise ModelUnavailable("All slots are busy.", retry_after=1)
    length = card(status, None, None).context_length or 0
    shows = request.auth.role == "admin"
    return Plain(
        body([wires.slot_wire(one, context_length=length, shows_params=shows) for one in states])
    )


@post("/slots/{slot:str}", status_code=200, access="admin")
async def order(request: AnyRequest, services: Services, slot: str, action: str = "") -> ASGIApp:
    """Save, restore or erase a slot's prompt cache, by `action`."""
    if action not in get_args(wires.Action):
        message = "action: Expected save, restore or erase, behind the question mark."
        raise InvalidRequest(message, param="action")
    if not (slot.isascii() and slot.isdigit() and len(slot) < 10):
        raise NotFound(f"Slot {slot!r:.40} not found.", param="id_slot")
    asked = wire.read(await request.body(), wires.SlotOrder)
    path = None if action == "erase" else _file(services, asked.filename)
    audit(request, f"{action} slot", model=asked.model, slot=int(slot))

    async def whole() -> bytes:
        async with services.tokenizer.leased(asked.model, request.auth) as lease:
            with translated():
                return await _carried_out(lease.local.slots, int(slot), action, path)

    return WholeErrand(whole)


async def _meant(services: Services, model: str, access: Access) -> ModelStatus:
    if model in wire.NO_MODEL:
        return await services.answering(access)
    return services.status((await services.find(model, access)).name, access)


async def _states(status: ModelStatus) -> list[SlotState]:
    """All idle where the model is not in memory. Nothing is loaded to know that."""
    entry = status.entry
    assert entry is not None, "a name that resolves has its files"
    if entry.files.remote is not None:
        raise NotSupported(f"{status.id} runs on another server, which has the slots.")
    if entry.files.task != "generate":
        raise NotSupported(f"{status.id} writes no texts and has no slots.")
    if status.slots is not None:
        try:
            return list(await status.slots.states())
        except BackendError:
            pass  # it has just been closed
    return [SlotState(id=number) for number in range(entry.options.max_concurrent)]


def _file(services: Services, name: str) -> Path:
    """Where a slot is saved. Raises NotSupported, InvalidRequest."""
    folder = services.config.llamaserver.slot_save_path
    if folder is None:
        raise NotSupported("Slots can't be saved: llamaserver.slot_save_path is not set.")
    if "/" in name:
        raise InvalidRequest("filename: Expected a name without a folder.", param="filename")
    if name.endswith(DIGEST):
        raise InvalidRequest(f"filename: {DIGEST} ends a digest's name.", param="filename")
    return within(Path(folder).expanduser(), name, "filename")


async def _carried_out(slots: Slots, slot: int, action: str, path: Path | None) -> bytes:
    started = time.perf_counter()
    if path is None:
        return body(wires.SlotErased(id_slot=slot, n_erased=await slots.erase(slot)))
    if action == "save":
        saved = await slots.save(slot)
        await anyio.to_thread.run_sync(_save, path, saved.data)
        return body(
            wires.SlotSaved(
                id_slot=slot,
                filename=path.name,
                n_saved=saved.tokens,
                n_written=len(saved.data),
                timings=wires.SavedTimings(_since(started)),
            )
        )
    data, verified = await anyio.to_thread.run_sync(_saved, path)
    return body(
        wires.SlotRestored(
            id_slot=slot,
            filename=path.name,
            n_restored=await slots.restore(slot, data),
            n_read=len(data),
            verified=verified,
            timings=wires.RestoredTimings(_since(started)),
        )
    )


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


# ------------------------------------------------------------------------------------------- files
# llama.cpp takes nearly any bytes for cells: of files with one changed byte most were restored, and
# answers went on from them. So a digest is kept beside each, in the form of `sha256sum -c`.

DIGEST = ".sha256"


def _save(path: Path, data: bytes | bytearray) -> None:
    """Both files, whole or not at all, and for their owner alone: they hold what people wrote.

    The digest comes first, so that a file that is there without its own is never ours.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(_beside(path), f"{sha256(data).hexdigest()}  {path.name}\n".encode())
        _write(path, data)
    except OSError as error:
        message = f"filename: {path.name} can't be written: {error.strerror}."
        raise InvalidRequest(message, param="filename") from error


def _write(path: Path, data: bytes | bytearray) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".saving-", delete=False) as file:
        unfinished = Path(file.name)
        try:
            file.write(data)
            file.flush()
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def _saved(path: Path) -> tuple[bytes, bool]:
    """What was saved, and whether a digest says that it is that; llama-server's files have none.

    Raises InvalidRequest, also where the digest says that it isn't.
    """
    try:
        if not path.is_file():
            raise FileNotFoundError(2, "no such file")
        data, digest = path.read_bytes(), _beside(path)
        if not digest.is_file():
            return data, False
        expected = digest.read_bytes().split(maxsplit=1)
    except OSError as error:
        message = f"filename: {path.name} can't be read: {error.strerror}."
        raise InvalidRequest(message, param="filename") from error
    if expected[:1] != [sha256(data).hexdigest().encode()]:
        message = (
            f"filename: {path.name} is not what was saved: its digest is another than that of "
            f"{digest.name}. Save the slot anew."
        )
        raise InvalidRequest(message, param="filename")
    return data, True


def _beside(path: Path) -> Path:
    """Where its digest is."""
    return path.with_name(path.name + DIGEST)


ROUTES: Routes = {
    slots: Described(gives=(list[wires.SlotWire],)),
    order: Described(
        takes=wires.SlotOrder,
        gives=(wires.SlotSaved, wires.SlotRestored, wires.SlotErased),
    ),
}
