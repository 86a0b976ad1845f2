"""llama.cpp with continuous batching: one `llama_decode` for all sequences, prompts in chunks
between.

Every sequence is a list of tokens of which the first `fed` are in the KV cache. A step feeds each
running answer its newest token, or reads a piece of a prompt (`backends.engines.prefill`), or both
where that costs nobody anything. A job whose last token has been fed gets a new one drawn. So
prompt, answer, forced tokens and a recomputed answer are all one thing. Where a prompt has come to
a picture, the image encoder runs in a thread of its own, and a later step puts its embeddings into
the cache.
"""

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from backends.contract.beginnings import AT_EASE, SOON, Pace
from backends.contract.errors import GenerationFailed, while_generating
from backends.contract.protocol import Generation
from backends.engines.cells import Slot
from backends.engines.constraints import Mask
from backends.engines.engine import JobFailed, PromptScored, StepResult, Token
from backends.engines.llamacpp.batch import NO_ROOM, Batch, Fed, LlamaJob
from backends.engines.llamacpp.kv_cache import LlamaSlotKeeper
from backends.engines.llamacpp.loading import LlamaModel, use_adapters
from backends.engines.llamacpp.picture_encoder import EncoderTask, EncoderThread
from backends.engines.llamacpp.rows import Rows
from backends.engines.llamacpp.sequences import LlamaSequences
from backends.engines.prefill import BLOCK, STEP_SECONDS
from backends.engines.speculation import NO_DRAFT, Speculation, StepDraft
from backends.engines.tokenizing import VocabularyTokenizer


class LlamaCppEngine(LlamaSequences, VocabularyTokenizer):
    """See `backends.engines.engine.Engine`. Owns the model and the context it was given."""

    def __init__(
        self, loaded: LlamaModel, speculation: Speculation | None = None, pace: Pace = AT_EASE
    ) -> None:
        super().__init__(loaded, speculation, pace)
        self._context = loaded.context
        self._api = loaded.context.api
        self._vocabulary = loaded.vocabulary
        self._encoder = EncoderThread(loaded.pictures, beside=not loaded.on_device)
        self._batch = Batch(loaded.options.batch_size, self._api)
        self._threads = loaded.threads
        self._rows = Rows(loaded.context, loaded.vocabulary)
        self.keeper = LlamaSlotKeeper(
            self._slots, self._cache, self._running, loaded.info, self._take_back_all
        )
        VocabularyTokenizer.__init__(self, loaded.vocabulary)

    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        scales = self.info.adapter_scales(job.adapters)
        if scales != self._adapters:  # no job with others is running
            use_adapters(self._loaded, scales)
            self._adapters = scales
        running = self._running[key] = self._job(key, job)
        running.mask = mask
        if self.info.drafts:
            self._speculation.admit(key, running.tokens, job.owner, job.drafts)
        return running.prompt_tokens

    def _job(self, key: int, job: Generation) -> LlamaJob:
        length = self.info.context_length
        if not job.images:
            return LlamaJob(key, job, list(job.prompt), self._vocabulary, length)
        assert self._encoder.pictures is not None  # else the driver refuses pictures
        seen = self._encoder.pictures.prepare(job)
        return LlamaJob(key, job, seen.cells, self._vocabulary, length, seen.pictures)

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        running = self._shortened(key, count)
        running.rewound(banned)
        # The newest token left is fed again: the logits after it are gone.
        keep = running.whole(min(running.fed, len(running.tokens) - 1))
        if running.slot is not None and keep < running.fed:
            self._go_back(running, keep)

    def release(self, key: int) -> int:
        self._encoder.drop(self._running[key])
        return super().release(key)

    def recover(self) -> None:
        self._encoder.drop()
        self._forget_jobs()
        self._cache.clear()
        self._slots[:] = [Slot(slot.index) for slot in self._slots]

    def close(self) -> None:
        for running in self._running.values():
            self._cut_off(running)
        self.take_all_out()
        self.recover()
        self._encoder.close()
        self._loaded.free()

    def step(self) -> Sequence[StepResult]:
        forced, self._forced = self._forced, []
        if waiting := [running for running in self._running.values() if running.row is not None]:
            return [*forced, *map(self._draw_next, waiting)]
        failed = self._encode_images()
        self._coming = False
        work = self._decode()
        if not work and self._coming:
            time.sleep(SOON)
        elif not work:
            self._encoder.wait(STEP_SECONDS)
        read, self._read = self._read, []
        return [*forced, *failed, *read, *self._scored_and_drawn(work)]

    def _encode_images(self) -> Sequence[JobFailed]:
        """Use the embeddings of a finished task, and begin with the next."""
        task = self._encoder.take()
        if task is not None:
            try:
                task.work.result()
                self._place(task)
            except GenerationFailed as error:
                return [JobFailed(task.running.key, error)]
        self._encoder.begin(self._running.values())
        return ()

    def _place(self, task: EncoderTask) -> None:
        """Put the picture into the KV cache, unless its own job has to make room. Raises
        GenerationFailed, which is its own job's alone.
        """
        running, picture, pictures = task.running, task.picture, self._encoder.pictures
        assert pictures is not None  # it has encoded one
        while task.is_wanted:
            assert running.slot is not None
            place = running.position, running.slot.index
            code = pictures.decode(self._context, picture, *place)
            if code == 0:
                running.lag += picture.saved
                self._feed(running, picture.end - picture.start)
                return
            if code == NO_ROOM:
                self._make_room()
            if running.slot is not None:  # else room was made of it
                self._go_back(running, running.fed)
            if code != NO_ROOM:
                raise GenerationFailed(f"an image could not be decoded (code {code})")

    def _decode(self) -> list[Fed]:
        """Feed what this step has room for; returns who was fed how much, in the batch's order."""
        starting = True
        while True:
            work = self._compose(starting=starting)
            if not work:
                return work
            answering = sum(fed.count for fed in work) == len(work)
            self._threads.begin(self._batch.rows)
            result = self._api.llama_decode(self._context, self._batch.ready())
            if self._loaded.on_device:
                self._api.llama_synchronize(self._context)  # wait here, without the GIL
            if result == 0:
                self._fed(work, self._threads.end(), answering=answering)
                return work
            if result != NO_ROOM:
                raise GenerationFailed(f"llama_decode failed with code {result}")
            if len(work) < self._batch.rows and answering:
                self._speculation.undone()
            else:
                self._make_room()
            starting = False  # whoever made room would take it again

    def _compose(self, *, starting: bool) -> list[Fed]:
        """Newest tokens of all answers first, in slot order, with what was drafted for them where
        no prompt is read; then prompts.
        """
        self._batch.clear()
        answering = [r for r in self._running.values() if r.slot is not None and r.left == 1]
        # llama.cpp computes neighbouring sequences together when they come in order.
        answering.sort(key=lambda running: running.slot.index)  # type: ignore[union-attr]
        reading = len(answering) < len(self._running)
        drafts = self._drafts(answering) if starting and answering and not reading else {}
        work = [self._compose_answer(running, drafts) for running in answering]
        return self._with_prompts(work, starting=starting) if reading else work

    def _drafts(self, answering: Sequence[LlamaJob]) -> Mapping[int, StepDraft]:
        """What to verify behind their newest tokens, by key."""
        if not self.info.drafts or (self._cache.slides and self._layout.split and answering[1:]):
            return {}  # see `KvCache.slides`
        # llama.cpp moves recurrent states until those of a pass stand side by side, but not the
        # earlier ones that it keeps of a pass (llama-memory-recurrent.cpp, find_slot): these would
        # be another sequence's. So a plain pass comes first.
        if self._cache.keeps_states and not self._together.issuperset(r.key for r in answering):
            return {}
        rows = min(self._loaded.outputs, self._loaded.micro_batch_size) // len(answering) - 1
        rows, length = min(rows, self._cache.goes_back), self.info.context_length
        return self._speculation.drafts(
            [self._answering(one, min(rows, length - len(one.tokens))) for one in answering]
        )

    def _compose_answer(self, running: LlamaJob, drafts: Mapping[int, StepDraft]) -> Fed:
        assert running.slot is not None
        draft = drafts.get(running.key, NO_DRAFT)
        tokens = [running.tokens[-1], *draft.tokens]
        self._batch.chunk(tokens, running.position, running.slot.index, last=True, every=True)
        return Fed(running, 1, draft)

    def _with_prompts(self, work: list[Fed], *, starting: bool) -> list[Fed]:
        """`work`, and beside it what is forced and, when they are due, prompts. On CPUs less than a
        block in all, which is computed as each would be alone; else a piece in a pass of its own.
        """
        ready = list(self._ready(starting=starting))
        forced = [running for running in ready if running.fed >= running.prompt_tokens]
        answering = bool(work or forced)
        prompts = [running for running in ready if running.fed < running.prompt_tokens]
        due = self._prompts.is_due or not answering
        for running in [*forced, *(self._prompts.order(prompts) if due else ())]:
            room = self._loaded.micro_batch_size - self._batch.rows
            if room <= 0:
                break
            count = self._prompts.piece(self._until(running), room, answering=answering)
            if self._batch.rows + count >= BLOCK and not self._loaded.on_device and work:
                if any(fed.running in prompts for fed in work):
                    break
                self._batch.clear()
                work = []
            work.append(self._compose_piece(running, count))
            if running.scoring or self._cache.slides:
                break
        return work

    def _compose_piece(self, running: LlamaJob, count: int) -> Fed:
        assert running.slot is not None
        if running.scoring:  # each of the others keeps a row of its own
            count = max(1, min(count, self._loaded.outputs - len(self._running) + 1))
        chunk = running.tokens[running.fed : running.fed + count]
        last, at = count == running.left, (running.position, running.slot.index)
        self._batch.chunk(chunk, *at, last=last, every=running.scoring)
        return Fed(running, count)

    def _ready(self, *, starting: bool) -> Iterator[LlamaJob]:
        """Those whose prompts can be read now, oldest first; who can start does."""
        restored = False
        for running in self._running.values():
            if running.slot is not None and running.left == 1:
                continue
            if running.slot is None and not (starting and self._start(running)):
                continue
            if running.restoring is not None:
                waits, restored = restored, True  # one of them in a step
                if waits or not self._restored(running):
                    continue
            if self._until(running):  # else the next step computes a picture
                yield running

    @staticmethod
    def _until(running: LlamaJob) -> int:
        """How many of its cells may be computed together."""
        picture = running.picture()
        return running.until if picture is None else min(running.until, picture.start - running.fed)

    def _fed(self, work: Sequence[Fed], seconds: float, *, answering: bool) -> None:
        reading = any(fed.running.fed < fed.running.prompt_tokens for fed in work)
        slots = [fed.running.slot.index for fed in work if fed.running.slot is not None]
        in_order = answering and slots == sorted(slots)
        self._together = frozenset(fed.running.key for fed in work if in_order)
        for fed in work:
            fed.running.drafted = deque(fed.drafted.tokens)
            self._feed(fed.running, fed.count)
            if fed.running.reads:
                self._read += fed.running.progress()
        if answering:
            self._speculation.stepped(self._threads.needed)
        if reading:
            self._prompts.read(self._batch.rows, seconds)
            self._tell_waiting(work)
        else:
            self._prompts.answered(seconds)

    def _tell_waiting(self, work: Sequence[Fed]) -> None:
        """Whoever waits for the longest of the prompts in `work`."""
        fed = {one.running.key for one in work}
        waiting = [one for one in self._running.values() if one.reads and one.key not in fed]
        if waiting:
            ahead = max(one.running.left for one in work)
            for place, one in enumerate(sorted(waiting, key=lambda one: one.left), 1):
                self._read += one.progress(place, ahead)

    def _scored_and_drawn(self, work: Sequence[Fed]) -> list[PromptScored | Token | JobFailed]:
        """Log probabilities of prompts, and the next tokens of those that are fed whole."""
        results, row = list[PromptScored | Token | JobFailed](), 0
        for fed in work:
            running = fed.running
            if running.scoring:
                logprobs = partial(self._rows.prompt_logprobs, running, row + fed.count)
                results += self._scored(running, fed.count, logprobs)
            if not running.left:
                running.row = row + fed.count - 1
                results.append(self._draw_next(running, drafted=fed.drafted.meant))
            row += fed.rows
        return results

    def _draw_next(self, running: LlamaJob, drafted: int = 0) -> Token | JobFailed:
        """The next token, from the row that waits. Where it is the one that was drafted, the next
        row has the logits of the token behind it.
        """
        assert running.row is not None
        try:
            token = self._rows.draw(running, running.row)
        except Exception as error:  # noqa: BLE001 - its own parameters': the others go on
            return JobFailed(running.key, while_generating(error, "llama.cpp"))
        accepted = self._verified(running, token.id)
        return Token(token.key, token.id, token.logprob, drafted, accepted)

    def _advance(self, running: LlamaJob) -> None:
        assert running.row is not None
        running.row += 1
        running.drafted.popleft()
        self._feed(running, 1)

    def _cut_off(self, running: LlamaJob) -> None:
        running.row = None
        self._take_back(running)
