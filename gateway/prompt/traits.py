"""The traits of a chat template as one struct: found by `analysis`, used by all of this package."""

from typing import Any, Literal, TypeAlias

import msgspec

ReasoningField: TypeAlias = Literal["reasoning_content", "reasoning", "thinking"]


class ThinkingSwitch(msgspec.Struct, frozen=True):
    """A variable that turns reasoning on and off. A value of None: leave it unset."""

    variable: str
    on: Any
    off: Any


class TemplateTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What the template takes without an error and without losing text.

    The defaults are a modern template's.
    """

    # Messages
    content: Literal["text", "parts"] = "text"  # the form it takes where there is only text
    images: bool = False  # has a place for pictures among a message's parts
    system: Literal["anywhere", "leading", "none"] = "anywhere"  # where system messages may stand
    system_fades: bool = False  # shows system messages only where the user speaks last
    alternates: bool = False  # refuses (or loses) two messages of one role in a row
    assistant_opens: bool = True  # a conversation may begin with the assistant

    # Tools
    tools: Literal["native", "described"] = "native"  # described: written into a system message
    no_tools: Literal["null", "empty"] = "null"  # what `tools` is when there are none
    calls: Literal["native", "described"] = "native"  # described: calls and results become text
    arguments: Literal["text", "object"] = "text"
    call_content: Literal["empty", "null"] = "empty"  # the content of a message that only calls
    calls_with_text: bool = True  # a calling message may also speak
    parallel_calls: bool = True  # several calls in one message
    short_call_ids: bool = False  # wants ids of nine letters and digits

    # Reasoning
    reasoning_field: ReasoningField | None = None  # where it reads an earlier answer's reasoning
    thinking_switches: tuple[ThinkingSwitch, ...] = ()
    efforts: tuple[str, ...] = ()  # the values of `reasoning_effort` that it takes
    keeping_switches: tuple[ThinkingSwitch, ...] = ()  # on: earlier turns' reasoning stays
    opens_reasoning: bool = False  # the generation prompt ends inside reasoning, by default

    @property
    def reasoning(self) -> bool:
        """Whether the template shows any sign that its model reasons."""
        return bool(
            self.reasoning_field or self.thinking_switches or self.efforts or self.opens_reasoning
        )

    def strictest(self) -> "TemplateTraits":
        """The same template with the most restrictive traits: tried when it refuses a request."""
        return msgspec.structs.replace(
            self,
            system="none" if self.system == "none" else "leading",
            alternates=True,
            assistant_opens=False,
            calls_with_text=False,
            parallel_calls=False,
            reasoning_field=None,
        )
