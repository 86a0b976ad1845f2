"""The record of one request while it is handled, and what others read of it: its standing now, its
report once it is over, its line in the log.

Keys never get here, and a prompt's end only where the configuration shows it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter, time
from typing import Any, Literal, TypeAlias

import anyio
import structlog

from backends.contract.protocol import PromptProgress
from config.values import alike
from gateway.answers.answer import Answer
from gateway.answers.encoding import Encoded
from gateway.answers.recording import Recording
from gateway.http.standing import Api, RequestReport, RequestStanding, Standing
from gateway.keys.access import ADMIN, Access
from gateway.registry import Waiting
from gateway.terms.errors import Cancelled, GatewayError
from gateway.terms.events import NO_USAGE, Usage

LONGEST_NAME = 200  # characters of what a client calls a model
SHOWN = 2000  # characters of a prompt's end, where prompts are shown at all
MOST_BODY = 1 << 20  # bytes of a request's body; what is behind them is not kept
NOTHING: Mapping[str, str] = {}

Stage: TypeAlias = Literal["queued", "loading"]

log = structlog.get_logger()


class RequestRecord:
    """Who asked which route for what, where it waits, and what became of it; never what was
    written, except where it is to be looked at (`body`, `recording`).

    `asks` is for requests that a model answers; what follows it is of these alone. Times are
    seconds since then.
    """

    def __init__(self, id: str, key: Callable[[], str | None] = lambda: None) -> None:
        """`key`: the label of the key that it came with, where nobody has said it before."""
        self.id = id
        self.key = key
        self.began = self._last = perf_counter()
        self.status = 0  # until the answer begins
        self.outcome = ""  # an error's code; "": what the status says
        self.refused = False  # by `auth`
        self.is_open = True  # its line in the log will be written
        self.method = self.path = ""
        self.body, self.body_bytes = b"", 0  # its beginning; of the whole
        self._fields: dict[str, Any] = {}
        self.access = ADMIN
        self.number = 0  # among all that models answer; until it is entered
        self.recording: Recording | None = None
        self.answered: float | None = None  # when its job was handed to the engine
        self.error: GatewayError | None = None
        self.report: RequestReport | None = None
        self.moved = False  # its standing is another than the one that was told
        self.api = self._model = ""
        self._shows_prompt = False
        self._answer: Answer | Encoded | None = None
        self._stages: list[tuple[Stage, float]] = []  # and when each began
        self._first: float | None = None
        self._scope: anyio.CancelScope | None = None
        self._news: Waiting | None = None
        self._read: PromptProgress | None = None  # of the prompt, while that takes long
        self._prompt: str | None = None
        self._remarks = NOTHING

    def apart(self) -> "RequestRecord":
        """For what goes on when this request is over: it has the same id, and logs for itself."""
        record = RequestRecord(self.id)
        record.is_open = False
        record.method, record.path = self.method, self.path
        record.body, record.body_bytes = self.body, self.body_bytes
        return record

    def sent(self, body: bytes) -> None:
        """The whole body, of which the beginning is kept to be looked at."""
        self.body, self.body_bytes = body[:MOST_BODY], len(body)

    def tell(
        self, say: Callable[..., object], *, route: str, client: tuple[str, int] | None
    ) -> None:
        """Write its line in the log."""
        gone = "left" if not self.status else "ok" if self.status < 400 else "error"
        fields = {
            "status": self.status or None,
            "outcome": self.outcome or gone,
            "seconds": round(perf_counter() - self.began, 3),
            **self._fields,
        }
        named = {"request": self.id, "method": self.method, "route": route, "key": self.key()}
        say("request", **named, client=client[0] if client else "", **fields)

    def asks(
        self,
        api: Api,
        named: str,
        model: str,
        access: Access,
        *,
        recording: Recording | None = None,
        shows_prompt: bool = False,
    ) -> None:
        """A model is to answer it: `model`, "" where `named`, the client's word, means none."""
        self.began = self._last = perf_counter()
        self._began_at = time()
        self.api, self._model, self.access = api, model, access
        self.key = lambda: access.label
        self.recording, self._shows_prompt = recording, shows_prompt
        if named:
            self._fields["asked"] = named[:LONGEST_NAME]

    @contextmanager
    def cancellable(self) -> Iterator[None]:
        """Raises Cancelled where `cancel` was called meanwhile."""
        with anyio.CancelScope() as self._scope:
            yield
        if self._scope.cancelled_caught:
            raise Cancelled("The request was cancelled on this server.")

    def cancel(self) -> None:
        """End it; its client gets an error. Does not wait."""
        if self._scope is not None:
            self._scope.cancel()

    def waits(self, news: Waiting) -> None:
        """Where the request stands in line now."""
        if not self._stages or self._stages[-1][0] != news.stage:
            self._stages.append((news.stage, perf_counter()))
        self._news, self.moved = news, True
        log.debug("request waits", request=self.id, stage=news.stage, position=news.position)

    def answered_by(
        self, answer: Answer | Encoded, remarks: Mapping[str, str], gap: Callable[[float], object]
    ) -> None:
        """Now it is known which model answers. `remarks`: for the log, since few clients show
        headers; `gap` is called with the seconds between two deltas.
        """
        self._answer, self._remarks, self._gap = answer, remarks, gap
        self._model, self.moved = answer.model, True
        if isinstance(answer, Answer):
            answer.tell_reading(self.reads)
            if self._shows_prompt:
                self._prompt = answer.prompt_ending(SHOWN)
        if self.recording is not None:
            self.answered = perf_counter() - self.began
            answer.record(self.recording)
        prompt = answer.usage().prompt_tokens
        log.debug("request begins", request=self.id, model=answer.model, prompt_tokens=prompt)

    def reads(self, progress: PromptProgress) -> None:
        """Its prompt is so far, or waits for another's."""
        self._read, self.moved = progress, True

    def reads_so_far(self) -> str:
        """How far its prompt is, in words; "" where nothing is known, or it is read."""
        read = self._still_read()
        if read is None:
            return ""
        if read.position:
            return f"reading {read.ahead:,} tokens for another request"
        return f"reading the prompt, {read.done:,} of {read.total:,} tokens"

    def _still_read(self) -> PromptProgress | None:
        return self._read if self._first is None else None

    def delta(self) -> None:
        """A delta was sent."""
        now = perf_counter()
        if self._first is None:
            self._first, self.moved = now - self.began, True
            log.debug("first text", request=self.id, seconds=round(self._first, 3))
        else:
            self._gap(now - self._last)
        self._last = now

    def end(self, outcome: str, *, is_fault: bool) -> RequestReport:
        """It is over. The log says so in the request's line; in one of its own where that is
        written already.
        """
        usage = self._answer.usage() if self._answer else None
        self.report = report = RequestReport(
            standing=self._standing(usage or NO_USAGE, outcome),
            access=self.access,
            usage=usage,
            is_fault=is_fault,
        )
        self._answer = None
        fields = {**_fields(report.standing), **self._remarks}
        if self.is_open:
            self._fields.update(fields)
        else:
            log.info("answered", request=self.id, key=self.access.label, **fields)
        return report

    def standing(self) -> RequestStanding:
        """As it is now; of one that is over, the last."""
        if self.report is not None:
            return self.report.standing
        return self._standing(self._answer.usage() if self._answer else NO_USAGE)

    def _standing(self, usage: Usage, outcome: str | None = None) -> RequestStanding:
        """`outcome`: it ends here."""
        answer = self._answer
        news: Waiting | PromptProgress | None = None
        if outcome is None:
            news = self._news if answer is None else self._still_read()
        now, first = perf_counter(), self._first
        seconds = now - self.began
        if answer is not None:
            queued, loading = answer.queued_seconds, answer.load_seconds
        else:
            queued, loading = waited(self._stages, now)
        since = seconds - first if first is not None else 0.0
        return alike(RequestStanding, usage)(
            number=self.number,
            request=self.id,
            key=self.access.label,
            api=self.api,
            model=self._model,
            state="done" if outcome is not None else self._state(),
            place=news.position or None if news else None,
            percent=news.percent if news else None,
            began_at=self._began_at,
            seconds=seconds,
            queued_seconds=queued,
            load_seconds=loading,
            ttft=first,
            tokens_per_second=usage.completion_tokens / since if since > 0 else None,
            outcome=outcome,
            prompt=self._prompt,
            parted=self._remarks.get("parted"),
        )

    def _state(self) -> Standing:
        if self._answer is None:
            return self._news.stage if self._news is not None else "queued"
        return "prompt" if self._first is None else "answering"


def waited(stages: Sequence[tuple[Stage, float]], until: float) -> tuple[float, float]:
    """Seconds queued and loading, by when each stage began: for those never served."""
    ends = [*(since for _, since in stages[1:]), until]
    spent: dict[Stage, float] = {"queued": 0.0, "loading": 0.0}
    for (stage, since), end in zip(stages, ends, strict=False):
        spent[stage] += end - since
    return spent["queued"], spent["loading"]


def _fields(standing: RequestStanding) -> Mapping[str, Any]:
    """For the log."""
    first = standing.ttft
    return {
        "api": standing.api,
        "model": standing.model,
        "outcome": standing.outcome,
        "prompt_tokens": standing.prompt_tokens,
        "cached_tokens": standing.cached_tokens,
        "completion_tokens": standing.completion_tokens,
        "queued": round(standing.queued_seconds, 3),
        "loading": round(standing.load_seconds, 3),
        "ttft": None if first is None else round(first, 3),
        "seconds": round(standing.seconds, 3),
    }
