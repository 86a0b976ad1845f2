"""The engine the driver steps: a library's dynamic generator, one `iterate` at a time.

One `iterate` may draw several tokens of a job (accepted draft tokens, tokens held back with half a
character). The driver gets one of each job per step, so that it can stop or force after any of
them; the generator goes on when all are handed over.
"""

from collections.abc import Collection, Sequence

import torch

from backends.contract.protocol import Generation, ModelInfo
from backends.engines.constraints import Mask
from backends.engines.engine import JobFailed, Token
from backends.engines.exllama.faults import while_generating
from backends.engines.exllama.jobs import ExLlamaJob, Result, at_limit, tokens_of
from backends.engines.exllama.loading import ExLlamaModel
from backends.engines.tokenizing import VocabularyTokenizer


class ExLlamaEngine(VocabularyTokenizer):
    """See `backends.engines.engine.Engine`. Owns the models it was given."""

    def __init__(self, loaded: ExLlamaModel) -> None:
        super().__init__(loaded.vocabulary)
        self._loaded = loaded
        self._running: dict[int, ExLlamaJob] = {}
        self._trouble: Exception | None = None  # met where the driver expects none
        self._refused: list[JobFailed] = []  # jobs that could not be continued
        self._ends = sorted(loaded.vocabulary.ends)
        self.info: ModelInfo = loaded.info

    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        try:
            running = self._prepared(key, job, mask)
            self._begin(running)
        except Exception as error:  # noqa: BLE001 - the driver knows only our errors
            failure = while_generating(self._loaded.name, error)
        else:
            self._running[key] = running
            return len(running.prompt)
        raise failure

    def _prepared(self, key: int, job: Generation, mask: Mask | None) -> ExLlamaJob:
        """Raises InvalidJob."""
        with torch.inference_mode():
            self._loaded.adapt(self.info.adapter_scales(job.adapters))
        running = ExLlamaJob(key, job)
        running.drawing = self._loaded.drawing(job, mask)
        if job.images:
            pictures = self._loaded.pictures
            assert pictures is not None  # else the driver refuses pictures
            with torch.inference_mode():
                running.prompt, running.embeddings = pictures.prepare(job)
        room = self.info.context_length - len(running.prompt)
        running.limit = min(job.max_tokens or room, room)
        return running

    def _begin(self, running: ExLlamaJob) -> None:
        """A job that goes on where `running` stands, unless the driver will have enough."""
        if running.left <= 0:
            return
        made = self._loaded.job(running, self._ends)
        running.begin(made)
        self._loaded.generator.enqueue(made)

    def force(self, key: int, tokens: Sequence[int]) -> None:
        running = self._running[key]
        self._cancel(running)
        running.force(tokens)
        self._continue(running)

    def _continue(self, running: ExLlamaJob) -> None:
        """As `_begin`; where that fails it is this job's failure alone, for the coming step."""
        try:
            self._begin(running)
        except Exception as error:  # noqa: BLE001 - the library raises whatever it likes
            self._refused.append(self._failed(running, error))

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        """Both libraries could ban strings by themselves, exllamav2 neither within a grammar nor
        with guesses; here it is the same for all engines.
        """
        running = self._running[key]
        self._cancel(running)
        running.rewind(count, banned)
        self._continue(running)

    def release(self, key: int) -> int:
        running = self._running.pop(key)
        self._cancel(running)
        found = self._loaded.cached(running.first) if running.first else 0
        return min(found, len(running.prompt))  # it counts whole pages

    def _cancel(self, running: ExLlamaJob) -> None:
        if running.current is None:
            return
        try:
            self._loaded.generator.cancel(running.current)
        except Exception as error:  # noqa: BLE001 - reported by the next step
            self._trouble = error
        running.current = None

    def recover(self) -> None:
        """A generator whose step failed may have lost track of its pages: a new one is made."""
        self._running.clear()
        self._trouble = None
        self._refused = []
        self._loaded.renew()

    def close(self) -> None:
        self._running.clear()
        self._loaded.free()

    def step(self) -> Sequence[Token | JobFailed]:
        try:
            if not any(running.ready for running in self._running.values()):
                self._iterate()
            ready = [running for running in self._running.values() if running.ready]
            failed, self._refused = self._refused, []
            return [*failed, *(token for running in ready for token in running.hand_over())]
        except Exception as error:  # noqa: BLE001 - the library raises whatever it likes
            failure = while_generating(self._loaded.name, error)
        # Out here the error is gone, and with it the frames that held tensors.
        raise failure

    def _iterate(self) -> None:
        if self._trouble is not None:
            raise self._trouble
        results = self._loaded.generator.iterate()
        for running in self._running.values():
            if running.drawing is not None and running.drawing.error is not None:
                self._refused.append(self._failed(running, running.drawing.error))
        for result in results:
            if result["stage"] == "error":  # of one job; exllamav3 goes on with the others
                running = self._running[result["job"].identifier]
                running.current = None  # the generator has released it already
                self._refused.append(self._failed(running, result["error"]))
            elif result["stage"] == "streaming" and result["identifier"] in self._running:
                self._take(self._running[result["identifier"]], result)

    def _take(self, running: ExLlamaJob, result: Result) -> None:
        """The tokens of one job's result; what can't be read is that job's failure alone."""
        if result["eos"]:
            running.current = None
        try:
            running.write(tokens_of(result))
        except Exception as error:  # noqa: BLE001 - the library's results are whatever they are
            self._refused.append(self._failed(running, error))
            return
        if at_limit(result):
            self._continue(running)

    def _failed(self, running: ExLlamaJob, error: Exception) -> JobFailed:
        return JobFailed(running.key, while_generating(self._loaded.name, error))
