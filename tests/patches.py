"""A grammar of patches as coding agents send it with a custom tool, and a patch.

The notation is the one that OpenAI documents for its `apply_patch`: files that are added, deleted
and updated between two marker lines.
"""

import re

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
