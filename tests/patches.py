"""A grammar of patches as coding agents send it with a custom tool, and a patch.

The notation is the one that OpenAI documents for its `apply_patch`: files that are added, deleted
and updated between two marker lines.
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import openai
from openai.types.responses import Response

GRAMMAR = r"""
start: "*** Begin Patch" LF section+ "*** End Patch" LF?
section: added | deleted | updated
added: "*** Add File: " PATH LF ("+" TEXT LF)+
deleted: "*** Delete File: " PATH LF
updated: "*** Update File: " PATH LF ("*** Move to: " PATH LF)? change+
change: anchor? line+ eof?
anchor: "@@" (" " PATH)? LF
line: ("+" | "-" | " ") TEXT LF
eof: "*** End of File" LF
PATH: /[^\n]+/
TEXT: /[^\n]*/
%import common.LF
"""

# A part of it whose texts are short, so that models which know nothing come to their end.
SHORT = (
    GRAMMAR.replace("section+", "section{1,2}")
    .replace("TEXT LF)+", "TEXT LF){1,3}")
    .replace("change+", "change{1,2}")
    .replace("line+", "line{1,3}")
    .replace(r"[^\n]+", r"[^\n]{1,12}")
    .replace(r"[^\n]*", r"[^\n]{0,12}")
)

_LINE = r"[^\n]*\n"
_CHANGE = rf"(@@( [^\n]+)?\n)?([+ -]{_LINE})+(\*\*\* End of File\n)?"
_SECTION = "|".join(
    (
        rf"\*\*\* Add File: [^\n]+\n(\+{_LINE})+",
        r"\*\*\* Delete File: [^\n]+\n",
        rf"\*\*\* Update File: [^\n]+\n(\*\*\* Move to: [^\n]+\n)?({_CHANGE})+",
    )
)
# The same notation once more, for another engine to judge by.
NOTATION = re.compile(rf"\*\*\* Begin Patch\n({_SECTION})+\*\*\* End Patch\n?")

PATCH = """\
*** Begin Patch
*** Update File: src/page.py
@@ def "title"(self):
-\treturn '<b>' + r"\\d"
+\treturn "</parameter > </div>"
 pass
*** Add File: notes – é.txt
+</parameter
+
*** Delete File: old
*** End Patch
"""

FORMAT = {"type": "grammar", "syntax": "lark", "definition": SHORT}
TOOL: Any = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": FORMAT}
ASKED: Any = {
    "input": "Edit.",
    "tools": [TOOL],
    "tool_choice": {"type": "custom", "name": "apply_patch"},
    "max_output_tokens": 600,
    "reasoning": {"effort": "none"},
    "temperature": 1.5,
}
AT_ONCE = 4


def patch_of(api: openai.OpenAI, seed: int, model: str = "tiny") -> str | None:
    """The patch of one answer at a high temperature; None where it was cut."""
    answer: Response = api.responses.create(model=model, extra_body={"seed": seed}, **ASKED)
    item = answer.output[-1]
    if answer.status != "completed":
        return None
    assert item.type == "custom_tool_call", item
    return item.input


def patches_of(api: openai.OpenAI, count: int, model: str = "tiny") -> Sequence[str]:
    """`count` whole ones, or fewer where ten times as many answers didn't have them."""
    found: list[str] = []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for first in range(0, 10 * count, AT_ONCE):
            seeds = range(first, first + AT_ONCE)
            said = threads.map(partial(patch_of, api, model=model), seeds)
            found += [text for text in said if text is not None]
            if len(found) >= count:
                break
    return found[:count]


def assert_patches(found: Sequence[str], count: int) -> None:
    """So many, all of the notation, and not one again and again."""
    assert len(found) == count
    assert not [text for text in found if not NOTATION.fullmatch(text)]
    assert len(set(found)) > count // 2
