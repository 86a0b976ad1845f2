"""llama.cpp with continuous batching: one `llama_decode` for all sequences, prompts in chunks
between.

Every sequence is a list of tokens of which the first `fed` are in the KV cache. A step feeds each
running answer its newest token and spends what is left of its time on the oldest unfinished
prompts. A job whose last token has been fed gets a new one drawn. So prompt, answer, forced tokens
and a recomputed answer are all one thing. Where a prompt has come to a picture, the image encoder
runs in a thread of its own, and a later step puts its embeddings into the cache.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec
from llama_cpp import llama_cpp as api

from backends.cells import WORTHWHILE, Placement, Slot, common, place
from backends.constraints.matcher import Mask
from backends.engine import JobFailed, PromptRead, PromptScored, Token
from backends.errors import GenerationFailed, OutOfMemory, while_generating
from backends.llamacpp.batch import Batch, KvCache, LlamaJob
from backends.llamacpp.loading import LlamaModel
from backends.llamacpp.pictures import EncoderTask, EncoderThread
from backends.llamacpp.rows import Rows
from backends.llamacpp.sampling import Chain
from backends.llamacpp.slots import LlamaSlotKeeper
from backends.protocol import Generation, ModelInfo, Scored

if TYPE_CHECKING:
    from backends.llamacpp.pictures import MtmdEncoder

# a prompt chunk is cut so that a step takes no longer: others' tokens don't stall
STEP_SECONDS = 0.05
SMALLEST_CHUNK = 32
FIRST_GUESS = 2_000.0  # prompt tokens per second, until measured
GROWTH = 64  # cells kept free for each answer in a shared pool before another one starts
NO_ROOM = 1  # llama_decode: no free cells for this batch; nothing was changed


class LlamaCppEngine:
    """See `backends.engine.Engine`. Owns the model and the context it was given."""

    def __init__(self, loaded: LlamaModel) -> None:
        self._loaded = loaded
        self._context = loaded.context
        self._vocabulary = loaded.vocabulary
        self._encoder_thread = _encoder_thread(loaded)
        self._cache = KvCache(loaded.context)
        self._slots = [Slot(index) for index in range(loaded.slots)]
        self._running: dict[int, LlamaJob] = {}
        self._forced: list[Token] = []
        self._read: list[PromptRead] = []  # to be reported at the end of the step
        self._batch = Batch(loaded.batch_size)
        self._threads = loaded.threads
        self._prompt_rate = FIRST_GUESS
        self._releases = 0
        self._rows = Rows(loaded.context, loaded.vocabulary)
        self.info: ModelInfo = loaded.info
        self.keeper = LlamaSlotKeeper(
            self._slots, loaded.context, self._cache, self._running, loaded.info
        )
        self.tokenize = loaded.vocabulary.tokenize
        self.detokenize = loaded.vocabulary.detokenize
        self.piece = loaded.vocabulary.piece
        self.ends = loaded.vocabulary.ends.__contains__

    # -- jobs ------------------------------------------------------------------------------------

    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        running = self._seeing(key, job) if job.images else self._reading(key, job)
        running.mask = mask
        self._running[key] = running
        self._threads.pause()
        return running.prompt_tokens

    def _reading(self, key: int, job: Generation) -> LlamaJob:
        chain = Chain(job, self._vocabulary, self.info.context_length)
        return LlamaJob(key, job, chain, list(job.prompt))

    def _seeing(self, key: int, job: Generation) -> LlamaJob:
        assert self._encoder_thread is not None  # else the driver refuses pictures
        seen = self._encoder_thread.pictures.prepare(job)
        text = msgspec.structs.replace(job, prompt=tuple(cell for cell in seen.cells if cell >= 0))
        try:
            chain = Chain(text, self._vocabulary, self.info.context_length)
        except BaseException:
            seen.free()
            raise
        return LlamaJob(key, job, chain, seen.cells, seen.pictures)

    def force(self, key: int, tokens: Sequence[int]) -> None:
        running = self._running[key]
        room = self.info.context_length - len(running.tokens)
        for token in tokens[:room]:
            running.tokens.append(token)
            running.chain.accept(token)
            self._forced.append(Token(key, token))

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        running = self._running[key]
        kept = [token for token in self._forced if token.key != key]
        count += len(self._forced) - len(kept)
        self._forced = kept
        del running.tokens[len(running.tokens) - count :]
        running.rewound(self._vocabulary, self.info.context_length, banned)
        # The newest token left is fed again: the logits after it are gone.
        keep = running.whole(min(running.fed, len(running.tokens) - 1))
        if running.slot is None or keep == running.fed:
            return
        running.fed, running.lag = keep, running.lag_at(keep)
        if self._cache.cut(running.slot.index, running.position):
            del running.slot.tokens[keep:]
        else:  # the rest of a cut sequence is of no use to this model: it is computed anew
            self._start_over(running)

    def release(self, key: int) -> int:
        running = self._running.pop(key)
        if self._encoder_thread is not None:
            self._encoder_thread.drop(running)
        running.free()
        self._leave(running)
        self._forced = [token for token in self._forced if token.key != key]
        return running.cached

    def _leave(self, running: LlamaJob) -> None:
        """The slot is idle again; its cells stay until room is needed."""
        if running.slot is not None:
            self._releases += 1
            running.slot.busy, running.slot.used = False, self._releases
            running.slot = None

    def recover(self) -> None:
        if self._encoder_thread is not None:
            self._encoder_thread.drop()
        for running in self._running.values():
            running.free()
        self._running.clear()
        self._forced.clear()
        self._cache.clear()
        self._slots[:] = [Slot(slot.index) for slot in self._slots]

    def close(self) -> None:
        self.recover()
        if self._encoder_thread is not None:
            self._encoder_thread.close()
        self._loaded.free()

    # -- a step ----------------------------------------------------------------------------------

    def step(self) -> Sequence[Token | PromptScored | PromptRead | JobFailed]:
        forced, self._forced = self._forced, []
        failed = (
            self._encode_images(self._encoder_thread) if self._encoder_thread is not None else ()
        )
        work = self._decode()
        if not work and self._encoder_thread is not None:
            self._encoder_thread.wait(STEP_SECONDS)
        read, self._read = self._read, []
        return [*forced, *failed, *read, *self._score_all(work), *self._draw_all(work)]

    def _encode_images(self, encoder: EncoderThread) -> Sequence[JobFailed]:
        """Use the embeddings of a finished task, and begin with the next."""
        task = encoder.take()
        if task is not None:
            try:
                task.check()
                self._place(encoder.pictures, task)
            except GenerationFailed as error:
                return [JobFailed(task.running.key, error)]
        encoder.begin(self._running.values())
        return ()

    def _place(self, pictures: "MtmdEncoder", task: EncoderTask) -> None:
        """Put the picture into the KV cache, unless its own job has to make room. Raises
        GenerationFailed, which is its own job's alone.
        """
        running, picture = task.running, task.picture
        while task.is_wanted:
            assert running.slot is not None
            place = running.position, running.slot.index
            code = pictures.decode(self._context, picture, *place)
            if code == 0:
                running.feed(picture.end - picture.start)
                running.lag += picture.saved
                return
            if code == NO_ROOM:
                self._make_room()
            self._cut_back(running)
            if code != NO_ROOM:
                raise GenerationFailed(f"an image could not be decoded (code {code})")

    def _decode(self) -> list[tuple[LlamaJob, int]]:
        """Feed what this step has room for; returns who was fed how much, in the batch's order."""
        while True:
            work = self._compose()
            if not work:
                self._threads.pause()
                return work
            answering = len(work) == self._batch.rows
            self._threads.begin("decode" if answering else "prefill", self._batch.rows)
            result = api.llama_decode(self._context, self._batch.ready())
            if self._loaded.on_device:
                api.llama_synchronize(self._context)  # wait here, without the GIL
            if result == 0:
                self._fed(work, self._threads.end())
                return work
            if result != NO_ROOM:
                raise GenerationFailed(f"llama_decode failed with code {result}")
            self._threads.pause()
            self._make_room()

    def _compose(self) -> list[tuple[LlamaJob, int]]:
        """Newest tokens of all answers first, in slot order; then prompts, oldest first."""
        self._batch.clear()
        answering = [r for r in self._running.values() if r.slot is not None and r.left == 1]
        # llama.cpp computes neighbouring sequences together when they come in order.
        answering.sort(key=lambda running: running.slot.index)  # type: ignore[union-attr]
        self._batch.singles(
            [running.tokens[-1] for running in answering],
            [running.position for running in answering],
            [running.slot.index for running in answering],  # type: ignore[union-attr]
        )
        work = [(running, 1) for running in answering]
        if len(answering) < len(self._running):
            work += self._compose_prompts(self._chunk() - len(answering))
        return work

    def _chunk(self) -> int:
        timely = int(self._prompt_rate * STEP_SECONDS)
        return min(self._loaded.batch_size, max(SMALLEST_CHUNK, timely) + len(self._running))

    def _compose_prompts(self, room: int) -> list[tuple[LlamaJob, int]]:
        work = []
        outputs = max(1, self._loaded.outputs - len(self._running) + 1)  # each keeps one of its own
        for running in self._running.values():
            if room <= 0:
                break
            if running.slot is not None and running.left == 1:
                continue
            if running.slot is None and not self._start(running):
                continue
            assert running.slot is not None
            picture = running.picture()
            until = running.left if picture is None else picture.start - running.fed
            if not until:
                continue  # the next step computes the picture
            scoring = running.scoring
            count = min(room, until, outputs) if scoring else min(room, until)
            outputs -= count - 1 if scoring else 0
            chunk = running.tokens[running.fed : running.fed + count]
            last = count == running.left
            at = running.position, running.slot.index
            self._batch.chunk(chunk, *at, last=last, every=scoring)
            work.append((running, count))
            room -= count
        return work

    def _fed(self, work: Sequence[tuple[LlamaJob, int]], seconds: float) -> None:
        for running, count in work:
            running.feed(count)
            if running.job.reports_progress:
                self._read += running.progress()
        if self._batch.rows > SMALLEST_CHUNK:
            measured = self._batch.rows / max(seconds, 1e-6)
            self._prompt_rate += 0.3 * (measured - self._prompt_rate)

    def _score_all(self, work: Sequence[tuple[LlamaJob, int]]) -> list[PromptScored]:
        scored, row = [], 0
        for running, count in work:
            if running.scoring and (found := self._rows.prompt_logprobs(running, row, count)):
                scored.append(PromptScored(running.key, Scored(tuple(found))))
                running.scored += len(found)
            row += count
        return scored

    def _draw_all(self, work: Sequence[tuple[LlamaJob, int]]) -> list[Token | JobFailed]:
        drawn: list[Token | JobFailed] = []
        row = -1
        for running, count in work:
            row += count
            if running.left:
                continue
            try:
                drawn.append(self._rows.draw(running, row))
            except Exception as error:  # noqa: BLE001 - its own parameters': the others go on
                drawn.append(JobFailed(running.key, while_generating(error, "llama.cpp")))
        return drawn

    # -- cells -----------------------------------------------------------------------------------

    def _start(self, running: LlamaJob) -> bool:
        """Give the sequence a slot and what is already computed; False: better wait, see below."""
        if not self._fits(running):
            return False
        placement = self._place_of(running)
        if placement is None:
            return False
        if not running.scoring and self._worth_waiting(running, placement.keep):
            return False
        slot, source = self._slots[placement.slot], self._slots[placement.source]
        running.start(slot, self._take_over(slot, source, running, placement.keep))
        if running.job.reports_progress:
            self._read += running.progress()
        return True

    def _place_of(self, running: LlamaJob) -> Placement | None:
        """None: the slot that the job names is busy. There it finds that slot's cells alone."""
        named = running.job.slot
        if named is None:
            return place(running.known, self._slots, compact=self._loaded.split)
        slot = self._slots[named]
        return None if slot.busy else place(running.known, [slot], compact=False)

    def _fits(self, running: LlamaJob) -> bool:
        """A shared pool must hold it beside the running jobs, with room for their next ones."""
        started = [other for other in self._running.values() if other.slot is not None]
        if self._loaded.split or not started:
            return True
        taken = sum(len(other.tokens) + GROWTH for other in started)
        return taken + len(running.tokens) + GROWTH <= self._loaded.cells

    def _worth_waiting(self, running: LlamaJob, keep: int) -> bool:
        """Another job is computing more of the same beginning right now (n > 1, or many alike at
        once).
        """
        most = len(running.tokens) - 1
        return any(
            other.slot is not None
            and other.left > 1
            and min(common(other.tokens, running.tokens), most) >= max(keep, other.fed) + WORTHWHILE
            for other in self._running.values()
        )

    def _take_over(self, slot: Slot, source: Slot, running: LlamaJob, keep: int) -> int:
        """Leave exactly the first `keep` cells of `running` in `slot`; returns what could really be
        kept.
        """
        keep = running.whole(keep)
        if slot is not source and keep:
            self._cache.copy(source.index, slot.index)
        if not self._cache.cut(slot.index, keep - running.lag_at(keep)):
            keep = 0
        slot.tokens = source.tokens[:keep]
        return keep

    def _make_room(self) -> None:
        """Forget the least recently used idle slot; else the youngest job's cells: it is computed
        again later.
        """
        idle = [slot for slot in self._slots if not slot.busy and slot.tokens]
        if idle:
            self._empty(min(idle, key=lambda slot: slot.used))
            return
        started = [running for running in self._running.values() if running.slot is not None]
        if len(started) < 2:
            raise OutOfMemory("the KV cache is too small for this request")
        self._start_over(started[-1])

    def _start_over(self, running: LlamaJob) -> None:
        """Take its cells away: the sequence is computed again from its beginning."""
        assert running.slot is not None
        slot = running.slot
        self._leave(running)
        self._empty(slot)
        running.fed = 0

    def _cut_back(self, running: LlamaJob) -> None:
        """Forget what was decoded of a picture that can't be decoded whole."""
        slot = running.slot
        if slot is not None and not self._cache.cut(slot.index, running.position):
            self._start_over(running)

    def _empty(self, slot: Slot) -> None:
        self._cache.forget(slot.index)
        slot.tokens = []


def _encoder_thread(loaded: LlamaModel) -> EncoderThread | None:
    if loaded.pictures is None:
        return None
    return EncoderThread(loaded.pictures, beside=not loaded.on_device)
