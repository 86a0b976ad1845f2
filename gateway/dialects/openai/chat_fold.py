"""The steps of one choice, put together to a message. Knows no other choice and no usage."""

from msgspec import UNSET, UnsetType

from backends.protocol import TokenLogprob
from gateway.dialects.openai.chat_steps import AnswerStep
from gateway.dialects.openai.chat_wire import (
    FunctionWhole,
    MessageWhole,
    ToolCallWhole,
    WholeChoice,
)
from gateway.dialects.openai.logprobs import chat_logprobs
from gateway.events import (
    ArgumentsGrown,
    Content,
    Finished,
    FinishReason,
    Reasoning,
    ToolOpened,
)


class _Call:
    """A tool call while it grows."""

    def __init__(self, opened: ToolOpened) -> None:
        self.opened = opened
        self.fragments: list[str] = []

    def whole(self) -> ToolCallWhole:
        function = FunctionWhole(self.opened.name, "".join(self.fragments))
        return ToolCallWhole(self.opened.id, function)


class ChoiceFold:
    """One choice while it grows."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._logprobs: list[TokenLogprob] = []
        self._finish_reason: FinishReason | None = None
        self._stop: str | UnsetType = UNSET

    def add(self, step: AnswerStep) -> None:
        """Take one step more."""
        self._logprobs += step.logprobs
        match step.event:
            case Content(text):
                self._content.append(text)
            case Reasoning(text):
                self._reasoning.append(text)
            case ToolOpened(index) as opened:
                self._calls[index] = _Call(opened)
            case ArgumentsGrown(index, fragment):
                self._calls[index].fragments.append(fragment)
            case Finished(reason, stop=stop):
                self._finish_reason = reason
                self._stop = UNSET if stop is None else stop

    def whole(self) -> WholeChoice:
        """The choice, once it is finished."""
        assert self._finish_reason is not None, "a choice is told when it has ended"
        return WholeChoice(
            index=self._index,
            message=self._message(),
            logprobs=chat_logprobs(self._logprobs) if self._logprobs else None,
            finish_reason=self._finish_reason,
            stop_reason=self._stop,
            stop_str=self._stop,
        )

    def _message(self) -> MessageWhole:
        content = "".join(self._content)
        calls = tuple(call.whole() for call in self._calls.values())
        return MessageWhole(
            content=content if content or not calls else None,
            reasoning_content="".join(self._reasoning) if self._reasoning else UNSET,
            tool_calls=calls or UNSET,
        )
