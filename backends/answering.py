"""What a job's next token leads to: its text, or that tokens are taken back, or the end.

Between the engine's tokens and the transcript stand the strings that the answer may not hold
(`banned_strings`) and the grammar that it is held to (`constraints.matcher`). All on the engine's
thread.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from backends.banned_strings import Taken, Verdict
from backends.engine import Engine, JobFailed, PromptRead, PromptScored, StepResult, Token
from backends.errors import BackendError
from backends.jobs import DriverJob
from backends.protocol import Output, Piece
from backends.transcript import Written


def tokens_left(results: Sequence[StepResult]) -> Counter[int] | None:
    """How many tokens each job has in `results`; None where none has more than one, as in nearly
    every step.
    """
    if len({result.key for result in results}) == len(results):
        return None
    return Counter(result.key for result in results if isinstance(result, Token))


def output_of(result: PromptScored | PromptRead | JobFailed) -> Output | BackendError:
    """What the job's reader hears of it."""
    match result:
        case PromptScored(scored=scored):
            return scored
        case PromptRead(progress=progress):
            return progress
        case JobFailed(error=error):
            return error


def write(running: DriverJob, engine: Engine, token: Token, ahead: int) -> Written:
    """`ahead`: how many tokens of the job the engine has handed over behind this one. They are void
    where `Written.void` says so.
    """
    ends, matcher = engine.ends(token.id), running.matcher
    if matcher is not None and not ends:
        matcher.take(token.id)
    last = matcher is not None and matcher.stopped
    text = engine.piece(token.id)
    if running.banned is None:
        written = running.transcript.add(token.id, text, token.logprob, ends=ends, last=last)
        return written if written.cause is not None else _followed(running, engine, written)
    verdict = running.banned.add(Taken(token.id, text, token.logprob, ends, last))
    return _carried_out(running, engine, verdict, ahead)


def _followed(running: DriverJob, engine: Engine, written: Written) -> Written:
    """With what must come next. Where nothing can follow that, with all of it and the end: there is
    nothing to compute.
    """
    matcher = running.matcher
    forced = written.force if matcher is None else matcher.force(written.force)
    if not forced:
        return written
    if matcher is None or not matcher.complete:
        engine.force(running.key, forced)
        return written
    pieces = [written.piece]
    for token in forced:
        matcher.take(token)
        text, ends, last = engine.piece(token), engine.ends(token), matcher.stopped
        written = running.transcript.add(token, text, None, ends=ends, last=last)
        pieces.append(written.piece)
        if written.cause is not None:
            break
    return msgspec.structs.replace(written, piece=_joined(pieces), force=())


def _carried_out(running: DriverJob, engine: Engine, verdict: Verdict, ahead: int) -> Written:
    assert running.banned is not None
    written, left = _written(running, verdict.final)
    if written.cause is not None:
        return written
    if verdict.stop is not None:
        return Written(written.piece, "stop_string", verdict.stop)
    if written.force and (left or verdict.back or running.banned.holds):
        # What came behind the token after which something is forced was never said.
        back = left + verdict.back + running.banned.forget()
        _take_back(running, engine, back, ahead, frozenset())
    elif verdict.back:
        _take_back(running, engine, verdict.back, ahead, verdict.banned)
    else:
        _force(running, engine, written.force)
        return written
    _force(running, engine, written.force)
    return Written(written.piece, void=True)


def _written(running: DriverJob, final: Sequence[Taken]) -> tuple[Written, int]:
    """All of `final`, up to the end or to where something is to be forced; how many are left."""
    pieces: list[Piece] = []
    written = Written()
    left = len(final)
    for taken in final:
        left -= 1
        written = running.transcript.add(
            taken.token, taken.text, taken.logprob, ends=taken.ends, last=taken.last
        )
        if written.piece is not None:
            pieces.append(written.piece)
        if written.cause is not None or written.force:
            break
    return Written(_joined(pieces), written.cause, written.stop_string, written.force), left


def _joined(told: Sequence[Piece | None]) -> Piece | None:
    pieces = [piece for piece in told if piece is not None]
    if not pieces:
        return None
    return Piece(
        "".join(piece.text for piece in pieces),
        tuple(token for piece in pieces for token in piece.tokens),
        tuple(logprob for piece in pieces for logprob in piece.logprobs),
    )


def _take_back(
    running: DriverJob, engine: Engine, count: int, ahead: int, banned: frozenset[int]
) -> None:
    engine.rewind(running.key, count + ahead, banned)
    if running.matcher is not None:
        running.matcher.rewind(count)


def _force(running: DriverJob, engine: Engine, closing: Sequence[int]) -> None:
    """What the transcript wants said next, and what the grammar leaves no choice in."""
    forced = closing if running.matcher is None else running.matcher.force(closing)
    if forced:
        engine.force(running.key, forced)
        if running.banned is not None:
            running.banned.forced(len(forced))
