"""The record of each request, from its id to its one report and its line in the log; and all
records, of requests that run and of the last that are over.

The id and the log's line come from the outermost layer: so a request has both that no route ever
saw, and its error has the id that the log has. The hot path is `RequestRecord.delta`: less than a
microsecond, no locks. Keys never get here, and a prompt's end only where the configuration shows
it.
"""

import itertools
import uuid
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from time import perf_counter, time
from typing import Any, Literal, TypeAlias

import anyio
import msgspec
import structlog
from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from backends.contract.protocol import PromptProgress
from backends.contract.remote import Caller
from gateway.answers.answer import Answer
from gateway.answers.encoding import Encoded
from gateway.http.auth import READING, Authenticator
from gateway.http.inspector import Inspector, KeptBody
from gateway.http.standing import GAPS, Api, RequestReport, RequestStanding, Standing
from gateway.http.tracing import Trace, Tracing
from gateway.keys.access import Access
from gateway.keys.limits import UNLIMITED, Allowance, Charge, Limiter
from gateway.registry import Waiting
from gateway.terms.errors import (
    Cancelled,
    ClientLeft,
    GatewayError,
    InvalidKey,
    NotFound,
    NotSupported,
    ShuttingDown,
)
from gateway.terms.events import Usage
from gateway.terms.request import expected_tokens

LINE = "roundhouse.request"  # in a request's state: its `RequestLine`
ID_HEADER = "x-request-id"
LONGEST_ID = 64
LONGEST_NAME = 200  # characters of what a client calls a model

log = structlog.get_logger()


class RequestLine:
    """What the log will say of one request, gathered while it is handled: who asked which route for
    what, and what became of it; never what was written.

    What only reads is logged at debug, unless it fails: pages and dashboards ask many times a
    minute. So is what was refused for its key, which `auth.Refusals` logs in its own measure.
    """

    def __init__(self, request_id: str, label: Callable[[], str | None] = lambda: None) -> None:
        """`label`: of the key that it came with, where nobody has said it before."""
        self.id = request_id
        self._label = label
        self._access: Access | None = None
        self.began = perf_counter()
        self.status = 0  # until the answer begins
        self.outcome = ""  # an error's code; "": what the status says
        self.refused = False  # by `auth`
        self.is_open = True  # it will be written
        self.method = self.path = ""
        self.body = KeptBody()  # where it is to be looked at
        self._fields: dict[str, Any] = {}

    def add(self, fields: Mapping[str, Any]) -> None:
        """More to be said; nothing where it is written already."""
        self._fields.update(fields)

    def sent_by(self, access: Access) -> None:
        """Whoever admitted it knows its key."""
        self._access = access

    def key(self) -> str | None:
        """The label of the key; None: it has none that is known."""
        return self._label() if self._access is None else self._access.label

    def asks_for(self, model: str) -> None:
        """The model that the client named, "" for none."""
        if model:
            self._fields["asked"] = model[:LONGEST_NAME]

    def apart(self) -> "RequestLine":
        """For what goes on when this request is over: it has the same id, and logs for itself."""
        line = RequestLine(self.id)
        line.is_open = False
        line.method, line.path, line.body = self.method, self.path, self.body
        return line

    def reading(self, receive: Receive) -> Receive:
        """`receive`, of which the body is kept for the inspector."""

        async def noted() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                self.body.add(message["body"])
            return message

        return noted

    def fields(self) -> Mapping[str, Any]:
        """All of it, but for what the connection knows."""
        gone = "left" if not self.status else "ok" if self.status < 400 else "error"
        seconds = round(perf_counter() - self.began, 3)
        return {
            "status": self.status or None,
            "outcome": self.outcome or gone,
            "seconds": seconds,
            **self._fields,
        }


def line_of(request: Request[Any, Any, Any]) -> RequestLine:
    """Of the request that is handled."""
    line: RequestLine = request.scope["state"][LINE]
    return line


def audit(request: Request[Any, Any, Any], act: str, **what: str | int | None) -> None:
    """Log who is about to do something that others will notice, and that is allowed to them. What
    came of it is in the request's own line.
    """
    told = {
        name: value[:LONGEST_NAME] if isinstance(value, str) else value
        for name, value in what.items()
        if value is not None
    }
    client = request.client.host if request.client else ""
    line = line_of(request)
    log.info("audit", act=act, **told, key=line.key(), client=client, request=line.id)


class RequestLog:
    """An ASGI application around another."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Authenticator,
        inspector: Inspector,
        count: Callable[[str, str, int], None],
    ) -> None:
        """`count` is called with method, route and status of each request that has a route."""
        self._app = app
        self._keys = keys
        self._inspector = inspector
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        asked, headers = scope["method"], scope["headers"]
        # As GET (RFC 9110, 9.3.2); uvicorn, whose scope stays, sends no body. The root has its own,
        # by which Ollama's clients see that a server is there.
        if asked == "HEAD" and scope["path"] != "/":
            scope = {**scope, "method": "GET"}
            receive, send = _head_alone(send)
        given = _given_id(headers) or uuid.uuid4().hex
        line = RequestLine(given, lambda: self._label(scope))
        scope["state"][LINE] = line
        if self._inspector.enabled and scope["method"] == "POST":
            line.method, line.path = scope["method"], scope["path"]
            receive = line.reading(receive)

        def noted(message: Message) -> Awaitable[None]:  # no coroutine of its own for each chunk
            if message["type"] == "http.response.start":
                line.status = 0 if line.outcome == ClientLeft.code else message["status"]
                named = (ID_HEADER.encode(), line.id.encode())
                message = {**message, "headers": [*message["headers"], named]}
            return send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            line.is_open = False
            self._write(asked, scope, line)
            scope["state"].clear()  # or what is there, which has the scope, would stay with it

    def _write(self, method: str, scope: Scope, line: RequestLine) -> None:
        route = str(scope.get("path_template", ""))
        if route:
            self._count(method, route, line.status)
        reads = method in READING and line.status < 400
        say = log.debug if reads or line.refused else log.info
        client = scope["client"]
        say(
            "request",
            request=line.id,
            method=method,
            route=route or scope["path"][:LONGEST_NAME],
            key=line.key(),
            client=client[0] if client else "",
            **line.fields(),
        )

    def _label(self, scope: Scope) -> str | None:
        """Of the key that it came with; None where it has none that is known."""
        if self._keys.is_open:
            return None
        sent = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            return self._keys.admit(sent).label
        except InvalidKey:
            return None


def _head_alone(send: Send) -> tuple[Receive, Send]:
    """For a request that wants no body: whoever would stream one is told that the client left."""
    begun = anyio.Event()

    async def left() -> Any:
        await begun.wait()
        return {"type": "http.disconnect"}

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            begun.set()

    return left, sent


def _given_id(headers: Any) -> str:
    """The client's own, where a header can hold it; "" without."""
    for name, value in headers:
        if name == ID_HEADER.encode():
            given: str = value.decode("latin-1")
            usable = 0 < len(given) <= LONGEST_ID and given.isascii() and given.isprintable()
            return given if usable else ""
    return ""


Stage: TypeAlias = Literal["queued", "loading"]

LATELY = 200  # requests that are over
SHOWN = 2000  # characters of a prompt's end, where prompts are shown at all


class Waits:
    """How long a request stood in line, and how long of it for a load: for those never served."""

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._since = 0.0
        self._seconds: dict[Stage, float] = {"queued": 0.0, "loading": 0.0}

    def now(self, stage: Stage, time: float) -> None:
        """In `stage` from `time` on."""
        self.ended(time)
        self._stage, self._since = stage, time

    def ended(self, time: float) -> tuple[float, float]:
        """Seconds queued and loading."""
        seconds = self._seconds["queued"], self._seconds["loading"] = self.until(time)
        self._stage = None
        return seconds

    def until(self, time: float) -> tuple[float, float]:
        """Seconds queued and loading so far."""
        seconds = dict(self._seconds)
        if self._stage is not None:
            seconds[self._stage] += time - self._since
        return seconds["queued"], seconds["loading"]


class Books(msgspec.Struct, frozen=True):
    """Where a server's requests are entered. `notify` is called with each one's report."""

    notify: Callable[[RequestReport], None]
    activity: "Activity"
    limiter: Limiter
    inspector: Inspector
    tracing: Tracing | None = None


NOTHING: Mapping[str, str] = {}


class RequestRecord:
    """One request's, reported exactly once."""

    def __init__(
        self,
        books: Books,
        *,
        api: Api,
        model: str,
        line: RequestLine,
        access: Access,
        shows_prompt: bool = False,
    ) -> None:
        self._notify = books.notify
        self._activity = books.activity
        self._limiter = books.limiter
        self._tracing = books.tracing
        self._trace: Trace | None = None
        self._api = api
        self._model = model
        self.request = line.id
        self._line = line
        self.access = access
        self._charge: Charge | None = None  # of a key with limits
        self._shows_prompt = shows_prompt
        self._inspector = books.inspector
        self._inspection = books.inspector.begin(access.owner, line.id, line)
        self._answer: Answer | Encoded | None = None
        self._waits: Waits = Waits()
        self._began = self._last = perf_counter()
        self._began_at = time()
        self._first: float | None = None
        self._gaps = [0] * (len(GAPS) + 1)
        self._gaps_seconds = 0.0
        self._number = 0  # until it is kept
        self._scope: anyio.CancelScope | None = None
        self._news: Waiting | None = None
        self._read: PromptProgress | None = None  # of the prompt, while that takes long
        self._prompt: str | None = None
        self._remarks: Mapping[str, str] = NOTHING
        self._report: RequestReport | None = None

    @contextmanager
    def kept(
        self, wanted: object, was_cut_off: Callable[[], bool] = lambda: False
    ) -> Iterator[None]:
        """Around all of the answer; the report is made when it ends, on every path.

        `wanted`: the request, by which a key with limits is charged until it is known how many
        tokens it took. `was_cut_off`: whether it was cancelled because the client didn't read.
        Raises RateLimited.
        """
        outcome, is_fault = None, False  # cancelled: the client has left
        self._number = self._activity.began(self)
        if self._inspection is not None:
            self._inspector.enter(self._number, self._inspection)
        try:
            if self.access.limits != UNLIMITED:
                self._charge = self._begun_charge(wanted)
            with self._cancellable():
                yield
            outcome = "ok"
        except GatewayError as error:
            outcome, is_fault = error.code or error.type, _is_fault(error)
            self._note_error(error)
            raise
        except Exception:
            outcome, is_fault = "internal_error", True
            raise
        finally:
            gone = "send_timeout" if was_cut_off() else "left"
            self._close(outcome or gone, is_fault=is_fault)

    def _note_error(self, error: GatewayError) -> None:
        if self._inspection is not None:
            self._inspection.error = copy(error)  # without the frames that it was raised in

    def _begun_charge(self, wanted: object) -> Charge:
        access, expected = self.access, expected_tokens(wanted)
        return self._limiter.charge(time(), access.owner, access.limits, expected)

    def _end_charge(self, charge: Charge) -> None:
        if (answer := self._answer) is None:
            charge.settle(time(), 0, began=False)
            return
        usage = answer.usage()
        total = usage.prompt_tokens + usage.completion_tokens
        charge.settle(time(), total if usage.is_counted else None)

    def traced(self, caller: Caller) -> Caller:
        """`caller`, for servers elsewhere: what they do belongs to this request's trace."""
        if self._tracing is None:
            return caller
        trace = self._trace = self._tracing.begin(self._api, caller)
        return msgspec.structs.replace(caller, trace=trace.headers, served_by=trace.served_by)

    def allowance(self) -> Allowance:
        """What the key has left."""
        return self._limiter.allowance(time(), self.access.owner, self.access.limits)

    @contextmanager
    def _cancellable(self) -> Iterator[None]:
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
        self._waits.now(news.stage, perf_counter())
        self._news = news
        self._activity.moved(self._number)
        log.debug("request waits", request=self.request, stage=news.stage, position=news.position)

    def answered_by(self, answer: Answer | Encoded, remarks: Mapping[str, str] = NOTHING) -> None:
        """Now it is known which model answers. `remarks`: for the log, since few clients show
        headers.
        """
        self._answer = answer
        self._remarks = remarks
        self._model = answer.model
        if isinstance(answer, Answer):
            answer.tell_reading(self.reads)
        if self._shows_prompt:
            self._prompt = answer.prompt_ending(SHOWN)
        if self._inspection is not None:
            self._inspection.answered = perf_counter() - self._began
            answer.record(self._inspection.recording)
        self._activity.moved(self._number)
        prompt = answer.usage().prompt_tokens
        log.debug("request begins", request=self.request, model=answer.model, prompt_tokens=prompt)

    def reads(self, progress: PromptProgress) -> None:
        """Its prompt is so far, or waits for another's."""
        self._read = progress
        self._activity.moved(self._number)

    def reading(self) -> str:
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
            self._first = now - self._began
            self._activity.moved(self._number)
            log.debug("first text", request=self.request, seconds=round(self._first, 3))
        else:
            gap = now - self._last
            self._gaps[bisect_left(GAPS, gap)] += 1
            self._gaps_seconds += gap
        self._last = now

    def _close(self, outcome: str, *, is_fault: bool) -> None:
        answer = self._answer
        if self._charge is not None:
            self._end_charge(self._charge)
        self._waits.ended(perf_counter())
        queued, loading = self._waited()
        report = RequestReport(
            api=self._api,
            model=self._model,
            outcome=outcome,
            seconds=perf_counter() - self._began,
            queued=queued,
            loading=loading,
            first=self._first,
            gaps=tuple(self._gaps),
            gaps_seconds=self._gaps_seconds,
            usage=answer.usage() if answer else None,
            is_fault=is_fault,
            access=self.access,
        )
        self._report = report
        self._activity.ended(self._number)
        self._inspector.end(self._number, self.standing(), report.usage)
        self._log(report)
        self._notify(report)
        if self._trace is not None:
            self._trace.end(report)

    def _log(self, report: RequestReport) -> None:
        """In the request's line; in one of its own where that is written already."""
        fields = {**_fields(report), **self._remarks}
        if self._line.is_open:
            self._line.add(fields)
        else:
            log.info("answered", request=self.request, key=self.access.label, **fields)

    def standing(self) -> RequestStanding:
        """As it is now."""
        report, answer = self._report, self._answer
        news: Waiting | PromptProgress | None = None
        if report is None:
            news = self._news if answer is None else self._still_read()
        seconds = report.seconds if report else perf_counter() - self._began
        queued, loading = self._waited()
        usage = answer.usage() if answer else Usage(prompt_tokens=0, completion_tokens=0)
        return RequestStanding(
            number=self._number,
            request=self.request,
            key=self.access.label,
            api=self._api,
            model=self._model,
            state=self._state(),
            place=news.position or None if news else None,
            percent=news.percent if news else None,
            began_at=self._began_at,
            seconds=seconds,
            queued_seconds=queued,
            load_seconds=loading,
            ttft=self._first,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            drafted_tokens=usage.drafted_tokens,
            accepted_tokens=usage.accepted_tokens,
            tokens_per_second=self._speed(usage.completion_tokens, seconds),
            outcome=report.outcome if report else None,
            prompt=self._prompt,
            parted=self._remarks.get("parted"),
        )

    def _waited(self) -> tuple[float, float]:
        if self._answer is None:
            return self._waits.until(perf_counter())
        return self._answer.queued_seconds, self._answer.load_seconds

    def _state(self) -> Standing:
        if self._report is not None:
            return "done"
        if self._answer is None:
            return self._news.stage if self._news is not None else "queued"
        return "prompt" if self._first is None else "answering"

    def _speed(self, tokens: int, seconds: float) -> float | None:
        if self._first is None or seconds <= self._first:
            return None
        return tokens / (seconds - self._first)


class Activity:
    """One per server: the requests that run, and the last that are over, for administrators and for
    the key that sent them. A request that is not watched costs two entries in a table.
    """

    def __init__(self, lately: int = LATELY) -> None:
        self._numbers = itertools.count(1)
        self._running: dict[int, RequestRecord] = {}
        self._lately: deque[tuple[str, RequestStanding]] = deque(maxlen=lately)
        self._moved: set[int] = set()

    def began(self, record: RequestRecord) -> int:
        """Its number."""
        number = next(self._numbers)
        self._running[number] = record
        self._moved.add(number)
        return number

    def moved(self, number: int) -> None:
        """It waits elsewhere, or it is answered now."""
        if number in self._running:
            self._moved.add(number)

    def ended(self, number: int) -> None:
        """Its standing is the last."""
        record = self._running.pop(number)
        self._lately.append((record.access.owner, record.standing()))
        self._moved.add(number)

    def seen_by(self, access: Access) -> list[RequestStanding]:
        """Those that run, the newest first, then those that are over."""
        return [one for owner, one in self.all() if access.oversees(owner)]

    def all(self) -> Iterator[tuple[str, RequestStanding]]:
        """Each with its owner, in the order of `seen_by`."""
        for record in reversed(self._running.values()):
            yield record.access.owner, record.standing()
        yield from reversed(self._lately)

    def running(self, number: int) -> RequestStanding | None:
        """Of that request; None where it is over."""
        record = self._running.get(number)
        return None if record is None else record.standing()

    def take_moved(self, *, running: bool) -> list[tuple[str, RequestStanding]]:
        """What has changed since the last call, in the order it began; `running`: and all that
        runs, since its numbers grow. What came and was forgotten in between is left out.
        """
        numbers, self._moved = self._moved, set()
        over = [(owner, one) for owner, one in self._lately if one.number in numbers]
        now = [
            (record.access.owner, record.standing())
            for number, record in self._running.items()
            if running or number in numbers
        ]
        return sorted((*over, *now), key=lambda item: item[1].number)

    def cancel(self, number: int, access: Access) -> RequestStanding:
        """End a request that runs. Raises NotFound for one that doesn't, or that `access` may not
        see.
        """
        record = self._running.get(number)
        if record is None or not access.oversees(record.access.owner):
            raise NotFound(f"No running request {number}.", param="number")
        record.cancel()
        return record.standing()


def _is_fault(error: GatewayError) -> bool:
    """Whether an operator should look at it: not what a client did, what isn't offered, and what
    somebody ended.
    """
    ended = isinstance(error, Cancelled | NotSupported | ShuttingDown)
    return error.status_hint >= 500 and not ended


def _fields(report: RequestReport) -> Mapping[str, Any]:
    """For the log. Times are seconds."""
    usage = report.usage
    return {
        "api": report.api,
        "model": report.model,
        "outcome": report.outcome,
        "prompt_tokens": usage.prompt_tokens if usage else 0,
        "cached_tokens": usage.cached_tokens if usage else 0,
        "completion_tokens": usage.completion_tokens if usage else 0,
        "queued": round(report.queued, 3),
        "loading": round(report.loading, 3),
        "ttft": None if report.first is None else round(report.first, 3),
        "seconds": round(report.seconds, 3),
    }
