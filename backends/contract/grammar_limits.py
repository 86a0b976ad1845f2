"""Limits on compiling a grammar and on one step with it; how a grammar names control tokens.

The fuel is llguidance's own, the same for the gateway, which tries a grammar first, and for the
engines, which run it. It is counted, not timed, so a grammar is taken or refused alike on every
machine.
"""

from llguidance import LLParserLimits

from backends.contract.protocol import Tokenizing

# Nodes of the regexes: about 50,000 of them are built in a millisecond. The largest of 200 schemas
# from the field needs less than 10,000.
LEXER_FUEL = 400_000
# The same for one token's mask: about 14,000 in a millisecond.
STEP_LEXER_FUEL = 200_000
STEP_ITEMS = 50_000  # Earley items for one token's mask: about 20,000 in a millisecond
ROW_ITEMS = 2_000  # ways a text may be read at one place
LEXER_STATES = 20_000  # of 1 to 2 kB each; those schemas need less than 500
GRAMMAR_SYMBOLS = 50_000  # 2**16 make it panic; those schemas need less than 2,000
# Of llguidance's words for what is beyond these, or for a grammar that no text can go on with.
TOO_MUCH = ("Too many items", "row has", "too many expressions", "too many states", "NoExtension")


def parser_limits() -> LLParserLimits:
    """For `LLMatcher` and its validation; messages don't show the parser's state."""
    return LLParserLimits(
        max_items_in_row=ROW_ITEMS,
        initial_lexer_fuel=LEXER_FUEL,
        step_lexer_fuel=STEP_LEXER_FUEL,
        step_max_items=STEP_ITEMS,
        max_lexer_states=LEXER_STATES,
        max_grammar_size=GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )


def control_tokens(vocabulary: Tokenizing) -> dict[str, int]:
    """The control tokens that a grammar has to name as such (`<[id]>`), by their texts. A
    vocabulary marks runs of spaces and the like in the same way as a turn's marker: those are text.
    """
    markers = filter(_is_marker, vocabulary.info.special.control)
    found = {text: vocabulary.tokenize(text, special=True) for text in markers}
    return {text: tokens[0] for text, tokens in found.items() if len(tokens) == 1}


def _is_marker(text: str) -> bool:
    return len(text) > 2 and (text[0], text[-1]) in {("<", ">"), ("[", "]")}
